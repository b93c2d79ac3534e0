package ptx

import "math/bits"

// syncKind is how much of the warp has to be at an instruction.
type syncKind uint8

const (
	// bySync waits for the lanes of its member mask.
	bySync syncKind = iota
	// byLive waits for all lanes that have not exited.
	byLive
	// byAligned is .aligned: all lanes that have not exited run it together, and none may be
	// elsewhere.
	byAligned
	// byWhole is .aligned in a warp of which no lane has exited (mma, ldmatrix).
	byWhole
)

// join has lanes wait at the instruction until all of members are there. It returns the lanes that
// execute it, and whether they are complete: if not, the caller returns at once. members of bySync
// must contain mask.
func (w *warp) join(kind syncKind, mask, members uint32) (uint32, bool) {
	switch kind {
	case byWhole:
		if w.live != w.launched || w.live != allLanes {
			w.fail(mask, "lanes %#08x have exited or never were: .aligned wants the whole warp",
				^w.live)
		}
		fallthrough
	case byAligned:
		if mask != w.live {
			w.fail(mask, ".aligned instruction reached by lanes %#08x of %#08x", mask, w.live)
		}
		w.synced = w.seq
		return mask, true
	case byLive:
		members = w.live
	}
	members &= w.live
	if members&^mask == 0 {
		w.synced = w.seq
		return mask, true
	}
	return w.meet(mask, members)
}

// meet is join where lanes are missing.
func (w *warp) meet(mask, members uint32) (uint32, bool) {
	at := w.pc - 1
	present := mask
	for m := w.waiting & members; m != 0; m &= m - 1 {
		if i := bits.TrailingZeros32(m); w.pcs[i] == at {
			present |= 1 << i
		}
	}
	w.park() // lanes without the guard are past it
	for m := present; m != 0; m &= m - 1 {
		w.pcs[bits.TrailingZeros32(m)] = at
	}
	if members&^present != 0 {
		w.waiting |= present
		w.choose()
		return 0, false
	}
	w.waiting &^= present
	w.synced = w.seq
	// All lanes there run it; those that are elsewhere stay where they are.
	for m := present; m != 0; m &= m - 1 {
		w.pcs[bits.TrailingZeros32(m)] = at + 1
	}
	w.choose()
	return present, true
}
