package ptx

import (
	"fmt"
	"slices"
	"strings"
)

// mbarrier is a barrier in shared memory (PTX ISA 9.7.13.15). Its state is beside the memory, whose
// eight bytes no other instruction may touch.
type mbarrier struct {
	at                uint64
	expected, pending int
	bytes             int64 // that are still to come by copies
	phase             uint64
	// fenced says that the initialisation has been made visible to the asynchronous proxy.
	fenced bool
	// current collects what arrivals of the phase release, done what those of earlier ones did.
	current, done clock
	waiters       uint32 // warps
}

// mbarriers are those of a block, with the copies that end at them.
type mbarriers struct {
	all  map[uint64]*mbarrier
	bulk []bulkCopy
}

func (m *mbarriers) reset() {
	if m.all == nil {
		m.all = map[uint64]*mbarrier{}
	}
	clear(m.all)
	m.bulk = m.bulk[:0]
}

// mbarrierOp is a decoded instruction of an mbarrier.
type mbarrierOp struct {
	wide   bank
	offset uint64
	// expects is for expect_tx, drop for arrive_drop, relaxed for arrivals that release nothing.
	expects, drop, relaxed bool
	parity, blocks         bool
}

// mbarrierInstruction decodes mbarrier.*.
func (d *decoder) mbarrierInstruction() {
	op := &mbarrierOp{relaxed: d.st.has("relaxed")}
	if len(d.st.mods) == 0 || len(d.st.args) == 0 {
		d.failf("unknown instruction")
		return
	}
	switch d.st.mods[0] {
	case "init":
		d.mbarrierOn(op, 0, 1, op.init)
	case "inval":
		d.mbarrierOn(op, 0, none, op.invalidate)
	case "expect_tx", "complete_tx":
		sign := int64(1)
		if d.st.mods[0] == "complete_tx" {
			sign = -1
		}
		d.mbarrierOn(op, 0, 1, func(w *warp, in *inst, mask uint32) {
			op.each(w, in, mask, func(b *mbarrier, lane int) {
				b.bytes += sign * int64(w.r32[in.b][lane])
				w.cta.advancePhase(b)
			})
		})
	case "arrive", "arrive_drop":
		op.expects, op.drop = d.st.has("expect_tx"), d.st.mods[0] == "arrive_drop"
		d.mbarrierArrive(op)
	case "test_wait", "try_wait":
		op.parity, op.blocks = d.st.has("parity"), d.st.mods[0] == "try_wait"
		d.mbarrierWait(op)
	default:
		d.failf("unknown instruction")
	}
}

// mbarrierOn emits an instruction with an address as operand at, and a number as operand value.
func (d *decoder) mbarrierOn(op *mbarrierOp, at int, value int32, exec execFunc) {
	in := inst{exec: exec, d: none, b: none, c: none}
	in.a, op.wide, op.offset = d.memoryAddress(d.st.args[at], sharedSpace)
	if value != none && d.arity(2, 2) {
		in.b = d.src(d.st.args[value], u32Type)
	}
	d.emit(in)
}

func (d *decoder) mbarrierArrive(op *mbarrierOp) {
	args := d.st.args
	in := inst{exec: op.arrive, d: none, b: none, c: none}
	if args[0].kind == nameOperand {
		in.d = d.dst(args[0], u64Type)
		args = args[1:]
	}
	if len(args) < 1 || len(args) > 2 || op.expects && len(args) != 2 ||
		d.st.hasPrefix("shared::cluster") {
		d.failf("unknown operands")
		return
	}
	in.a, op.wide, op.offset = d.memoryAddress(args[0], sharedSpace)
	if len(args) == 2 {
		in.b = d.src(args[1], u32Type)
	}
	d.emit(in)
}

func (d *decoder) mbarrierWait(op *mbarrierOp) {
	if !d.arity(3, 4) {
		return
	}
	args := d.st.args
	in := inst{exec: op.wait, d: d.dst(args[0], predType), b: none, c: none}
	in.a, op.wide, op.offset = d.memoryAddress(args[1], sharedSpace)
	if op.parity {
		in.b = d.src(args[2], u32Type)
	} else {
		in.b = d.src(args[2], u64Type)
	}
	d.emit(in)
}

