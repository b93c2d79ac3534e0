package ptx

import (
	"slices"
	"sync"
)

// Ledger has the accesses of memory that several machines of this process have: of machines that
// launch independently of each other nothing but a release and an acquire at the system's scope
// orders two blocks. The launches of one machine come one after the other. What orders the warps of
// a block is the other detector's (clock.go): here a block is one thread.
type Ledger struct {
	mu    sync.Mutex
	cells map[uint64]*jointCell // by bytes of grain
	told  map[uint64]*devices   // what releasing stores published, by offset
}

// grain is the bytes of a cell.
const grain = 8

// devices is what a block knows of machines, itself included: for each a launch, before which all
// is known, and how much of some blocks of that launch.
type devices []device

type device struct {
	of     *Memory
	launch uint64
	blocks []progress
}

// progress is how often a block has released something, from 1 on.
type progress struct {
	block uint32
	times uint64
}

// moment is when a block of a launch accessed something.
type moment struct {
	of     *Memory
	launch uint64
	progress
}

// has says whether all up to a moment is known.
func (d devices) has(m *moment) bool {
	for i := range d {
		y := &d[i]
		if y.of != m.of {
			continue
		}
		return m.launch < y.launch || m.launch == y.launch &&
			slices.ContainsFunc(y.blocks, func(p progress) bool {
				return p.block == m.block && p.times >= m.times
			})
	}
	return false
}

// joined is what both know; neither is changed.
func (d devices) joined(o devices) devices {
	all := slices.Clone(d)
	for _, y := range o {
		i := slices.IndexFunc(all, func(x device) bool { return x.of == y.of })
		switch {
		case i < 0:
			all = append(all, y)
		case all[i].launch < y.launch:
			all[i] = y
		case all[i].launch == y.launch:
			all[i].blocks = joinedBlocks(all[i].blocks, y.blocks)
		}
	}
	return all
}

func joinedBlocks(a, b []progress) []progress {
	all := slices.Clone(a)
	for _, p := range b {
		i := slices.IndexFunc(all, func(q progress) bool { return q.block == p.block })
		if i < 0 {
			all = append(all, p)
		} else {
			all[i].times = max(all[i].times, p.times)
		}
	}
	return all
}

// jointCell is the last write, and the reads since then.
type jointCell struct {
	written moment // of no machine where there is none
	reads   []moment
}

// beginShared has a block know what the launches of its machine before it knew.
func (k *checker) beginShared(linear uint32) {
	m := k.launch.machine.Memory
	k.now, k.knows, k.heard = moment{}, nil, nil
	if !slices.ContainsFunc(m.all, func(a *allocation) bool { return a.ledger != nil }) {
		return
	}
	k.now = moment{m, k.launch.number, progress{linear, 1}}
	k.knows = m.knows.joined(devices{k.self()}) // which no one changes while a launch runs
	k.heard = map[*devices]bool{}
}

// self is what a block knows of itself.
func (k *checker) self() device {
	return device{k.now.of, k.now.launch, []progress{k.now.progress}}
}

// tellOthers ends a block: the next launches know what it did.
func (c *cta) tellOthers() {
	if c.check == nil || c.check.knows == nil {
		return
	}
	l := c.launch
	l.mu.Lock()
	defer l.mu.Unlock()
	l.knows = l.knows.joined(c.check.knows)
}

// checkMachines looks whether another machine's access may be at the same time, and notes this one.
func (w *warp) checkMachines(s *segment, n uint64, kind accessKind) {
	k, l := w.cta.check, s.in.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cells == nil {
		l.cells = map[uint64]*jointCell{}
	}
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m)
		for at := w.ea[i] / grain; at <= (w.ea[i]+n-1)/grain; at++ {
			c := l.cells[at]
			if c == nil {
				c = &jointCell{}
				l.cells[at] = c
			}
			if what := c.race(k, kind); what != "" {
				w.failLane(i, "race: %s byte %d of an allocation of %d bytes after a %s by "+
					"another machine, or another block, with nothing between that orders them",
					kind, w.ea[i], s.in.size, what)
			}
			if kind&writes != 0 {
				c.written, c.reads = k.now, c.reads[:0]
			} else if !slices.Contains(c.reads, k.now) {
				c.reads = append(c.reads, k.now)
			}
		}
	}
}

// race names an access that is not known to be before one of a block's, "" for none.
func (c *jointCell) race(k *checker, kind accessKind) string {
	if c.written.of != nil && !k.knows.has(&c.written) {
		return "write"
	}
	if kind&writes == 0 {
		return ""
	}
	for i := range c.reads {
		if !k.knows.has(&c.reads[i]) {
			return "read"
		}
	}
	return ""
}

// tell publishes what the block knows, where a strong store releases it to other machines; another
// one ends what was published there.
func (w *warp) tell(s *segment, a *access) {
	k, l := w.cta.check, s.in.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told == nil {
		l.told = map[uint64]*devices{}
	}
	release := a.release && a.scopeSys
	known := k.knows
	for m := s.group; m != 0; m &= m - 1 {
		at := w.ea[firstLane(m)]
		if delete(l.told, at); release {
			l.told[at] = &known
		}
	}
	if release {
		k.now.times++
		k.knows = k.knows.joined(devices{k.self()})
	}
}

// hear adds what was published where a strong load acquires it.
func (w *warp) hear(s *segment, a *access) {
	if !a.acquire || !a.scopeSys {
		return
	}
	k, l := w.cta.check, s.in.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for m := s.group; m != 0; m &= m - 1 {
		if told := l.told[w.ea[firstLane(m)]]; told != nil && !k.heard[told] {
			k.knows, k.heard[told] = k.knows.joined(*told), true
		}
	}
}
