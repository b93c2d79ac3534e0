package groups

import (
	"errors"
	"fmt"
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

// Ledger reserves the memory of hosts other than the driver's for the ranks of all engines. It
// records a host's memory when the first rank is placed there: later reservations are counted, not
// measured, because a cache that is not in use yet does not show.
type Ledger struct {
	mu    sync.Mutex
	hosts map[string]*account
	// blocks is the size of each rank's KV cache, 0 until the ranks of a single engine have joined.
	blocks int64
}

// account is a host, with the reservations of each engine.
type account struct {
	name     string
	bounds   memory.Bounds
	reserved map[int][]memory.Rank
}

// NewLedger returns a ledger without reservations.
func NewLedger() *Ledger { return &Ledger{hosts: map[string]*account{}} }

// Release removes the reservations of an engine.
func (l *Ledger) Release(engine int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(engine, nil)
}

// release removes the reservations of an engine on all hosts but some; mu is held.
func (l *Ledger) release(engine int, but map[string]*account) {
	maps.DeleteFunc(l.hosts, func(key string, a *account) bool {
		if but[key] == nil {
			delete(a.reserved, engine)
		}
		return len(a.reserved) == 0
	})
}

// reserve replaces an engine's reservations by those on hosts, by their keys, and plans the memory
// of these hosts. After an error the engine has no reservations. It returns the blocks of each KV
// cache.
func (l *Ledger) reserve(engine int, on map[string]*account, cache memory.Cache, update int64,
	share float64) (blocks int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(engine, on)
	var hosts []memory.Host
	for _, key := range slices.Sorted(maps.Keys(on)) {
		h := memory.Host{Name: on[key].name, Bounds: on[key].bounds, Update: update}
		if a := l.hosts[key]; a != nil {
			h.Bounds = a.bounds
			for _, number := range slices.Sorted(maps.Keys(a.reserved)) {
				if number != engine {
					h.Ranks = append(h.Ranks, a.reserved[number]...)
				}
			}
		}
		h.Ranks = append(h.Ranks, on[key].reserved[engine]...)
		hosts = append(hosts, h)
	}
	p, err := memory.Make(hosts, cache, share)
	if err != nil {
		l.release(engine, nil)
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
			l.hosts[key] = &account{name: a.name, bounds: a.bounds,
				reserved: map[int][]memory.Rank{}}
		}
		l.hosts[key].reserved[engine] = a.reserved[engine]
	}
	return p.Blocks, nil
}

// Decided returns the blocks of each KV cache, fewer than planned where a host lacks room; 0 before
// they are known.
func (l *Ledger) Decided() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocks
}

// fits refuses a group that does not fit into the memory of its ranks' hosts, before they load. The
// driver's plan covers the ranks that it started on its own host. A single engine without a
// requested cache size gets a smaller cache where a host lacks room; several engines do not,
// because they may share hosts in any order.
func (b *Launch) fits(init *queue.Init, workers []launch.Worker, here []join.Location) error {
	if b.Null != nil {
		return nil
	}
	cache := b.FixedCache()
	if b.sizes() {
		cache.Blocks, cache.Most = 0, cache.Blocks
	}
	on, ranks, update := map[string]*account{}, map[string]int{}, b.UpdateBytes()
	name := func(rank int) string { return workers[rank].Node }
	key := func(rank int) string { return name(rank) + " " + here[rank].Host }
	need := b.NeedOf
	if b.OnGPUs() {
		// Each GPU is a host of its own.
		update = 0
		name = func(rank int) string { return workers[rank].Node + ", " + gpuOf(rank, &here[rank]) }
		need = func(rank, _ int) memory.Rank { return b.NeedOnGPU(rank) }
	}
	for rank, w := range workers {
		if w.Node == launch.ThisHost {
			continue
		}
		ranks[key(rank)]++
		on[key(rank)] = &account{name: name(rank), bounds: here[rank].Memory,
			reserved: map[int][]memory.Rank{}}
	}
	for rank, w := range workers {
		if w.Node == launch.ThisHost {
			continue
		}
		k := key(rank)
		threads := max(1, here[rank].Cores/ranks[k])
		on[k].reserved[b.Number] = append(on[k].reserved[b.Number], need(rank, threads))
	}
	blocks, err := b.Ledger.reserve(b.Number, on, cache, update, b.Config.Cache.Share())
	if err == nil {
		b.Spec = b.WithBlocks(blocks)
		init.Blocks = b.Info.Blocks
	}
	return err
}

// gpuOf tells the GPU of a rank from others of its machine.
func gpuOf(rank int, l *join.Location) string {
	if len(l.Memory) == 0 {
		return fmt.Sprintf("GPU of rank %d", rank)
	}
	return l.Memory[0].From
}

// sizes reports whether the KV cache may be made smaller than planned: nothing has been computed
// with it.
func (b *Launch) sizes() bool {
	return b.Engines() == 1 && b.Ledger.Decided() == 0 && b.Config.Cache.Asked() == ""
}