// locations computes the addresses of the lanes' mbarriers, which must be aligned shared memory.
func (op *mbarrierOp) locations(w *warp, in *inst, mask uint32) {
	w.addresses(op.wide, in.a, op.offset)
	for left := mask; left != 0; {
		s := w.segment(w.sharedOrGeneric(op.wide, left), 0, 8, left, reads)
		if s.space != sharedSpace {
			w.fail(s.group, "an mbarrier that is not in shared memory")
		}
		left &^= s.group
	}
}

// sharedOrGeneric is the space of an address: those of 64 bits may be generic ones of shared
// memory.
func (w *warp) sharedOrGeneric(b bank, mask uint32) space {
	if b == bank64 && w.ea[firstLane(mask)]-sharedWindow < windowSize {
		return genericSpace
	}
	return sharedSpace
}

// each calls f for the mbarrier of each lane.
func (op *mbarrierOp) each(w *warp, in *inst, mask uint32, f func(b *mbarrier, lane int)) {
	op.locations(w, in, mask)
	ea := w.ea
	for m := mask; m != 0; m &= m - 1 {
		i := firstLane(m)
		b := w.cta.mbarriers.all[ea[i]]
		if b == nil {
			w.failLane(i, "no mbarrier is initialised at shared %#x", ea[i])
		}
		f(b, i)
	}
}

func (op *mbarrierOp) init(w *warp, in *inst, mask uint32) {
	op.locations(w, in, mask)
	if w.cta.check != nil {
		s := segment{space: sharedSpace, group: mask, base: w.cta.start}
		for m := mask; m != 0; m &= m - 1 {
			w.cta.check.pending.clear(w.ea[firstLane(m)], 8, uint64(len(w.cta.shared)))
		}
		w.check(&s, 8, writes)
		w.pend(&s, 8)
	}
	for m := mask; m != 0; m &= m - 1 {
		i := firstLane(m)
		n := int(w.r32[in.b][i])
		if n < 1 || n >= 1<<20 {
			w.failLane(i, "an mbarrier for %d arrivals", n)
		}
		w.cta.mbarriers.all[w.ea[i]] = &mbarrier{at: w.ea[i], expected: n, pending: n}
	}
}

func (op *mbarrierOp) invalidate(w *warp, in *inst, mask uint32) {
	op.each(w, in, mask, func(b *mbarrier, _ int) {
		delete(w.cta.mbarriers.all, b.at)
		if w.cta.check != nil {
			w.cta.check.pending.clear(b.at, 8, uint64(len(w.cta.shared)))
		}
	})
}

func (op *mbarrierOp) arrive(w *warp, in *inst, mask uint32) {
	op.each(w, in, mask, func(b *mbarrier, lane int) {
		n := 1
		switch {
		case op.expects:
			b.bytes += int64(w.r32[in.b][lane])
		case in.b >= 0:
			n = int(w.r32[in.b][lane])
		}
		if in.d >= 0 {
			w.r64[in.d][lane] = b.phase
		}
		if op.drop {
			b.expected -= n
		}
		w.arriveAt(b, n, lane, op.relaxed)
	})
}

// arriveAt counts arrivals.
func (w *warp) arriveAt(b *mbarrier, n, lane int, relaxed bool) {
	if !relaxed {
		w.release(&b.current)
	}
	if b.pending -= n; b.pending < 0 {
		w.failLane(lane, "more arrivals than the %d of the mbarrier at shared %#x", b.expected,
			b.at)
	}
	w.cta.advancePhase(b)
}

// advancePhase ends the phase if all arrivals and bytes are there, and wakes the warps that wait.
func (c *cta) advancePhase(b *mbarrier) {
	if b.pending > 0 || b.bytes != 0 {
		return
	}
	b.phase++
	b.pending = b.expected
	b.done.join(&b.current)
	b.current.reset()
	for m := b.waiters; m != 0; m &= m - 1 {
		c.warps[firstLane(m)].wake()
	}
	b.waiters = 0
}

// passed says whether the phase that a lane waits for is over.
func (op *mbarrierOp) passed(w *warp, in *inst, b *mbarrier, lane int) bool {
	if op.parity {
		return b.phase&1 != uint64(w.r32[in.b][lane]&1)
	}
	return b.phase > w.r64[in.b][lane]
}

