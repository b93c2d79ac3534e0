package ptx

import (
	"bytes"
	"slices"
)

// bulkCopy is a cp.async.bulk on its way: runs of bytes between global and shared memory.
type bulkCopy struct {
	runs    []run
	load    bool // to shared memory
	barrier *mbarrier
	bytes   int64
	warp    *warp
	lane    int
	pc      int // of its instruction
	group   uint32
	epoch   uint32
	clock   clock
	read    bool     // the source of a store has been read, into buffer
	buffer  [][]byte // by run
	before  [][]byte // what the source was when the copy was issued
}

// run is a row of a copy: n bytes, or zeros where in is nil. Bytes of shared memory are swizzled.
type run struct {
	in      *allocation
	at      uint64 // offset in the allocation
	shared  uint64
	n       uint64
	swizzle swizzle
}

// bulkState are the groups of stores that the lanes of a warp have committed.
type bulkState struct {
	committed [lanes]uint32
	stores    []bulkCopy
}

// bulkInstruction decodes cp.async.bulk.* (PTX ISA 9.7.9.25.4).
func (d *decoder) bulkInstruction() {
	st := d.st
	switch {
	case st.has("commit_group"):
		d.op(func(w *warp, _ *inst, mask uint32) {
			for m := mask; m != 0; m &= m - 1 {
				w.bulk.committed[firstLane(m)]++
			}
		}, none)
	case st.has("wait_group"):
		d.bulkWait()
	case st.has("prefetch"):
		d.nothing()
	case st.hasPrefix("multicast") || st.hasAny("im2col", "reduce") != "" || st.opcode != "cp":
		d.failf("unknown instruction")
	case st.has("tensor"):
		d.tensorCopy()
	default:
		d.bulkCopy()
	}
}

func (d *decoder) bulkWait() {
	if !d.arity(1, 1) || d.st.args[0].kind != numberOperand {
		d.failf("a number is wanted")
		return
	}
	n, onlyRead := d.st.args[0].bits, d.st.has("read")
	d.op(func(w *warp, _ *inst, mask uint32) { w.landStores(mask, n, onlyRead) }, none)
}

// bulkOp is a decoded bulk copy: a is the address in shared memory, b that in global memory or of
// the tensor's map, c the mbarrier; ext.srcs are the size or the coordinates.
type bulkOp struct {
	load              bool
	tensor            bool
	shared, other     bank
	sharedAt, otherAt uint64
	mbarrier          mbarrierOp
}

// bulkCopy decodes a copy of a row of bytes.
func (d *decoder) bulkCopy() {
	args := d.st.args
	op := &bulkOp{load: d.st.hasPrefix("mbarrier")}
	want := 3
	if op.load {
		want = 4
	}
	if d.st.has("L2::cache_hint") && len(args) == want+1 {
		args = args[:want]
	}
	if len(args) != want || !d.st.has("global") || !d.st.hasPrefix("shared") {
		d.failf("unknown operands")
		return
	}
	in := inst{exec: op.exec, d: none, c: none,
		ext: &extra{slot: d.slotFor(), srcs: []int32{d.src(args[2], u32Type)}}}
	shared, global := args[1], args[0]
	if op.load {
		shared, global = global, shared
		in.c, op.mbarrier.wide, op.mbarrier.offset = d.memoryAddress(args[3], sharedSpace)
	}
	in.a, op.shared, op.sharedAt = d.memoryAddress(shared, sharedSpace)
	in.b, op.other, op.otherAt = d.memoryAddress(global, globalSpace)
	d.emit(in)
}

func (op *bulkOp) exec(w *warp, in *inst, mask uint32) {
	for m := mask; m != 0; m &= m - 1 {
		op.start(w, in, firstLane(m))
	}
}

