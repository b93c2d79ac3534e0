package vec

import "github.com/eagleray/eagleray/internal/sys/half"

// The portable kernels: the definition of every result. Sums run in 32 lanes, element i in lane i
// mod 32, joined by a fixed tree. Products are converted explicitly so that no compiler fuses them
// with an addition.

type lanes [32]float32

func (l *lanes) sum() float32 {
	var v [8]float32
	for i := range v {
		v[i] = (l[i] + l[i+8]) + (l[i+16] + l[i+24])
	}
	return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
}

func sumPortable(x []float32) float32 {
	var l lanes
	for i, v := range x {
		l[i&31] += v
	}
	return l.sum()
}

func dotPortable(a, b []float32) float32 {
	var l lanes
	b = b[:len(a)]
	for i, v := range a {
		l[i&31] += float32(v * b[i])
	}
	return l.sum()
}

func sumSqDiffPortable(x []float32, mean float32) float32 {
	var l lanes
	for i, v := range x {
		d := v - mean
		l[i&31] += float32(d * d)
	}
	return l.sum()
}

func expSumPortable(x []float32, max float32) float32 {
	var l lanes
	for i, v := range x {
		e := exp32(v - max)
		x[i] = e
		l[i&31] += e
	}
	return l.sum()
}

// greater gives b if it is greater than a, else a: a NaN in b is passed over.
func greater(a, b float32) float32 {
	if b > a {
		return b
	}
	return a
}

func maxPortable(x []float32) float32 {
	var l lanes
	for i := range l {
		l[i] = -inf
	}
	for i, v := range x {
		l[i&31] = greater(l[i&31], v)
	}
	for i := range 8 {
		l[i] = greater(greater(l[i], l[i+8]), greater(l[i+16], l[i+24]))
	}
	for n := 4; n > 0; n /= 2 {
		for i := range n {
			l[i] = greater(l[i], l[i+n])
		}
	}
	return l[0]
}

func addPortable(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func mulPortable(x, f []float32) {
	for i := range x {
		x[i] *= f[i]
	}
}

func axpyPortable(dst []float32, a float32, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += float32(a * x[i])
	}
}

func scalePortable(dst, x []float32, a float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] = x[i] * a
	}
}

func divPortable(x []float32, a float32) {
	for i := range x {
		x[i] /= a
	}
}

func scaleWeightPortable(dst, x, weight []float32, r float32) {
	x, weight = x[:len(dst)], weight[:len(dst)]
	for i := range dst {
		dst[i] = float32(x[i]*r) * weight[i]
	}
}

func affinePortable(dst, x, weight, bias []float32, mean, r float32) {
	x, weight, bias = x[:len(dst)], weight[:len(dst)], bias[:len(dst)]
	for i := range dst {
		dst[i] = float32(float32((x[i]-mean)*r)*weight[i]) + bias[i]
	}
}

func ropePortable(lo, hi, cos, sin []float32) {
	hi, cos, sin = hi[:len(lo)], cos[:len(lo)], sin[:len(lo)]
	for i, a := range lo {
		b := hi[i]
		lo[i] = float32(a*cos[i]) - float32(b*sin[i])
		hi[i] = float32(b*cos[i]) + float32(a*sin[i])
	}
}

func reluPortable(x []float32) {
	for i, v := range x {
		if v < 0 {
			x[i] = 0
		}
	}
}

func siluMulPortable(dst, gate, up []float32) {
	gate, up = gate[:len(dst)], up[:len(dst)]
	for i := range dst {
		dst[i] = silu32(gate[i]) * up[i]
	}
}

func geluErfPortable(x []float32) {
	for i, v := range x {
		x[i] = geluErf32(v)
	}
}

func toBF16Portable(dst []uint16, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] = half.ToBF16(x[i])
	}
}

func fromBF16Portable(dst []float32, x []uint16) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] = half.FromBF16(x[i])
	}
}

func toF16Portable(dst []uint16, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] = half.ToF16(x[i])
	}
}

func fromF16Portable(dst []float32, x []uint16) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] = half.FromF16(x[i])
	}
}

func addProductsPortable(dst, a, b []float32) {
	a, b = a[:len(dst)], b[:len(dst)]
	for i := range dst {
		dst[i] += float32(a[i] * b[i])
	}
}

func recurPortable(state, out, k, q, u []float32, decay float32) {
	n := len(out)
	for j, kj := range k {
		row := state[j*n : (j+1)*n]
		for i := range row {
			row[i] = float32(decay*row[i]) + float32(kj*u[i])
			out[i] += float32(q[j] * row[i])
		}
	}
}
