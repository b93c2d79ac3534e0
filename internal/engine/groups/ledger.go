package groups

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Ledger is what the ranks of all engines take of the memory of other hosts than the driver's. What
// a host has is noted when the first of them comes there: what they take later, caches that have
// not come into use included, is counted, not looked up.
type Ledger struct {
	mu    sync.Mutex
	hosts map[string]*account
	// blocks are those of each rank's KV cache, 0 until the ranks of an engine that is alone have
	// come.
	blocks int64
}

// account is a host, with what each engine takes there.
type account struct {
	name   string
	bounds memory.Bounds
	taken  map[int][]memory.Rank
}

// NewLedger returns one in which nothing is taken.
func NewLedger() *Ledger { return &Ledger{hosts: map[string]*account{}} }

// Forget takes away what an engine takes.
func (l *Ledger) Forget(engine int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(engine, nil)
}

// leave takes away what an engine takes of other hosts than some; mu is held.
func (l *Ledger) leave(engine int, but map[string]*account) {
	maps.DeleteFunc(l.hosts, func(key string, a *account) bool {
		if but[key] == nil {
			delete(a.taken, engine)
		}
		return len(a.taken) == 0
	})
}

// enter notes what an engine takes on hosts by their keys, in the place of what it took before, and
// plans all of them. On an error it takes nothing. It returns the blocks of each KV cache.
func (l *Ledger) enter(engine int, on map[string]*account, cache memory.Cache, update int64,
	share float64) (blocks int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(engine, on)
	var hosts []memory.Host
	for _, key := range slices.Sorted(maps.Keys(on)) {
		h := memory.Host{Name: on[key].name, Bounds: on[key].bounds, Update: update}
		if a := l.hosts[key]; a != nil {
			h.Bounds = a.bounds
			for _, number := range slices.Sorted(maps.Keys(a.taken)) {
				if number != engine {
					h.Ranks = append(h.Ranks, a.taken[number]...)
				}
			}
		}
		h.Ranks = append(h.Ranks, on[key].taken[engine]...)
		hosts = append(hosts, h)
	}
	p, err := memory.Make(hosts, cache, share)
	if err != nil {
		l.leave(engine, nil)
		refused := &open.Refused{Reason: err.Error()}
		if misfit := (*memory.Misfit)(nil); errors.As(err, &misfit) && misfit.Asked() {
			return 0, &config.UsageError{Err: refused}
		}
		return 0, refused
	}
	if cache.Blocks == 0 {
		l.blocks = p.Blocks
	}
	for key, a := range on {
		if l.hosts[key] == nil {
			l.hosts[key] = &account{name: a.name, bounds: a.bounds, taken: map[int][]memory.Rank{}}
		}
		l.hosts[key].taken[engine] = a.taken[engine]
	}
	return p.Blocks, nil
}

// Decided are the blocks of each KV cache, which hosts may have too little room for to have those
// of the plan; 0 where that is not known.
func (l *Ledger) Decided() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocks
}

// fits refuses a group that does not fit into the memory of the hosts on which its ranks are,
// before they load. Those of the driver's host that it has started itself are in its plan. An
// engine that is alone, and whose cache has no size that was asked for, has a smaller one where a
// host has no room for that of the plan; engines that are several may share hosts, in an order that
// is not known.
func (b *Launch) fits(init *queue.Init, workers []launch.Worker, here []join.Location) error {
	if b.Null != nil {
		return nil
	}
	cache := b.FixedCache()
	if b.sizes() {
		cache.Blocks, cache.Most = 0, cache.Blocks
	}
	on, ranks := map[string]*account{}, map[string]int{}
	key := func(rank int) string { return workers[rank].Node + " " + here[rank].Host }
	for rank, w := range workers {
		if w.Node == launch.ThisHost {
			continue
		}
		ranks[key(rank)]++
		on[key(rank)] = &account{name: w.Node, bounds: here[rank].Memory,
			taken: map[int][]memory.Rank{}}
	}
	for rank, w := range workers {
		if w.Node == launch.ThisHost {
			continue
		}
		k := key(rank)
		threads := max(1, here[rank].Cores/ranks[k])
		on[k].taken[b.Number] = append(on[k].taken[b.Number], b.NeedOf(rank, threads))
	}
	blocks, err := b.Ledger.enter(b.Number, on, cache, b.UpdateBytes(), b.Config.Cache.Share())
	if err == nil {
		b.Spec = b.WithBlocks(blocks)
		init.Blocks = b.Info.Blocks
	}
	return err
}

// sizes says that the KV cache may be made smaller than was planned: nothing has been computed with
// it.
func (b *Launch) sizes() bool {
	return b.Engines() == 1 && b.Ledger.Decided() == 0 && b.Config.Cache.Asked() == ""
}