// start issues the copy of one lane.
func (op *bulkOp) start(w *warp, in *inst, lane int) {
	c := bulkCopy{load: op.load, warp: w, lane: lane, pc: int(w.pc) - 1,
		group: w.bulk.committed[lane]}
	mask := uint32(1) << lane
	align := uint64(16)
	if op.tensor {
		align = 128
	}
	shared := w.laneAddress(op.shared, in.a, op.sharedAt, lane)
	if shared&(align-1) != 0 {
		w.failLane(lane, "a bulk copy of shared %#x, which is no multiple of %d", shared, align)
	}
	if op.tensor {
		c.runs = op.tensorRuns(w, in, lane, shared)
	} else {
		n := uint64(w.r32[in.ext.srcs[0]][lane])
		if n%16 != 0 {
			w.failLane(lane, "a bulk copy of %d bytes, which are no multiple of 16", n)
		}
		r := w.globalRun(w.value(op.other, in.b, lane)+op.otherAt, n, lane)
		r.shared = shared
		c.runs = []run{r}
	}
	for _, r := range c.runs {
		c.bytes += int64(r.n)
		if r.shared < sharedBase || r.shared+r.n > uint64(len(w.cta.shared)) {
			w.failLane(lane, "shared access out of range: a bulk copy of %d bytes at %d", r.n,
				r.shared)
		}
		switch {
		case op.load && r.in != nil:
			w.cta.stats.GlobalRead += r.n
		case !op.load:
			w.cta.stats.GlobalWritten += r.n
		}
	}
	w.cta.stats.SharedAccesses++
	if op.load {
		op.mbarrier.each(w, &inst{a: in.c}, mask, func(b *mbarrier, _ int) { c.barrier = b })
		w.issueLoad(c)
		return
	}
	w.issueStore(c)
}

// laneAddress is a shared address in a lane; a generic one is brought to the space's own.
func (w *warp) laneAddress(b bank, r int32, offset uint64, lane int) uint64 {
	a := w.value(b, r, lane) + offset
	if b == bank64 && a-sharedWindow < windowSize {
		return a - sharedWindow
	}
	return a & 0xffffffff
}

// globalRun finds n bytes of global memory, which must lie in one allocation.
func (w *warp) globalRun(addr, n uint64, lane int) run {
	if addr%16 != 0 {
		w.failLane(lane, "misaligned bulk copy at %#x", addr)
	}
	a, off, err := w.cta.mem.span(addr, n)
	if err != nil {
		w.failLane(lane, "global access out of range: %v", err)
	}
	return run{in: a, at: off, n: n}
}

// issueLoad marks the destination as being written.
func (w *warp) issueLoad(c bulkCopy) {
	if w.cta.check != nil {
		if !c.barrier.fenced {
			w.failLane(c.lane, "the initialisation of the mbarrier at shared %#x has not been "+
				"fenced for the asynchronous proxy", c.barrier.at)
		}
		for _, r := range c.runs {
			eachPiece(r, func(shared, global, n uint64) {
				w.ea[c.lane] = shared
				s := segment{space: sharedSpace, group: 1 << c.lane, base: w.cta.start}
				w.check(&s, n, writes)
				w.pend(&s, n)
				if r.in != nil {
					w.ea[c.lane] = global
					w.check(&segment{space: globalSpace, group: 1 << c.lane, in: r.in}, n, reads)
				}
			})
			c.remember(r)
		}
		c.epoch = w.now.local[w.id]
		w.release(&c.clock)
	}
	for _, r := range c.runs {
		r.each(func(shared, _, n uint64) {
			fill(w.cta.shared[shared:shared+n], 0xFF)
		})
	}
	w.cta.mbarriers.bulk = append(w.cta.mbarriers.bulk, c)
}

// remember notes what a global source is when a copy is issued.
func (c *bulkCopy) remember(r run) {
	if r.in == nil {
		c.before = append(c.before, nil)
		return
	}
	c.before = append(c.before, bytes.Clone(r.in.data[r.at:r.at+r.n]))
}

// each calls f for the pieces of a run that are contiguous in shared memory: all of it, or 16 bytes
// at a time where they are swizzled.
func (r *run) each(f func(shared, global, n uint64)) {
	if r.swizzle == noSwizzle {
		f(r.shared, r.at, r.n)
		return
	}
	for i := uint64(0); i < r.n; {
		n := min(16-(r.shared+i)&15, r.n-i)
		f(r.swizzle.place(r.shared+i), r.at+i, n)
		i += n
	}
}

// eachPiece is each in pieces of at most 16 bytes, as accesses are checked.
func eachPiece(r run, f func(shared, global, n uint64)) {
	r.each(func(shared, global, n uint64) {
		for i := uint64(0); i < n; {
			size := min(16-(shared+i)&15, n-i)
			f(shared+i, global+i, size)
			i += size
		}
	})
}

