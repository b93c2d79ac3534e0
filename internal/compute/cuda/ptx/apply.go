package ptx

import "unsafe"

// execFunc executes an instruction in the lanes of a mask, which is not empty.
type execFunc = func(w *warp, in *inst, mask uint32)

// narrow says that registers of a type have 32 bits.
func narrow[V vector]() bool { return unsafe.Sizeof(*new(V)) == unsafe.Sizeof(lanes32{}) }

// merge copies the lanes of the mask.
func merge[V vector](d, s *V, mask uint32) {
	if narrow[V]() {
		mergeLanes(as[uint32](d), as[uint32](s), mask)
	} else {
		mergeLanes(as[uint64](d), as[uint64](s), mask)
	}
}

func mergeLanes[T integer](d, s *[lanes]T, mask uint32) {
	for m := mask; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		d[i] = s[i]
	}
}

// reg is a register of a warp.
func reg[V vector](w *warp, r int32) *V {
	if narrow[V]() {
		return (*V)(unsafe.Pointer(&w.r32[r]))
	}
	return (*V)(unsafe.Pointer(&w.r64[r]))
}

// spare is where results are made of which a warp takes some lanes.
func spare[V vector](w *warp) *V {
	if narrow[V]() {
		return (*V)(unsafe.Pointer(&w.tmp32[0]))
	}
	return (*V)(unsafe.Pointer(&w.tmp64[0]))
}

func apply1[D, A vector](f func(d *D, a *A)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(reg[D](w, in.d), reg[A](w, in.a))
			return
		}
		f(spare[D](w), reg[A](w, in.a))
		merge(reg[D](w, in.d), spare[D](w), mask)
	}
}

func apply2[D, A, B vector](f func(d *D, a *A, b *B)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(reg[D](w, in.d), reg[A](w, in.a), reg[B](w, in.b))
			return
		}
		f(spare[D](w), reg[A](w, in.a), reg[B](w, in.b))
		merge(reg[D](w, in.d), spare[D](w), mask)
	}
}

func apply3[D, A, B, C vector](f func(d *D, a *A, b *B, c *C)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(reg[D](w, in.d), reg[A](w, in.a), reg[B](w, in.b), reg[C](w, in.c))
			return
		}
		f(spare[D](w), reg[A](w, in.a), reg[B](w, in.b), reg[C](w, in.c))
		merge(reg[D](w, in.d), spare[D](w), mask)
	}
}

// value reads a register of either bank in a lane.
func (w *warp) value(b bank, r int32, lane int) uint64 {
	switch b {
	case bank64:
		return w.r64[r][lane]
	case bankPred:
		return uint64(w.pred[r] >> lane & 1)
	}
	return uint64(w.r32[r][lane])
}

// setValue writes a register of either bank in a lane.
func (w *warp) setValue(b bank, r int32, lane int, v uint64) {
	switch b {
	case bank64:
		w.r64[r][lane] = v
	case bankPred:
		w.pred[r] = w.pred[r]&^(1<<lane) | uint32(v&1)<<lane
	default:
		w.r32[r][lane] = uint32(v)
	}
}

// operands are the banks of an instruction's registers.
type operands struct{ d, a, b, c bank }

// perLane makes an instruction of a function of one lane's values; it is slower than functions of
// all lanes, and serves what is rare. Operands that are not used have the register none.
func perLane(o operands, f func(a, b, c uint64) uint64) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			var a, b, c uint64
			a = w.value(o.a, in.a, i)
			if in.b >= 0 {
				b = w.value(o.b, in.b, i)
			}
			if in.c >= 0 {
				c = w.value(o.c, in.c, i)
			}
			w.setValue(o.d, in.d, i, f(a, b, c))
		}
	}
}
