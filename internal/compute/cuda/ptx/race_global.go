package ptx

import (
	"slices"
	"sync"
)

const (
	globalPageSize  = 4096
	globalPageShift = 12
	// strongBit marks the number of a warp whose access was strong, severalBit that there are
	// several readers, whose list is at the cell's epoch.
	strongBit  = 1 << 31
	severalBit = 1 << 30
	maxGid     = 1<<30 - 1
	// maxReaders of different blocks are remembered; with more, a write in the same launch is a
	// race whatever was between.
	maxReaders = 6
	everyone   = severalBit | maxGid
)

// shadow has the accesses of an allocation by warps, in pages that are made when they are needed.
type shadow struct {
	mu    sync.Mutex
	pages []*globalPage
	made  int // pages
}

// maxPages are how many pages are left from one launch to the next: accesses of earlier launches
// mean nothing, but new pages take time. A page has 16 KiB or more.
const maxPages = 1 << 15

// trim drops the pages of all allocations if there are too many.
func (m *Memory) trim() {
	total := 0
	for _, a := range m.all {
		total += a.shadow.made
	}
	if total <= maxPages {
		return
	}
	for _, a := range m.all {
		a.shadow.pages, a.shadow.made = nil, 0
	}
}

type globalPage struct {
	shift uint8
	cells []globalCell
	lists [][]reading
	spare []uint32 // lists that no cell uses
}

// globalCell is the last write and the last reads of some bytes.
type globalCell struct{ writer, wrote, reader, read uint32 }

type reading struct{ gid, epoch uint32 }

// nextWarps reserves numbers for n warps of a launch. Numbers of earlier launches mean accesses
// that are done.
func (m *Memory) nextWarps(n uint64) uint32 {
	if uint64(m.warps)+n >= maxGid {
		m.warps = 0
		for _, a := range m.all {
			a.shadow.pages, a.shadow.made = nil, 0
		}
	}
	first := m.warps + 1
	m.warps += uint32(n)
	return first
}

func (s *shadow) page(at, n, size uint64) *globalPage {
	if s.pages == nil {
		s.pages = make([]*globalPage, (size+globalPageSize-1)/globalPageSize)
	}
	p := s.pages[at>>globalPageShift]
	if p == nil {
		p = &globalPage{shift: 2, cells: make([]globalCell, globalPageSize>>2)}
		s.pages[at>>globalPageShift] = p
		s.made++
	}
	for (at|n)&(1<<p.shift-1) != 0 {
		p.split()
	}
	return p
}

// split halves the cells; each half has what the whole had.
func (p *globalPage) split() {
	cells := p.cells
	p.cells = make([]globalCell, 2*len(cells))
	for i, c := range cells {
		p.cells[2*i] = c
		if c.reader&severalBit != 0 && c.reader&^strongBit != everyone {
			c.read = p.list(p.lists[c.read]...)
		}
		p.cells[2*i+1] = c
	}
	p.shift--
}

// list is a new list of readers.
func (p *globalPage) list(all ...reading) uint32 {
	if n := len(p.spare); n > 0 {
		at := p.spare[n-1]
		p.spare = p.spare[:n-1]
		p.lists[at] = append(p.lists[at][:0], all...)
		return at
	}
	p.lists = append(p.lists, slices.Clone(all))
	return uint32(len(p.lists) - 1)
}

// unlist ends a cell's list, if it has one.
func (p *globalPage) unlist(c *globalCell) {
	if c.reader&severalBit != 0 && c.reader&^strongBit != everyone {
		p.spare = append(p.spare, c.read)
	}
}

// conflict is an access that another one races with.
type conflict struct {
	lane  int
	at    uint64
	what  string
	other uint32
}

func (w *warp) checkGlobalAccess(s *segment, n uint64, kind accessKind) {
	a := s.in
	a.shadow.mu.Lock()
	found := w.globalCells(a, s.group, n, kind)
	a.shadow.mu.Unlock()
	if found == nil {
		return
	}
	if found.other == 0 {
		w.failLane(found.lane, "%s byte %d of an allocation of %d bytes, which was not written",
			kind, found.at, a.size)
	}
	l := w.cta.launch
	other := found.other - l.firstGid
	w.failLane(found.lane, "race: %s byte %d of an allocation of %d bytes after %s by warp %d of "+
		"CTA %d, with nothing between that orders them", kind, found.at, a.size, found.what,
		other%uint32(l.warps), other/uint32(l.warps))
}