// landBulk lands the loads that end at an mbarrier.
func (c *cta) landBulk(b *mbarrier) {
	for k := 0; k < len(c.mbarriers.bulk); {
		if c.mbarriers.bulk[k].barrier != b {
			k++
			continue
		}
		done := c.mbarriers.bulk[k]
		c.mbarriers.bulk = slices.Delete(c.mbarriers.bulk, k, k+1)
		done.land(c)
		b.bytes -= done.bytes
		b.current.join(&done.clock)
		c.advancePhase(b)
	}
}

// land copies a load's bytes.
func (k *bulkCopy) land(c *cta) {
	for i, r := range k.runs {
		if c.check != nil && r.in != nil && !bytes.Equal(k.before[i], r.in.data[r.at:r.at+r.n]) {
			panic(k.warp.fault(k.pc, k.lane, "the source of the copy was written before it landed"))
		}
		r.each(func(shared, global, n uint64) {
			dst := c.shared[shared : shared+n]
			if r.in == nil {
				clear(dst)
				return
			}
			copy(dst, r.in.data[global:])
		})
		if c.check != nil {
			eachPiece(r, func(shared, _, n uint64) {
				size := uint64(len(c.shared))
				c.check.pending.clear(shared, n, size)
				c.check.known.setShort(shared, n, size)
				c.check.stamp(k.warp, k.lane, shared, n, k.epoch, true)
			})
		}
	}
}

// issueStore notes a store; its source is read when it is waited for.
func (w *warp) issueStore(c bulkCopy) {
	for i := range c.runs {
		r := &c.runs[i]
		if r.in == nil {
			continue
		}
		if r.in.readOnly {
			w.failLane(c.lane, "write to constant memory")
		}
		if w.cta.check == nil {
			r.in.touch()
			continue
		}
		eachPiece(*r, func(shared, global, n uint64) {
			w.ea[c.lane] = shared
			w.check(&segment{space: sharedSpace, group: 1 << c.lane, base: w.cta.start}, n, reads)
			w.checkProxy(c.lane, shared, n)
			w.ea[c.lane] = global
			w.check(&segment{space: globalSpace, group: 1 << c.lane, in: r.in}, n, writes)
		})
	}
	if w.cta.check != nil {
		c.before = w.sourceOf(&c)
	}
	w.bulk.stores = append(w.bulk.stores, c)
}

// sourceOf is what a store's source has, by run.
func (w *warp) sourceOf(c *bulkCopy) [][]byte {
	var all [][]byte
	for _, r := range c.runs {
		b := make([]byte, 0, r.n)
		r.each(func(shared, _, n uint64) { b = append(b, w.cta.shared[shared:shared+n]...) })
		all = append(all, b)
	}
	return all
}

// landStores ends the stores of lanes' groups but for the n newest: their source is read, and
// unless only that is wanted, their bytes are written.
func (w *warp) landStores(mask uint32, n uint64, onlyRead bool) {
	rest := w.bulk.stores[:0]
	for _, c := range w.bulk.stores {
		if mask>>c.lane&1 == 0 || uint64(c.group)+n >= uint64(w.bulk.committed[c.lane]) {
			rest = append(rest, c)
			continue
		}
		w.readStore(&c)
		if onlyRead {
			rest = append(rest, c)
			continue
		}
		c.write()
	}
	w.bulk.stores = rest
}

func (w *warp) readStore(c *bulkCopy) {
	if c.read {
		return
	}
	c.read, c.buffer = true, w.sourceOf(c)
	for i := range c.before {
		if !bytes.Equal(c.before[i], c.buffer[i]) {
			w.failLane(c.lane, "the source of the bulk store of line %d was written before it was "+
				"waited for", w.kernel.lines[c.pc])
		}
	}
}

func (k *bulkCopy) write() {
	for i, r := range k.runs {
		if r.in != nil {
			copy(r.in.data[r.at:r.at+r.n], k.buffer[i])
		}
	}
}

// finishStores ends all stores of a block that ends. Their sources must have been read before.
func (c *cta) finishStores() {
	for _, w := range c.warps {
		for _, s := range w.bulk.stores {
			if !s.read && c.check != nil {
				panic(w.fault(s.pc, s.lane, "the block ended before the source of the bulk store "+
					"was waited for"))
			}
			w.readStore(&s)
			s.write()
		}
	}
}