// wait is test_wait and try_wait. The latter waits until the phase is over: as the ISA lets it
// suspend the thread, a program may not rely on its coming back without. What ends at the mbarrier
// lands now at the latest.
func (op *mbarrierOp) wait(w *warp, in *inst, mask uint32) {
	var open, over uint32
	at := w.pc - 1
	op.each(w, in, mask, func(b *mbarrier, lane int) {
		if !op.passed(w, in, b, lane) {
			w.cta.landAt(b)
		}
		if op.passed(w, in, b, lane) {
			over |= 1 << lane
			w.acquire(&b.done)
			return
		}
		open |= 1 << lane
		if op.blocks {
			b.waiters |= 1 << w.id
		}
	})
	w.pred[in.d] = w.pred[in.d]&^mask | over
	if open == 0 {
		return
	}
	if !op.blocks {
		w.stop()
		return
	}
	w.park()
	for m := open; m != 0; m &= m - 1 {
		w.pcs[firstLane(m)] = at
	}
	w.waiting |= open
	w.suspended |= open
	w.choose()
}

// wake lets lanes that wait at mbarriers look again.
func (w *warp) wake() {
	runs := w.state == running && w.active&^w.waiting != 0
	if runs {
		w.park()
	}
	w.waiting &^= w.suspended
	w.suspended = 0
	if w.state == atMbarrier {
		w.state, runs = running, true
	}
	if runs {
		w.choose()
	}
}

// mbarrierState describes what a warp's lanes wait for.
func (c *cta) mbarrierState(w *warp) string {
	var all []string
	for at, b := range c.mbarriers.all {
		if b.waiters>>w.id&1 != 0 {
			all = append(all, fmt.Sprintf(" (mbarrier at shared %#x, phase %d: %d of %d arrivals "+
				"and %d bytes to come)", at, b.phase, b.pending, b.expected, b.bytes))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// copyArrive decodes cp.async.mbarrier.arrive: the lane arrives when its copies have landed.
func (d *decoder) copyArrive() {
	if !d.arity(1, 1) {
		return
	}
	counted := d.st.has("noinc")
	op := &mbarrierOp{}
	d.mbarrierOn(op, 0, none, func(w *warp, in *inst, mask uint32) {
		op.each(w, in, mask, func(b *mbarrier, lane int) {
			if !counted {
				b.pending++
			}
			w.compact(1)
			arrival := &clock{}
			w.markArrival(lane)
			w.release(arrival)
			w.copies = append(w.copies, asyncCopy{lane: int8(lane), group: w.groups[lane].committed,
				barrier: b, clock: arrival, line: int32(w.kernel.lines[w.pc-1])})
		})
	})
}

// markArrival notes the epoch of the copies that an arrival ends.
func (w *warp) markArrival(lane int) {
	if w.cta.check == nil {
		return
	}
	for k := w.head; k < len(w.copies); k++ {
		if c := &w.copies[k]; int(c.lane) == lane && c.epoch == 0 {
			c.epoch = w.now.local[w.id]
		}
	}
}

// landAt lands the copies that end at an mbarrier.
func (c *cta) landAt(b *mbarrier) {
	for _, w := range c.warps {
		for k := w.head; k < len(w.copies); k++ {
			if w.copies[k].barrier == b {
				w.landUpTo(k)
				k = w.head - 1
			}
		}
	}
	c.landBulk(b)
}

// landAwaited lands the copies that end at mbarriers where warps wait.
func (c *cta) landAwaited() {
	var all []*mbarrier
	for _, b := range c.mbarriers.all {
		if b.waiters != 0 {
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(a, b *mbarrier) int { return int(a.at) - int(b.at) })
	for _, b := range all {
		c.landAt(b)
	}
}

// landUpTo lands an arrival and all copies of its lane before.
func (w *warp) landUpTo(k int) {
	lane := w.copies[k].lane
	rest := w.head
	for i := w.head; i < len(w.copies); i++ {
		if c := &w.copies[i]; i <= k && c.lane == lane {
			w.landOne(c)
			continue
		}
		w.copies[rest] = w.copies[i]
		rest++
	}
	w.copies = w.copies[:rest]
}
