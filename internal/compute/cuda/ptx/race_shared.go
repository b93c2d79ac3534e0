package ptx

import "fmt"

const (
	sharedPageSize = 1024
	pageShift      = 10
	// wholeWarp and severalLanes stand for lanes of an access.
	wholeWarp    = 255
	severalLanes = 254
)

// sharedPage has the accesses of a KiB of shared memory. Cells are of 4 bytes, or smaller once an
// instruction has accessed less.
type sharedPage struct {
	round uint32 // the block of which it is
	shift uint8  // of a cell's size
	cells []sharedCell
	read  []uint32 // epochs of the last reads, by cell and warp
}

// sharedCell is the last write and the last read of some bytes.
type sharedCell struct {
	epoch        uint32 // of the write
	wrote, reads uint32 // the accesses' numbers in their warps
	writer       uint8  // warp + 1
	writeLane    uint8
	reader       uint8 // warp + 1
	readLane     uint8
	strong       bool // the write
	async        bool // the write is of the asynchronous proxy
	strongRead   bool
}

// page prepares the page of an address for accesses of n bytes.
func (k *checker) page(at, n uint64, warps int) *sharedPage {
	p := &k.pages[at>>pageShift]
	if p.round != k.round {
		p.round, p.shift = k.round, 2
		p.resize(warps)
		clear(p.cells)
		clear(p.read)
	}
	for (at|n)&(1<<p.shift-1) != 0 {
		p.split(warps)
	}
	return p
}

func (p *sharedPage) resize(warps int) {
	n := sharedPageSize >> p.shift
	if cap(p.cells) < n {
		p.cells, p.read = make([]sharedCell, n), make([]uint32, n*warps)
	}
	p.cells, p.read = p.cells[:n], p.read[:n*warps]
}

// split halves the cells; each half has what the whole had.
func (p *sharedPage) split(warps int) {
	cells, read := p.cells, p.read
	p.cells, p.read = make([]sharedCell, 2*len(cells)), make([]uint32, 2*len(read))
	for i, c := range cells {
		for half := range 2 {
			p.cells[2*i+half] = c
			copy(p.read[(2*i+half)*warps:], read[i*warps:(i+1)*warps])
		}
	}
	p.shift--
}

func (w *warp) checkSharedAccess(s *segment, n uint64, kind accessKind) {
	k := w.cta.check
	size := uint64(len(w.cta.shared))
	var p *sharedPage // of the lane before, which often is this one's
	of := ^uint64(0)
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		at := w.ea[i]
		if k.pending.bits[at>>6] != 0 && k.anyPending(at, n) {
			if b := w.cta.mbarriers.all[at&^7]; b != nil {
				w.failLane(i, "access of the mbarrier at shared %#x as memory", b.at)
			}
			w.failLane(i, "access of shared %#x, to which the copy of line %d is under way", at,
				w.cta.copyAt(at+k.firstPending(at, n)))
		}
		if kind&reads != 0 && !k.known.short(at, n) {
			w.failLane(i, "read of shared %#x, which was not written",
				at+k.known.first(at, n))
		}
		if kind&writes != 0 {
			k.known.setShort(at, n, size)
		}
		if at>>pageShift != of || (at|n)&(1<<p.shift-1) != 0 {
			p, of = k.page(at, n, len(w.cta.warps)), at>>pageShift
		}
		first := int(at&(sharedPageSize-1)) >> p.shift
		for c := first; c < first+int(n)>>p.shift; c++ {
			w.sharedCell(p, c, i, kind, at)
		}
	}
}

func (k *checker) anyPending(at, n uint64) bool { return k.firstPending(at, n) < n }

func (k *checker) firstPending(at, n uint64) uint64 {
	for i := range n {
		if k.pending.short(at+i, 1) {
			return i
		}
	}
	return n
}

