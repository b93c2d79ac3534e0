package ptx

import (
	"bytes"
	"unsafe"
)

// asyncCopy is one lane's cp.async that has not landed. It lands only when it is waited for: until
// then the destination has NaNs, and the source is read at the last moment.
type asyncCopy struct {
	lane   int8
	size   uint8  // bytes of the destination
	filled uint8  // of them copied; the rest are zeros
	group  uint32 // of the lane's groups
	dst    uint32 // shared address
	src    uint64 // offset in the allocation
	in     *allocation
	line   int32
	before [16]byte // the source when the copy was issued
	// barrier is set for a cp.async.mbarrier.arrive, which ends the lane's copies before it; clock
	// is what it releases, and epoch the copies' then.
	barrier *mbarrier
	clock   *clock
	epoch   uint32
}

// groupCount is how many groups of copies a lane has committed.
type groupCount struct{ committed uint32 }

// copyAsync decodes cp.async and what waits for it (PTX ISA 9.7.9.25).
func (d *decoder) copyAsync() {
	st := d.st
	switch {
	case st.has("commit_group"):
		d.op(execCommit, none)
	case st.has("wait_group"):
		if !d.arity(1, 1) || st.args[0].kind != numberOperand {
			d.failf("a number is wanted")
			return
		}
		d.emit(inst{exec: execWaitGroup, d: none, a: none, b: none, c: none,
			imm: st.args[0].bits})
	case st.has("wait_all"):
		d.op(execWaitAll, none)
	case st.has("mbarrier"):
		d.copyArrive()
	case st.hasAny("ca", "cg") != "" && d.copySpaces():
		d.copyStart()
	default:
		d.failf("unknown instruction")
	}
}

func (d *decoder) copySpaces() bool { return d.st.hasPrefix("shared") && d.st.has("global") }

// copyStart decodes cp.async itself: destination, source, size, and optionally how much of it is
// copied, or a predicate that ignores the source.
func (d *decoder) copyStart() {
	args := d.st.args
	if d.st.has("L2::cache_hint") && len(args) > 3 {
		args = args[:len(args)-1]
	}
	if len(args) < 3 || len(args) > 4 || args[2].kind != numberOperand {
		d.failf("unknown operands")
		return
	}
	size := args[2].bits
	if size != 16 && (!d.st.has("ca") || size != 4 && size != 8) {
		d.failf("copies of %d bytes", size)
		return
	}
	in := inst{d: none, c: none, imm: size, ext: &extra{slot: d.slotFor()}}
	c := &copyOp{}
	in.a, c.dstBank, c.dstOffset = d.memoryAddress(args[0], sharedSpace)
	in.b, c.srcBank, c.srcOffset = d.memoryAddress(args[1], globalSpace)
	if len(args) == 4 {
		in.c = d.sizeOrPredicate(args[3], c)
	}
	in.exec = c.exec
	d.emit(in)
}

func (d *decoder) sizeOrPredicate(o operand, c *copyOp) int32 {
	if o.kind == nameOperand && d.declared(o.name) && bankOf(d.register(o.name)) == bankPred {
		c.ignores = true
		r, flip := d.predicate(o)
		c.flip = flip
		return r
	}
	return d.src(o, u32Type)
}

// copyOp is a decoded cp.async.
type copyOp struct {
	dstBank, srcBank     bank
	dstOffset, srcOffset uint64
	ignores              bool // c is a predicate that ignores the source
	flip                 uint32
}

func (c *copyOp) exec(w *warp, in *inst, mask uint32) {
	size := in.imm
	w.addresses(c.dstBank, in.a, c.dstOffset)
	w.sharedSegment(size, mask)
	w.compact(lanes)
	first := len(w.copies)
	line := w.kernel.lines[w.pc-1]
	for m := mask; m != 0; m &= m - 1 {
		i := firstLane(m)
		filled := uint64(size)
		switch {
		case c.ignores && (w.pred[in.c]^c.flip)>>i&1 != 0:
			filled = 0
		case !c.ignores && in.c >= 0:
			filled = uint64(w.r32[in.c][i])
		}
		if filled > size {
			w.failLane(i, "a copy of %d bytes into %d", filled, size)
		}
		w.copies = append(w.copies, asyncCopy{lane: int8(i), size: uint8(size),
			filled: uint8(filled), group: w.groups[i].committed, dst: uint32(w.ea[i]),
			line: int32(line)})
	}
	issued := w.copies[first:]
	s := segment{space: sharedSpace, group: mask, base: w.cta.start}
	w.count(&s, size, writes)
	if w.cta.check != nil {
		w.check(&s, size, writes)
		w.pend(&s, size)
	}
	for k := range issued {
		w.poisonShared(issued[k].dst, size)
	}
	c.sources(w, in, issued)
}

