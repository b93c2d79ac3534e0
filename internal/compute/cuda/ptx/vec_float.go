package ptx

import "math"

func divF32(d, a, b *lanes32) {
	z, x, y := d.floats(), a.floats(), b.floats()
	for i := range z {
		z[i] = x[i] / y[i]
	}
}

func fmaF32(d, a, b, c *lanes32) {
	z, x, y, s := d.floats(), a.floats(), b.floats(), c.floats()
	for i := range z {
		z[i] = fma32(x[i], y[i], s[i])
	}
}

// minF32 and maxF32 return the other operand for a NaN, and -0 is below +0 (PTX ISA 9.7.3.11).
func minF32(d, a, b *lanes32) {
	x, y := a.floats(), b.floats()
	for i := range d {
		switch {
		case x[i] < y[i]:
			d[i] = a[i]
		case y[i] < x[i]:
			d[i] = b[i]
		default:
			d[i] = minMaxRest(a[i], b[i], true)
		}
	}
}

func maxF32(d, a, b *lanes32) {
	x, y := a.floats(), b.floats()
	for i := range d {
		switch {
		case x[i] > y[i]:
			d[i] = a[i]
		case y[i] > x[i]:
			d[i] = b[i]
		default:
			d[i] = minMaxRest(a[i], b[i], false)
		}
	}
}

// minMaxRest is the smaller or larger of two floats that are equal, or of which one is NaN.
func minMaxRest(a, b uint32, smaller bool) uint32 {
	aNaN, bNaN := a&0x7fffffff > 0x7f800000, b&0x7fffffff > 0x7f800000
	switch {
	case aNaN && bNaN:
		return float32Format.nan()
	case aNaN:
		return b
	case bNaN:
		return a
	case smaller:
		return a | b
	}
	return a & b
}

func negF32(d, a *lanes32) {
	for i := range d {
		d[i] = a[i] ^ 1<<31
	}
}

func absF32(d, a *lanes32) {
	for i := range d {
		d[i] = a[i] &^ (1 << 31)
	}
}

func bfloat2(d, hi, lo *lanes32) {
	x, y := hi.floats(), lo.floats()
	for i := range d {
		d[i] = uint32(floatToBfloat(x[i]))<<16 | uint32(floatToBfloat(y[i]))
	}
}

// function32 makes a vector function of a function of float64: its result is rounded once.
func function32(f func(float64) float64) func(d, a *lanes32) {
	return func(d, a *lanes32) {
		z, x := d.floats(), a.floats()
		for i := range z {
			z[i] = float32(f(float64(x[i])))
		}
	}
}

func reciprocal(x float64) float64     { return 1 / x }
func reciprocalRoot(x float64) float64 { return 1 / math.Sqrt(x) }

// flushed wraps a function with .ftz: subnormal operands and results become zeros.
func flushed(f func(d, a, b, c *lanes32), operands int) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		var t [3]*lanes32
		regs := [3]int32{in.a, in.b, in.c}
		for k, r := range regs[:operands] {
			t[k] = &w.tmp32[k+1]
			for i, v := range &w.r32[r] {
				t[k][i] = flush(v)
			}
		}
		out := &w.tmp32[0]
		f(out, t[0], t[1], t[2])
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			w.r32[in.d][i] = flush(out[i])
		}
	}
}

// saturated wraps an instruction with .sat.
func saturated(f execFunc) execFunc {
	return func(w *warp, in *inst, mask uint32) {
		f(w, in, mask)
		d := w.r32[in.d].floats()
		for m := mask; m != 0; m &= m - 1 {
			i := firstLane(m)
			d[i] = clamp01(d[i])
		}
	}
}
