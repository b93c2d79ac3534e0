package ptx

import (
	"math"
	"math/bits"
)

const (
	lanes    = 32
	allLanes = math.MaxUint32
	// lastPC is beyond all code.
	lastPC = math.MaxInt32
)

type (
	lanes32 [lanes]uint32
	lanes64 [lanes]uint64
)

// state is what a warp does.
type state uint8

const (
	running state = iota
	atBarrier
	atMbarrier
	atGroup // waits for the other warps of its warp group
	exited
)

// warp is 32 threads of a block. Each lane has its own place in the code, as the independent thread
// scheduling of sm_70 and later has it; the group of lanes that is furthest behind runs, so that
// lanes meet again where their ways do.
type warp struct {
	cta    *cta
	kernel *Kernel
	ops    *laneOps
	code   []inst
	id     int
	state  state

	r32  []lanes32
	r64  []lanes64
	pred []uint32

	// active are the lanes at pc; pcs has the places of all others. limit is the nearest place of
	// another group that can run: there the groups are sorted anew.
	pc, limit int32
	active    uint32
	live      uint32 // lanes that have not exited
	launched  uint32 // lanes that exist
	waiting   uint32 // lanes at a warp-synchronous instruction, for others
	pcs       [lanes]int32

	// quota are the instructions until the warp yields, budget those that are left of them, unused
	// those that were left where it stopped.
	quota, budget, unused int
	carry                 uint32 // the carry flag of each lane

	ea         lanes64 // effective addresses
	tmp32      [4]lanes32
	tmp64      [4]lanes64
	local      []byte
	localKnown initialised
	copies     []asyncCopy // in the order of issue; those from head on are under way
	head       int
	groups     [lanes]groupCount
	bulk       bulkState
	wgmma      groupMma
	suspended  uint32 // of the waiting lanes, those at mbarriers
	mma        mmaScratch
	clocks
}

// reset prepares the warp for its threads of a block: first is the linear index of lane 0.
func (w *warp) reset(threads int) {
	w.state = running
	w.live = allLanes
	if left := threads - w.id*lanes; left < lanes {
		w.live = 1<<left - 1
	}
	w.launched, w.active, w.waiting = w.live, w.live, 0
	w.pc, w.limit = 0, lastPC
	w.localKnown.reset()
	w.copies, w.head = w.copies[:0], 0
	w.groups = [lanes]groupCount{}
	w.bulk = bulkState{stores: w.bulk.stores[:0]}
	w.wgmma = groupMma{tiles: w.wgmma.tiles[:0]}
	w.suspended = 0
	w.poison()
	w.setCTASpecials()
}

// poison fills the registers that are no constants: a value that no instruction wrote is a NaN and
// an address outside all memory.
func (w *warp) poison() {
	for r := range w.r32[:w.kernel.poisoned32] {
		w.r32[r] = poison32
	}
	for r := range w.r64[:w.kernel.poisoned64] {
		w.r64[r] = poison64
	}
}

var (
	poison32 = func() (l lanes32) { fill(l[:], math.MaxUint32); return l }()
	poison64 = func() (l lanes64) { fill(l[:], math.MaxUint64); return l }()
)

// fill gives all elements the same value.
func fill[V byte | uint32 | uint64](d []V, v V) {
	for i := range d {
		d[i] = v
	}
}

// run executes up to n instructions, and stops where the warp waits or ends. It returns how many it
// executed.
func (w *warp) run(n int) int {
	w.quota, w.budget, w.unused = n, n, 0
	code := w.code
	for w.budget > 0 {
		w.budget--
		in := &code[w.pc]
		w.pc++
		mask := w.active
		if in.guard >= 0 {
			p := w.pred[in.guard]
			if in.negated {
				p = ^p
			}
			mask &= p
		}
		if mask != 0 {
			in.exec(w, in, mask)
		}
		if w.pc >= w.limit {
			w.regroup()
		}
	}
	return n - w.unused
}

// stop ends run after the instruction.
func (w *warp) stop() {
	w.unused = w.budget
	w.budget = 0
}

// park writes down where the active lanes are.
func (w *warp) park() {
	for m := w.active; m != 0; m &= m - 1 {
		w.pcs[bits.TrailingZeros32(m)] = w.pc
	}
}

// regroup makes the lanes that are furthest behind the active ones.
func (w *warp) regroup() {
	w.park()
	w.choose()
}

// choose is regroup for lanes whose places are written down.
func (w *warp) choose() {
	least, next := int32(lastPC), int32(lastPC)
	var group uint32
	for m := w.live &^ w.waiting; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m)
		switch pc := w.pcs[i]; {
		case pc < least:
			next, least = least, pc
			group = 1 << i
		case pc == least:
			group |= 1 << i
		case pc < next:
			next = pc
		}
	}
	if group == 0 {
		w.stuck()
		return
	}
	w.pc, w.active, w.limit = least, group, next
}

// stuck is where no lane can run: all have exited, or lanes wait at a warp-synchronous instruction
// for others that do not come.
func (w *warp) stuck() {
	if w.live == 0 {
		w.state = exited
		w.stop()
		w.cta.warpExited(w)
		return
	}
	if w.suspended != 0 {
		w.pc = w.pcs[bits.TrailingZeros32(w.suspended)] + 1
		w.active = 0
		w.state = atMbarrier
		w.stop()
		return
	}
	w.pc = w.pcs[bits.TrailingZeros32(w.waiting)] + 1
	w.fail(w.waiting, "deadlock in the warp: lanes %#08x wait here for lanes that do not come",
		w.waiting)
}

// execBranch moves the lanes of the mask; the others go on.
func execBranch(w *warp, in *inst, mask uint32) {
	to := int32(in.imm)
	if mask == w.active {
		w.pc = to
		return
	}
	w.park()
	for m := mask; m != 0; m &= m - 1 {
		w.pcs[bits.TrailingZeros32(m)] = to
	}
	w.choose()
}

// execBranchIndex is brx.idx: each lane has its own target. An index beyond the list is undefined
// (PTX ISA 9.7.12.4).
func execBranchIndex(w *warp, in *inst, mask uint32) {
	w.park()
	for m := mask; m != 0; m &= m - 1 {
		i := bits.TrailingZeros32(m)
		at := w.r32[in.a][i]
		if at >= uint32(len(in.ext.targets)) {
			w.failLane(i, "branch index %d of %d targets", at, len(in.ext.targets))
		}
		w.pcs[i] = in.ext.targets[at]
	}
	w.choose()
}

// execExit ends the lanes of the mask.
func execExit(w *warp, _ *inst, mask uint32) {
	w.park()
	w.cta.lanesExit(w, mask)
	w.live &^= mask
	w.choose()
}

func execTrap(w *warp, _ *inst, mask uint32) { w.fail(mask, "trap") }