// globalCells checks each lane's bytes, and returns the first that are wrong.
func (w *warp) globalCells(a *allocation, group uint32, n uint64, kind accessKind) *conflict {
	var p *globalPage // of the lane before, which often is this one's
	of := ^uint64(0)
	for m := group; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		at := w.ea[i]
		if kind&reads != 0 && !a.known.short(at, n) {
			return &conflict{lane: i, at: at + a.known.first(at, n)}
		}
		if kind&writes != 0 {
			a.known.setShort(at, n, a.size)
		}
		if at>>globalPageShift != of || (at|n)&(1<<p.shift-1) != 0 {
			p, of = a.shadow.page(at, n, a.size), at>>globalPageShift
		}
		first := int(at&(globalPageSize-1)) >> p.shift
		for c := first; c < first+int(n)>>p.shift; c++ {
			if what, other := w.globalCell(p, &p.cells[c], kind); other != 0 {
				return &conflict{i, at, what, other}
			}
		}
	}
	return nil
}

// ordered says whether an access by another warp is known to be before what this warp does now.
func (w *warp) ordered(gid, epoch uint32) bool {
	if gid == w.gid || gid < w.cta.launch.firstGid {
		return true
	}
	if i := gid - w.cta.check.firstGid; i < uint32(len(w.cta.warps)) {
		return w.now.local[i] >= epoch
	}
	return w.now.foreign[gid] >= epoch
}

// globalCell compares an access with those before, and notes it. other is the warp of an access
// that it races with, 0 for none.
func (w *warp) globalCell(p *globalPage, c *globalCell, kind accessKind) (what string,
	other uint32) {
	epoch := w.now.local[w.id]
	me := w.gid
	if kind&strong != 0 {
		me |= strongBit
	}
	if kind&writes == 0 && c.reader == me && c.read == epoch {
		return "", 0
	}
	if kind&constantly != 0 && c.writer&^strongBit >= w.cta.launch.firstGid {
		return "a write in the same launch, which ld.global.nc may not see,", c.writer &^ strongBit
	}
	bothStrong := kind&strong != 0 && c.writer&strongBit != 0
	if gid := c.writer &^ strongBit; gid != 0 && !bothStrong && !w.ordered(gid, c.wrote) {
		return "a write", gid
	}
	if kind&writes == 0 {
		w.noteRead(p, c, me, epoch)
		return "", 0
	}
	if c.reader != 0 && (kind&strong == 0 || c.reader&strongBit == 0) {
		if gid := w.unorderedReader(p, c); gid != 0 {
			return "a read", gid
		}
	}
	c.writer, c.wrote = me, epoch
	p.unlist(c)
	c.reader = 0
	return "", 0
}

// unorderedReader is a warp whose read may be at the same time, 0 for none.
func (w *warp) unorderedReader(p *globalPage, c *globalCell) uint32 {
	gid := c.reader &^ strongBit
	if gid&severalBit == 0 {
		if w.ordered(gid, c.read) {
			return 0
		}
		return gid
	}
	if gid == everyone {
		if c.read < w.cta.launch.firstGid {
			return 0
		}
		return c.read
	}
	for _, r := range p.lists[c.read] {
		if !w.ordered(r.gid, r.epoch) {
			return r.gid
		}
	}
	return 0
}

// noteRead adds a reader to a cell. Readers that are ordered before this one are not needed any
// more: who is ordered after it is ordered after them.
func (w *warp) noteRead(p *globalPage, c *globalCell, me, epoch uint32) {
	before := c.reader &^ strongBit
	soft := me&strongBit == 0 || c.reader != 0 && c.reader&strongBit == 0
	flag := uint32(strongBit)
	if soft {
		flag = 0
	}
	switch {
	case before == 0 || before&severalBit == 0 && w.ordered(before, c.read):
		c.reader, c.read = me, epoch
	case before == everyone:
		if c.read < w.cta.launch.firstGid {
			c.reader, c.read = me, epoch
		} else {
			c.reader = everyone | flag
		}
	case before&severalBit == 0:
		c.read = p.list(reading{before, c.read}, reading{w.gid, epoch})
		c.reader = severalBit | flag
	default:
		w.addReader(p, c, epoch, flag)
	}
}

func (w *warp) addReader(p *globalPage, c *globalCell, epoch, flag uint32) {
	list := p.lists[c.read]
	list = slices.DeleteFunc(list, func(r reading) bool { return w.ordered(r.gid, r.epoch) })
	foreign := 0
	for _, r := range list {
		if r.gid-w.cta.check.firstGid >= uint32(len(w.cta.warps)) {
			foreign++
		}
	}
	if foreign >= maxReaders {
		p.unlist(c)
		c.reader, c.read = everyone|flag, w.gid
		return
	}
	p.lists[c.read] = append(list, reading{w.gid, epoch})
	c.reader = severalBit | flag
}

// rereadSource notes that the source of a copy is read when the copy lands.
func (w *warp) rereadSource(c *asyncCopy) {
	w.ea[c.lane] = c.src
	w.check(&segment{space: globalSpace, group: 1 << c.lane, in: c.in}, uint64(c.filled), reads)
}
