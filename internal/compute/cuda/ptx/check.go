package ptx

// checker is what Machine.Check needs of a block: which bytes of shared memory are written, which
// are the destination of copies under way, and who accessed what.
type checker struct {
	launch   *launch
	firstGid uint32
	known    initialised
	pending  initialised
	pages    []sharedPage
	round    uint32
	vars     map[uint64]*clock // of strong writes in the block's scope, by address
	// knows is what the block knows of machines, nil where no memory is shared with others; now is
	// its own place there, heard what it was told.
	knows devices
	now   moment
	heard map[*devices]bool
}

func newChecker(l *launch) *checker {
	return &checker{launch: l, vars: map[uint64]*clock{},
		pages: make([]sharedPage, (l.shared+sharedPageSize-1)/sharedPageSize)}
}

// begin prepares for a block.
func (k *checker) begin(linear uint32) {
	k.firstGid = k.launch.firstGid + linear*uint32(k.launch.warps)
	size := uint64(k.launch.shared)
	k.known.grow(size)
	k.pending.grow(size)
	clear(k.known.bits)
	clear(k.pending.bits)
	clear(k.vars)
	k.round++
	k.beginShared(linear)
}

// check looks whether an access of n bytes by each lane of a segment is right, and notes it.
func (w *warp) check(s *segment, n uint64, kind accessKind) {
	w.seq++
	switch s.space {
	case sharedSpace:
		w.checkSharedAccess(s, n, kind)
	case globalSpace:
		w.checkGlobalAccess(s, n, kind)
		if s.in.ledger != nil && kind&strong == 0 {
			w.checkMachines(s, n, kind)
		}
	case localSpace:
		w.checkLocal(s, n, kind)
	}
}

func (w *warp) checkLocal(s *segment, n uint64, kind accessKind) {
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m)
		if kind&reads != 0 && !s.owner.short(w.ea[i], n) {
			w.failLane(i, "read of local memory that was not written")
		}
		if kind&writes != 0 {
			s.owner.setShort(w.ea[i], n, uint64(len(w.local)))
		}
	}
}

// checkOverlap looks whether lanes of one store write different values to the same bytes: which of
// them stays is undefined (PTX ISA 8.5).
func (w *warp) checkOverlap(a *access, in *inst, s *segment) {
	if s.space == localSpace || w.ascending(s.group, a.bytes()) {
		return
	}
	n := a.bytes()
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m)
		for o := m & (m - 1); o != 0; o &= o - 1 {
			j := firstLane(o)
			if w.ea[i]+n <= w.ea[j] || w.ea[j]+n <= w.ea[i] {
				continue
			}
			for _, r := range in.ext.srcs {
				if w.ea[i] != w.ea[j] || w.value(a.dst, r, i) != w.value(a.dst, r, j) {
					w.failLane(j, "lanes %d and %d write different values to the same bytes", i, j)
				}
			}
		}
	}
}

// ascending says whether each lane's bytes lie beyond those of the lane before.
func (w *warp) ascending(group uint32, n uint64) bool {
	end := uint64(0)
	for m := group; m != 0; m &= m - 1 {
		i := firstLane(m)
		if w.ea[i] < end {
			return false
		}
		end = w.ea[i] + n
	}
	return true
}

// pend marks the destinations of copies that have been issued: their bytes are unknown, and no
// access is allowed.
func (w *warp) pend(s *segment, n uint64) {
	k := w.cta.check
	size := uint64(len(w.cta.shared))
	for m := s.group; m != 0; m &= m - 1 {
		i := firstLane(m)
		k.known.clear(w.ea[i], n, size)
		k.pending.setShort(w.ea[i], n, size)
	}
}

// landed notes that a copy is a write of its lane now.
func (w *warp) landed(c *asyncCopy) {
	k := w.cta.check
	size, at, n := uint64(len(w.cta.shared)), uint64(c.dst), uint64(c.size)
	k.pending.clear(at, n, size)
	k.known.setShort(at, n, size)
	w.seq++
	epoch := w.now.local[w.id]
	if c.epoch != 0 { // it ends at an mbarrier
		epoch = c.epoch
	}
	k.stamp(w, int(c.lane), at, n, epoch, false)
}

// copyAt describes the copy under way to a byte of shared memory.
func (c *cta) copyAt(at uint64) (line int) {
	for _, w := range c.warps {
		for _, d := range w.underWay() {
			if at-uint64(d.dst) < uint64(d.size) {
				return int(d.line)
			}
		}
	}
	for _, b := range c.mbarriers.bulk {
		for _, r := range b.runs {
			if at-r.shared < max(r.n, 1024) {
				return b.warp.kernel.lines[b.pc]
			}
		}
	}
	return 0
}
