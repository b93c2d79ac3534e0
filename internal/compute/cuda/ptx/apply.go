package ptx

// execFunc executes an instruction in the lanes of a mask, which is not empty.
type execFunc = func(w *warp, in *inst, mask uint32)

func merge32(d, s *lanes32, mask uint32) {
	for m := mask; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		d[i] = s[i]
	}
}

func merge64(d, s *lanes64, mask uint32) {
	for m := mask; m != 0; m &= m - 1 {
		i := firstLane(m) & (lanes - 1)
		d[i] = s[i]
	}
}

func unary32(f func(d, a *lanes32)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r32[in.d], &w.r32[in.a])
			return
		}
		f(&w.tmp32[0], &w.r32[in.a])
		merge32(&w.r32[in.d], &w.tmp32[0], mask)
	}
}

func binary32(f func(d, a, b *lanes32)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r32[in.d], &w.r32[in.a], &w.r32[in.b])
			return
		}
		f(&w.tmp32[0], &w.r32[in.a], &w.r32[in.b])
		merge32(&w.r32[in.d], &w.tmp32[0], mask)
	}
}

func ternary32(f func(d, a, b, c *lanes32)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r32[in.d], &w.r32[in.a], &w.r32[in.b], &w.r32[in.c])
			return
		}
		f(&w.tmp32[0], &w.r32[in.a], &w.r32[in.b], &w.r32[in.c])
		merge32(&w.r32[in.d], &w.tmp32[0], mask)
	}
}

func unary64(f func(d, a *lanes64)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r64[in.d], &w.r64[in.a])
			return
		}
		f(&w.tmp64[0], &w.r64[in.a])
		merge64(&w.r64[in.d], &w.tmp64[0], mask)
	}
}

func binary64(f func(d, a, b *lanes64)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r64[in.d], &w.r64[in.a], &w.r64[in.b])
			return
		}
		f(&w.tmp64[0], &w.r64[in.a], &w.r64[in.b])
		merge64(&w.r64[in.d], &w.tmp64[0], mask)
	}
}

func ternary64(f func(d, a, b, c *lanes64)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		f(&w.tmp64[0], &w.r64[in.a], &w.r64[in.b], &w.r64[in.c])
		merge64(&w.r64[in.d], &w.tmp64[0], mask)
	}
}

func shift64(f func(d, a *lanes64, b *lanes32)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r64[in.d], &w.r64[in.a], &w.r32[in.b])
			return
		}
		f(&w.tmp64[0], &w.r64[in.a], &w.r32[in.b])
		merge64(&w.r64[in.d], &w.tmp64[0], mask)
	}
}

// wide32 makes 64 bits of two registers of 32.
func wide32(f func(d *lanes64, a, b *lanes32)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r64[in.d], &w.r32[in.a], &w.r32[in.b])
			return
		}
		f(&w.tmp64[0], &w.r32[in.a], &w.r32[in.b])
		merge64(&w.r64[in.d], &w.tmp64[0], mask)
	}
}

func wideAdd32(f func(d *lanes64, a, b *lanes32, c *lanes64)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r64[in.d], &w.r32[in.a], &w.r32[in.b], &w.r64[in.c])
			return
		}
		f(&w.tmp64[0], &w.r32[in.a], &w.r32[in.b], &w.r64[in.c])
		merge64(&w.r64[in.d], &w.tmp64[0], mask)
	}
}

func extend(f func(d *lanes64, a *lanes32)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r64[in.d], &w.r32[in.a])
			return
		}
		f(&w.tmp64[0], &w.r32[in.a])
		merge64(&w.r64[in.d], &w.tmp64[0], mask)
	}
}

func truncate(f func(d *lanes32, a *lanes64)) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		if mask == allLanes {
			f(&w.r32[in.d], &w.r64[in.a])
			return
		}
		f(&w.tmp32[0], &w.r64[in.a])
		merge32(&w.r32[in.d], &w.tmp32[0], mask)
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
