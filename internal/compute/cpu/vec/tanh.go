package vec

import "github.com/eagleray/eagleray/internal/compute"

// Constants of the approximation x/2·(1+tanh(√(2/π)·(x+0.044715·x³))), which is x·σ(z) with
// z = x·(a+b·x²), a = 2·√(2/π) and b = 0.044715·a.
const (
	geluTanhA float32 = 1.5957691216057308
	geluTanhB float32 = 0.071354816
)

// tanhBlock is how many elements are computed at a time, in memory of the stack.
const tanhBlock = 256

// GeluTanhMul computes dst = gelu(gate)·up by the approximation with a hyperbolic tangent; dst may
// be gate or up. x·σ(z) is silu(z)·x/z, and x/z is 1/(a+b·x²). Beyond |x| = 100 σ(z) is 0 or 1: x²
// is cut there, so that z does not overflow.
func (o *Ops) GeluTanhMul(dst, gate, up []float32) {
	var z, r [tanhBlock]float32
	for len(gate) > 0 {
		n := min(len(gate), tanhBlock)
		for i, x := range gate[:n] {
			c := geluTanhA + float32(geluTanhB*min(float32(x*x), 1e4))
			z[i], r[i] = float32(x*c), up[i]/c
		}
		o.SiluMul(dst[:n], z[:n], r[:n])
		dst, gate, up = dst[n:], gate[n:], up[n:]
	}
}

// GeluTanh replaces each element of x by its GELU, by the approximation with a hyperbolic tangent.
func (o *Ops) GeluTanh(x []float32) {
	var ones [tanhBlock]float32
	for i := range ones {
		ones[i] = 1
	}
	for len(x) > 0 {
		n := min(len(x), tanhBlock)
		o.GeluTanhMul(x[:n], x[:n], ones[:n])
		x = x[n:]
	}
}

// TanhCap replaces each element of x by limit·tanh(x/limit). With e = exp(-2·x/limit) the tangent
// is (1-e)/(1+e).
func (o *Ops) TanhCap(x []float32, limit float32) {
	const most = 80 // beyond it the tangent is -1
	var e [tanhBlock]float32
	f := -2 / limit
	for len(x) > 0 {
		n := min(len(x), tanhBlock)
		for i, v := range x[:n] {
			e[i] = min(v*f, most)
		}
		o.ExpSum(e[:n], 0)
		for i, v := range e[:n] {
			x[i] = limit * ((1 - v) / (1 + v))
		}
		x = x[n:]
	}
}

// XIELU applies compute.XIELU to each element of x.
func (o *Ops) XIELU(x []float32, a compute.XIELU) {
	var e [tanhBlock]float32
	for len(x) > 0 {
		n := min(len(x), tanhBlock)
		for i, v := range x[:n] {
			e[i] = min(v, a.Eps)
		}
		o.ExpSum(e[:n], 0)
		for i, v := range x[:n] {
			bent := float32(a.Above*v) * v
			if !(v > 0) {
				bent = a.Below * (e[i] - 1 - v)
			}
			x[i] = float32(bent) + float32(a.Beta*v)
		}
		x = x[n:]
	}
}

// Sigmoid replaces each element of x by 1/(1+exp(-x)).
func (o *Ops) Sigmoid(x []float32) {
	for i, v := range x {
		x[i] = 1 / (1 + exp32(-v))
	}
}
