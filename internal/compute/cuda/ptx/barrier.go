package ptx

import (
	"fmt"
	"math/bits"
)

// maxBarriers are a block's named barriers (PTX ISA 9.7.13.1).
const maxBarriers = 16

// barrier is one of a block's barriers between two completions.
type barrier struct {
	arrived  int    // threads, in whole warps
	expected int    // 0: all threads of the block
	waiting  uint32 // warps that wait
	clock    clock  // of those that arrived
	result   uint32 // of bar.red: a count, or the lanes' and / or
}

// barrierOp is what a bar instruction does.
type barrierOp struct {
	aligned, arrive bool
	red             byte // 0, 'p' popc, 'a' and, 'o' or
}

// What imm says of a bar.red.
const (
	negatedSource = 1 << iota
	predicateResult
)

// execBarrier makes the function of a bar or barrier instruction: a is the barrier, b the number of
// threads, c the predicate of a reduction, d its result.
func execBarrier(op barrierOp) func(*warp, *inst, uint32) {
	kind := byLive
	if op.aligned {
		kind = byAligned
	}
	return func(w *warp, in *inst, mask uint32) {
		mask, complete := w.join(kind, mask, mask)
		if !complete {
			return
		}
		id := w.uniform(in.a, mask, "barrier")
		if id >= maxBarriers {
			w.fail(mask, "barrier %d of %d", id, maxBarriers)
		}
		b := &w.cta.barriers[id]
		w.expect(b, in, mask, id)
		b.arrived += lanes
		w.release(&b.clock)
		if op.red != 0 {
			w.reduce(b, op.red, in, mask)
		}
		if !op.arrive {
			w.state = atBarrier
			b.waiting |= 1 << w.id
			w.stop()
		}
		w.cta.complete(int(id))
	}
}

// expect sets or compares the number of threads that the barrier waits for.
func (w *warp) expect(b *barrier, in *inst, mask uint32, id uint32) {
	expected := 0
	if in.b != none {
		n := w.uniform(in.b, mask, "number of threads")
		if n == 0 || n%lanes != 0 || n > 1024 {
			w.fail(mask, "barrier %d for %d threads, which is no multiple of %d", id, n, lanes)
		}
		expected = int(n)
	}
	if b.arrived > 0 && b.expected != expected {
		w.fail(mask, "barrier %d for %d threads, where others wait for %d", id, expected,
			b.expected)
	}
	if b.waiting>>w.id&1 != 0 {
		w.fail(mask, "barrier %d reached twice", id)
	}
	b.expected = expected
}

// reduce adds the warp's predicate to a reduction; its result is written at once and corrected when
// the barrier completes.
func (w *warp) reduce(b *barrier, red byte, in *inst, mask uint32) {
	p := w.pred[in.c]
	if in.imm&negatedSource != 0 {
		p = ^p
	}
	p &= mask
	if b.arrived == lanes {
		b.result = 0
		if red == 'a' {
			b.result = 1
		}
	}
	switch red {
	case 'p':
		b.result += uint32(bits.OnesCount32(p))
	case 'a':
		if p != mask {
			b.result = 0
		}
	case 'o':
		if p != 0 {
			b.result = 1
		}
	}
}

// complete lets the warps of a barrier go on if all have arrived.
func (c *cta) complete(id int) {
	b := &c.barriers[id]
	expected := b.expected
	if expected == 0 {
		expected = c.alive * lanes
	}
	if b.arrived < expected {
		return
	}
	if b.arrived > expected {
		w := c.warps[firstLane(b.waiting)]
		w.fail(w.live, "%d threads at barrier %d for %d", b.arrived, id, expected)
	}
	for m := b.waiting; m != 0; m &= m - 1 {
		w := c.warps[firstLane(m)]
		w.acquire(&b.clock)
		w.state = running
		w.finishReduction(b)
	}
	clock := b.clock
	clock.reset()
	*b = barrier{clock: clock}
}

// finishReduction writes a bar.red's result where the warp waits.
func (w *warp) finishReduction(b *barrier) {
	in := &w.code[w.pc-1]
	if in.d == none {
		return
	}
	if in.imm&predicateResult != 0 {
		p := uint32(0)
		if b.result != 0 {
			p = w.live
		}
		w.pred[in.d] = w.pred[in.d]&^w.live | p
		return
	}
	for m := w.live; m != 0; m &= m - 1 {
		w.r32[in.d][firstLane(m)] = b.result
	}
}

// uniform is the value of a register that must be the same in all lanes.
func (w *warp) uniform(r int32, mask uint32, what string) uint32 {
	v := w.r32[r][firstLane(mask)]
	for m := mask; m != 0; m &= m - 1 {
		if w.r32[r][firstLane(m)] != v {
			w.fail(mask, "the %s is not the same in all lanes", what)
		}
	}
	return v
}

// waitsFor describes what a warp waits for.
func (w *warp) waitsFor() string {
	switch w.state {
	case atBarrier:
		for id := range w.cta.barriers {
			if b := &w.cta.barriers[id]; b.waiting>>w.id&1 != 0 {
				return w.cta.barrierState(id, b)
			}
		}
	case atMbarrier:
		return w.cta.mbarrierState(w)
	case atGroup:
		return " (for the other warps of its warp group)"
	}
	return ""
}

func (c *cta) barrierState(id int, b *barrier) string {
	expected := b.expected
	if expected == 0 {
		expected = c.alive * lanes
	}
	return fmt.Sprintf(" (barrier %d, %d of %d threads)", id, b.arrived, expected)
}
