package vec

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// TestTanh holds GELU by a tangent, capped scores and the logistic function to their formulas in
// float64, at ordinary, tiny, huge and special values, and their bits to one instruction set's.
func TestTanh(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := []float32{0, float32(math.Copysign(0, -1)), 1e-30, -1e-30, 88, -88, 1e4, -1e4, 1e30}
	for range 1000 {
		x = append(x, float32(r.NormFloat64()*math.Pow(10, r.Float64()*3-1)))
	}
	gelu := func(v float64) float64 {
		return v / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
	}
	best, portable := New(isa.Best()), New(isa.Portable)
	for _, c := range []struct {
		name string
		do   func(o *Ops, x []float32)
		want func(v float64) float64
	}{
		{"gelu", (*Ops).GeluTanh, gelu},
		{"cap", func(o *Ops, x []float32) { o.TanhCap(x, 30) },
			func(v float64) float64 { return 30 * math.Tanh(v/30) }},
		{"sigmoid", (*Ops).Sigmoid, func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }},
	} {
		got := append([]float32(nil), x...)
		other := append([]float32(nil), x...)
		c.do(best, got)
		c.do(portable, other)
		for i, v := range got {
			want := c.want(float64(x[i]))
			if math.IsNaN(want) { // ∞-∞ in the reference alone
				want = float64(max(x[i], 0))
			}
			if e := math.Abs(float64(v) - want); e > 2e-6*max(1, math.Abs(want)) || v != v {
				t.Errorf("%s(%g) = %g, want %g", c.name, x[i], v, want)
			}
			if math.Float32bits(v) != math.Float32bits(other[i]) {
				t.Errorf("%s(%g) = %g, portable %g", c.name, x[i], v, other[i])
			}
		}
	}
	gate, up, dst := []float32{1, -2, 0}, []float32{3, 4, 5}, make([]float32, 3)
	best.GeluTanhMul(dst, gate, up)
	for i := range dst {
		if want := gelu(float64(gate[i])) * float64(up[i]); math.Abs(float64(dst[i])-want) > 1e-5 {
			t.Errorf("gelu(%g)·%g = %g, want %g", gate[i], up[i], dst[i], want)
		}
	}
}