func (w *warp) poisonShared(at uint32, size uint64) {
	p := unsafe.Add(w.cta.start, at)
	for i := uint64(0); i < size; i += 4 {
		*(*uint32)(unsafe.Add(p, i)) = 0xFFFFFFFF
	}
}

// sources finds what the copies will read. A lane that reads nothing may have any address.
func (c *copyOp) sources(w *warp, in *inst, issued []asyncCopy) {
	w.addresses(c.srcBank, in.b, c.srcOffset)
	mask := uint32(0)
	for k := range issued {
		if issued[k].filled > 0 {
			mask |= 1 << issued[k].lane
		}
	}
	for left := mask; left != 0; {
		s := w.globalSegment(in.ext.slot, in.imm, left, reads)
		w.count(&s, in.imm, reads)
		if w.cta.check != nil {
			w.check(&s, in.imm, reads)
		}
		for k := range issued {
			p := &issued[k]
			if s.group>>p.lane&1 == 0 {
				continue
			}
			p.in, p.src = s.in, w.ea[p.lane]
			if w.cta.check != nil {
				copy(p.before[:p.filled], p.in.data[p.src:])
			}
		}
		left &^= s.group
	}
}

func execCommit(w *warp, _ *inst, mask uint32) {
	for m := mask; m != 0; m &= m - 1 {
		w.groups[firstLane(m)].committed++
	}
}

// execWaitGroup waits until at most imm of the newest groups of each lane have not landed.
func execWaitGroup(w *warp, in *inst, mask uint32) {
	if len(w.underWay()) == 0 {
		return
	}
	w.land(mask, func(c *asyncCopy) bool {
		return uint64(c.group)+in.imm < uint64(w.groups[c.lane].committed)
	})
}

func execWaitAll(w *warp, _ *inst, mask uint32) {
	w.land(mask, func(*asyncCopy) bool { return true })
}

// land ends the copies of some lanes that are due.
func (w *warp) land(mask uint32, due func(*asyncCopy) bool) {
	for w.head < len(w.copies) && w.landIf(&w.copies[w.head], mask, due) {
		w.head++
	}
	rest := w.head
	for k := w.head; k < len(w.copies); k++ {
		if !w.landIf(&w.copies[k], mask, due) {
			if rest != k {
				w.copies[rest] = w.copies[k]
			}
			rest++
		}
	}
	w.copies = w.copies[:rest]
}

// underWay are the copies that have not landed.
func (w *warp) underWay() []asyncCopy { return w.copies[w.head:] }

// compact moves the copies under way to the begin of their buffer if it is full.
func (w *warp) compact(more int) {
	if len(w.copies)+more > cap(w.copies) && w.head > 0 {
		n := copy(w.copies, w.copies[w.head:])
		w.copies, w.head = w.copies[:n], 0
	}
}

func (w *warp) landIf(c *asyncCopy, mask uint32, due func(*asyncCopy) bool) bool {
	if mask>>c.lane&1 == 0 || !due(c) {
		return false
	}
	if c.filled == 16 && w.cta.check == nil {
		*(*[2]uint64)(unsafe.Add(w.cta.start, c.dst)) = *(*[2]uint64)(unsafe.Add(c.in.start, c.src))
		return true
	}
	w.landOne(c)
	return true
}

func (w *warp) landOne(c *asyncCopy) {
	if c.barrier != nil {
		c.barrier.current.join(c.clock)
		c.barrier.pending--
		w.cta.advancePhase(c.barrier)
		return
	}
	dst := w.cta.shared[c.dst : c.dst+uint32(c.size)]
	clear(dst)
	if c.filled > 0 {
		src := c.in.data[c.src : c.src+uint64(c.filled)]
		if w.cta.check != nil {
			if !bytes.Equal(src, c.before[:c.filled]) {
				w.failLane(int(c.lane), "the source of the copy of line %d was written before it "+
					"was waited for", c.line)
			}
			w.rereadSource(c)
		}
		copy(dst, src)
	}
	if w.cta.check != nil {
		w.landed(c)
	}
}
