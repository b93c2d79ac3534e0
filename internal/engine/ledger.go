package engine

import (
	"maps"
	"slices"
	"sync"

	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/join"
	"github.com/eagleray/eagleray/internal/memory"
)

// ledger is what the ranks of all engines take of the memory of other hosts than the driver's. What a host
// has is noted when the first of them comes there: what they take later, caches that have not come into
// use included, is counted, not looked up.
type ledger struct {
	mu    sync.Mutex
	hosts map[string]*account
}

// account is a host, with what each engine takes there.
type account struct {
	name   string
	bounds memory.Bounds
	taken  map[int][]memory.Rank
}

func newLedger() *ledger { return &ledger{hosts: map[string]*account{}} }

// forget takes away what an engine takes.
func (l *ledger) forget(engine int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave(engine, nil)
}

// leave takes away what an engine takes of other hosts than some; mu is held.
func (l *ledger) leave(engine int, but map[string]*account) {
	maps.DeleteFunc(l.hosts, func(key string, a *account) bool {
		if but[key] == nil {
			delete(a.taken, engine)
		}
		return len(a.taken) == 0
	})
}

// enter notes what an engine takes on hosts by their keys, in the place of what it took before, and plans
// all of them. On an error it takes nothing.
func (l *ledger) enter(engine int, on map[string]*account, cache memory.Cache, update int64,
	share float64) error {
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
	if _, err := memory.Make(hosts, cache, share); err != nil {
		l.leave(engine, nil)
		return &Refused{err.Error()}
	}
	for key, a := range on {
		if l.hosts[key] == nil {
			l.hosts[key] = &account{name: a.name, bounds: a.bounds, taken: map[int][]memory.Rank{}}
		}
		l.hosts[key].taken[engine] = a.taken[engine]
	}
	return nil
}

// fits refuses a group that does not fit into the memory of the hosts on which its ranks are, before they
// load. Those of the driver's host that it has started itself are in its plan.
func (b *opening) fits(workers []launch.Worker, here []join.Here) error {
	if b.opt.Null != nil {
		return nil
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
		on[k].taken[b.number] = append(on[k].taken[b.number], b.needOf(rank, threads))
	}
	return b.ledger.enter(b.number, on, b.fixedCache(), b.updateBytes(), b.cfg.Cache.Share())
}

// fixedCache is a KV cache of the size that was decided.
func (b *opening) fixedCache() memory.Cache {
	size := b.cfg.Cache.BlockSize
	c := memory.Cache{Blocks: int64(b.info.Blocks), Positions: b.info.MaxModelLen, BlockSize: size,
		Least: int64(b.info.MaxModelLen+size-1) / int64(size)}
	if b.cfg.Cache.Blocks > 0 {
		c.Asked = "--num-gpu-blocks-override"
	}
	return c
}
