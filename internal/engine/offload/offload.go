// Package offload has the ranks of an engine store KV blocks in files, and load them where the
// cache has lost them (--kv-offloading-size). The scheduler says which, and holds them meanwhile;
// ranks are told by calls that are answered when they have done it, each waited for by a goroutine.
// There is no index: a file's name says what is in it, the prompt of a request is looked up by name
// when it is submitted, and what ranks then find decides.
package offload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/kvcache"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/rank/offload"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// Options are what a Tier is connected with.
type Options struct {
	// Life ends with the engine.
	Life context.Context
	// Scheduler is the loop's.
	Scheduler *schedule.Places
	Events    status.Listener
	// Post brings a Message to the loop, which gives it to Handle. Any goroutine calls it.
	Post func(Message)
}

// Tier is where an engine's blocks are beside its cache; nil where there is none. Its methods
// belong to the step loop, but for Find and Wait.
type Tier struct {
	opt Options
	// dir is the folder's path on every machine, bytes what its files may have.
	dir   string
	bytes int64
	// cache is the shape of the scheduler's.
	cache   kvcache.Config
	program string
	// patience is how long a rank may do nothing.
	patience time.Duration
	running  sync.WaitGroup

	group *executor.Executor
	// epoch is the number of the last Open, opened whether ranks take part.
	epoch  uint64
	opened bool
	// rest is until when nothing is stored, because it failed.
	rest    time.Time
	fetches []schedule.Fetch
	stores  []schedule.Store
	unasked []uint64 // memory for fetches that no request waits for
	// view is what Find looks up, nil while ranks do not take part; looking is how long for.
	view    atomic.Pointer[view]
	looking offload.Patience
}

// view is how the driver finds the files of the first rank.
type view struct {
	// has says whether the first rank's file of a block is there; nil where the driver does not see
	// its folder.
	has func(offload.Digest) bool
}

// Message tells the loop what became of a call.
type Message interface{ handle(*Tier) }

// New makes the tier of an engine, nil without --kv-offloading-size.
func New(b *groups.Launch, o Options) (*Tier, error) {
	c := &b.Config.Cache.Offloading
	if c.Bytes() == 0 {
		return nil, nil
	}
	usage := func(format string, args ...any) error {
		return &config.UsageError{Err: fmt.Errorf("--kv-offloading-size: "+format, args...)}
	}
	if b.Model.Encoder {
		return nil, usage("%q is an encoder, which keeps no keys and values", b.Info.Root)
	}
	if compute.StateBytes(b.CacheShape().Cache) > 0 {
		return nil, usage("layers of %q keep a state of each request, which is not in blocks",
			b.Info.Root)
	}
	s := b.Scheduling()
	t := &Tier{opt: o, dir: c.Dir, bytes: c.Bytes(), patience: b.Config.Queue.StepTimeout,
		cache:   kvcache.Config{BlockSize: s.BlockSize, Window: s.Window, Groups: s.Groups},
		looking: offload.Patience{Limit: lookFor}}
	var err error
	if t.dir != "" {
		if t.dir, err = filepath.Abs(t.dir); err != nil {
			return nil, err
		}
	}
	if t.program, err = machine.Program(); err != nil {
		return nil, usage("files are named by the program, too: %w", err)
	}
	return t, nil
}

// lookFor is how long a request waits to be told what is stored of its prompt.
const lookFor = time.Second

// flushFor is how long the end of an engine waits for its last stores.
const flushFor = 10 * time.Second

// Flush has the ranks store what is left, and waits for it, at most until the group ends.
func (t *Tier) Flush() {
	if t == nil {
		return
	}
	t.Store()
	over := make(chan struct{})
	go func() {
		t.running.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(flushFor):
	}
}

// Wait waits for what is under way; the group has ended.
func (t *Tier) Wait() {
	if t != nil {
		t.running.Wait()
	}
}

// openTimeout bounds the call by which the ranks of a group open their folders.
const openTimeout = 30 * time.Second