// sharedCell compares an access with those before, and notes it.
func (w *warp) sharedCell(p *sharedPage, c, lane int, kind accessKind, at uint64) {
	cell := &p.cells[c]
	warps := len(w.cta.warps)
	me := uint8(w.id + 1)
	soft := kind&strong == 0
	if cell.writer != 0 && (soft || !cell.strong) {
		if cell.writer != me || cell.async {
			known := w.told // a copy of its own is ordered by an mbarrier alone
			if cell.writer != me {
				known = w.now.local[cell.writer-1]
			}
			if known < cell.epoch {
				w.race(lane, at, kind, "a write", int(cell.writer)-1)
			}
		} else if cell.wrote > w.synced && cell.wrote != w.seq && int(cell.writeLane) != lane &&
			cell.writeLane != wholeWarp {
			w.laneRace(lane, at, kind, "a write", int(cell.writeLane))
		}
	}
	if kind&collective != 0 {
		lane = wholeWarp
	}
	if kind&writes == 0 {
		p.read[c*warps+w.id] = w.now.local[w.id]
		if cell.reader == me && cell.reads > w.synced && int(cell.readLane) != lane {
			lane = severalLanes
		}
		cell.reader, cell.reads, cell.readLane, cell.strongRead = me, w.seq, uint8(lane), !soft
		return
	}
	if soft || !cell.strongRead {
		now := w.now.local[:warps]
		for u, e := range p.read[c*warps:][:len(now)] {
			if e > now[u] {
				w.race(lane, at, kind, "a read", u)
			}
		}
		if cell.reader == me && cell.reads > w.synced && cell.reads != w.seq &&
			int(cell.readLane) != lane && cell.readLane != wholeWarp {
			w.laneRace(lane, at, kind, "a read", int(cell.readLane))
		}
	}
	cell.writer, cell.writeLane, cell.epoch = me, uint8(lane), w.now.local[w.id]
	cell.wrote, cell.strong, cell.async = w.seq, !soft, false
}

// stamp notes a write that a copy makes, without looking at what was before.
func (k *checker) stamp(w *warp, lane int, at, n uint64, epoch uint32, async bool) {
	p := k.page(at, n, len(w.cta.warps))
	first := int(at&(sharedPageSize-1)) >> p.shift
	for c := first; c < first+int(n)>>p.shift; c++ {
		cell := &p.cells[c]
		cell.writer, cell.writeLane = uint8(w.id+1), uint8(lane)
		cell.epoch, cell.wrote, cell.strong, cell.async = epoch, w.seq, false, async
	}
}

// checkProxy looks whether what the asynchronous proxy reads is visible to it: writes of the
// generic proxy are before a fence.proxy.async of the writer, or of the reader that is after the
// write (PTX ISA 8.6).
func (w *warp) checkProxy(lane int, at, n uint64) {
	p := w.cta.check.page(at, n, len(w.cta.warps))
	first := int(at&(sharedPageSize-1)) >> p.shift
	for c := first; c < first+int(n)>>p.shift; c++ {
		cell := &p.cells[c]
		if cell.writer == 0 || cell.async {
			continue
		}
		u := int(cell.writer) - 1
		seen := w.proxySeen != nil && w.proxySeen[u] >= cell.epoch
		if !seen && w.cta.warps[u].proxied < cell.epoch {
			w.failLane(lane, "the asynchronous proxy reads shared %#x after a write by warp %d "+
				"with no fence.proxy.async between", at, u)
		}
	}
}

func (w *warp) race(lane int, at uint64, kind accessKind, before string, other int) {
	w.failLane(lane, "race: %s shared %#x after %s by warp %d, with nothing between that orders "+
		"them", kind, at, before, other)
}

func (w *warp) laneRace(lane int, at uint64, kind accessKind, before string, other int) {
	who := fmt.Sprintf("lane %d", other)
	if other == severalLanes {
		who = "several lanes"
	}
	w.failLane(lane&(lanes-1), "race: %s shared %#x after %s by %s of the warp, with no "+
		"warp-synchronous instruction between", kind, at, before, who)
}

// String says what the access is, for faults.
func (k accessKind) String() string {
	switch {
	case k&writes == 0:
		return "read of"
	case k&reads == 0:
		return "write of"
	}
	return "atomic access of"
}