// Open lets the ranks of a group take part that has just started, or has other weights or another
// cache than before. A folder that cannot be used is an error when the engine is opened. Later it
// only means that nothing is stored.
func (t *Tier) Open(g groups.Caching) error {
	first := t.epoch == 0
	t.Close()
	t.group = g.Executor
	t.epoch++
	ctx, cancel := context.WithTimeout(t.opt.Life, openTimeout)
	defer cancel()
	all, err := executor.Call(ctx, g.Executor, calls.OffloadOpen, offload.Open{Dir: t.dir,
		Bytes: t.bytes, Shape: g.Shape, Epoch: t.epoch}, executor.RPCOptions{})
	if err != nil {
		return fmt.Errorf("--kv-offloading-size: %w", err)
	}
	room := int64(math.MaxInt64)
	for rank, a := range all {
		if a.Error != "" {
			err = errors.Join(err, fmt.Errorf("rank %d: %s", rank, a.Error))
		}
		room = min(room, a.Room)
	}
	if err != nil && first {
		return &config.UsageError{Err: fmt.Errorf("--kv-offloading-dir: %w", err)}
	}
	t.opt.Events.Emit(status.OffloadOpened{Dir: offload.PathOf(t.dir), Bytes: t.bytes, Room: room,
		Err: err})
	if t.opened = err == nil; t.opened {
		t.view.Store(t.see(all[0].Folder, &g.Shape))
	}
	return nil
}

// see is how the driver sees the folder of the first rank, which identifies it.
func (t *Tier) see(folder string, s *kvtransfer.Shape) *view {
	var own string
	err := t.looking.Run(func() error {
		own = offload.Identify(t.dir)
		return nil
	})
	if err != nil || own == "" || own != folder {
		return &view{}
	}
	names := offload.NamesOf(t.dir, s, 0, t.program)
	return &view{has: names.Has}
}

// Close has nothing more stored or loaded, until Open: the ranks' folders are closed, or the cache
// sleeps.
func (t *Tier) Close() {
	if t != nil {
		t.opened = false
		t.view.Store(nil)
	}
}

// Remove removes all files, and returns whether ranks have any.
func (t *Tier) Remove() (bool, error) {
	if t == nil || !t.opened {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(t.opt.Life, openTimeout)
	defer cancel()
	_, err := executor.Call(ctx, t.group, calls.OffloadRemove, rpc.None{}, executor.RPCOptions{})
	return err == nil, err
}

// Find lets a request that is to be submitted begin with what is stored of its prompt. Any
// goroutine may call it. Where the driver does not see the files it takes all to be there: ranks
// say what is.
func (t *Tier) Find(q *schedule.Request) {
	if t == nil {
		return
	}
	v := t.view.Load()
	// The last token is computed for its logits.
	n := (len(q.Prompt) - 1) / t.cache.BlockSize
	if v == nil || n == 0 {
		return
	}
	chain := kvcache.NewChain(q.CacheSalt())
	var names []offload.Digest
	name := func(i int) offload.Digest {
		for len(names) <= i {
			from := len(names) * t.cache.BlockSize
			names = append(names, chain.Next(q.Prompt[from:from+t.cache.BlockSize]))
		}
		return names[i]
	}
	if v.has != nil {
		most := n
		err := t.looking.Run(func() error {
			n = t.cache.Prefix(most, func(i, group int) bool {
				return v.has(kvcache.NameOf(name(i), group))
			})
			return nil
		})
		if err != nil && err != offload.ErrAside {
			t.opt.Events.Emit(status.OffloadLoaded{Of: most, Took: t.looking.Limit, Err: err})
		}
		if err != nil {
			return
		}
	}
	if n > 0 {
		q.Source, q.Remote = schedule.SourceOf(name(n-1)), n*t.cache.BlockSize
	}
}

// Store has the ranks store what plans that they were sent have computed.
func (t *Tier) Store() {
	if t == nil {
		return
	}
	t.stores = t.opt.Scheduler.Stores(t.stores[:0])
	for i := range t.stores {
		t.store(t.stores[i])
	}
	clear(t.stores)
}

// Load has the ranks load what the plan that was just made asks for. It is called before the ranks
// get the plan.
func (t *Tier) Load() {
	if t == nil {
		return
	}
	t.fetches = t.opt.Scheduler.Fetches(t.fetches[:0])
	for i := range t.fetches {
		if f := &t.fetches[i]; len(f.Blocks) > 0 {
			t.load(f.Key, f.Place, f.Blocks, f.Digests)
		}
	}
	clear(t.fetches)
	t.unasked = t.opt.Scheduler.Cancelled(t.unasked[:0]) // they are over soon
}

// Handle does what a message says.
func (t *Tier) Handle(m Message) { m.handle(t) }

// loaded is the end of a load for a request: its first n blocks are there.
type loaded struct {
	group *executor.Executor
	key   uint64
	n     int
}

func (m loaded) handle(t *Tier) {
	if m.group == t.group { // else the scheduler has ended it
		t.opt.Scheduler.Fetched(m.key, m.n)
	}
}

// stored is the end of a store.
type stored struct {
	group *executor.Executor
	store schedule.Store
	n     int
	err   error
}

// restAfter is how long nothing is stored after a store has failed.
const restAfter = time.Minute

func (m stored) handle(t *Tier) {
	if m.group != t.group {
		return
	}
	t.opt.Scheduler.Stored(&m.store, m.n)
	if m.err != nil && time.Now().After(t.rest) {
		t.rest = time.Now().Add(restAfter)
		t.opt.Events.Emit(status.OffloadFailed{Err: m.err, Rest: restAfter})
	}
}

func (t *Tier) load(key uint64, place int, blocks []uint32, digests []offload.Digest) {
	if !t.opened {
		t.opt.Scheduler.Fetched(key, 0)
		return
	}
	group, began := t.group, time.Now()
	b := t.blocks(place, blocks, digests)
	t.running.Go(func() {
		n, bytes, err := moved(t.opt.Life, group, calls.OffloadLoad, b, t.patience)
		t.opt.Events.Emit(status.OffloadLoaded{Blocks: n, Of: len(blocks), Bytes: bytes,
			Took: time.Since(began), Err: err})
		t.opt.Post(loaded{group, key, n})
	})
}

func (t *Tier) store(st schedule.Store) {
	if !t.opened || time.Now().Before(t.rest) {
		t.opt.Scheduler.Stored(&st, 0)
		return
	}
	group, began := t.group, time.Now()
	b := t.blocks(st.Place, st.Blocks, st.Digests)
	t.running.Go(func() {
		n, bytes, err := moved(t.opt.Life, group, calls.OffloadStore, b, 0)
		t.opt.Events.Emit(status.OffloadStored{Blocks: n, Bytes: bytes, Took: time.Since(began),
			Err: err})
		t.opt.Post(stored{group, st, n, err})
	})
}

func (t *Tier) blocks(place int, blocks []uint32, digests []offload.Digest) offload.Blocks {
	b := offload.Blocks{Epoch: t.epoch, Place: place, Blocks: blocks}
	for i := range digests {
		b.Digests = append(b.Digests, digests[i][:]...)
	}
	return b
}

// moved returns when no rank reads or writes the blocks any more: how many all have, the bytes that
// all have moved, and what went wrong with files. No rank has any when the group is over or has
// closed its folders. Patience, unless it is 0, is with a rank that does not answer: its disk may
// hang.
func moved(ctx context.Context, group *executor.Executor,
	m rpc.Method[offload.Blocks, offload.Done], b offload.Blocks,
	patience time.Duration) (n int, bytes int64, err error) {
	results, err := executor.Call(ctx, group, m, b, executor.RPCOptions{Owed: patience})
	if err != nil {
		return 0, 0, nil
	}
	n = len(b.Blocks)
	for rank, done := range results {
		if done.Error != "" {
			err = errors.Join(err, fmt.Errorf("rank %d: %s", rank, done.Error))
		}
		n = min(n, done.Blocks)
		bytes += done.Bytes
	}
	return n, bytes, err
}
