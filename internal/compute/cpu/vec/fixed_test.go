package vec

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// TestFixedSums divides the terms of sums among ranks at random: the bits are those of one rank,
// and the sums those of the rational numbers, but for the rounding of each term.
func TestFixedSums(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	o := New(isa.Best())
	const width = 37
	for range 200 {
		terms, ranks := 1+r.IntN(200), 1+r.IntN(8)
		scale := math.Ldexp(1, r.IntN(30)-20) // to 512: 200 of them stay below 2^16
		x, a := make([][]float32, terms), random(r, terms, 0.5)
		exact := make([]*big.Rat, width)
		for j := range exact {
			exact[j] = new(big.Rat)
		}
		for i := range x {
			x[i] = random(r, width, scale)
			for j, v := range x[i] {
				exact[j].Add(exact[j], new(big.Rat).SetFloat64(float64(a[i])*float64(v)))
			}
		}
		one := fixedSum(o, x, a, func(int) int { return 0 }, 1, width)
		for j, v := range one {
			want, _ := exact[j].Float64()
			room := float64(terms)*math.Ldexp(1, -31) + math.Abs(want)*math.Ldexp(1, -24)
			if math.Abs(float64(v)-want) > room {
				t.Fatalf("sum of %d terms of scale %g is %g, not %g", terms, scale, v, want)
			}
		}
		many := fixedSum(o, x, a, func(int) int { return r.IntN(ranks) }, ranks, width)
		for j := range one {
			if math.Float32bits(one[j]) != math.Float32bits(many[j]) {
				t.Fatalf("%d terms of scale %g: %g on one rank, %g on %d", terms, scale, one[j],
					many[j], ranks)
			}
		}
	}
}

// fixedSum is the sum of a[i]·x[i], added on the rank that holds i and then over ranks, in float32.
func fixedSum(o *Ops, x [][]float32, a []float32, holder func(i int) int, ranks, width int,
) []float32 {
	sums := make([][]float64, ranks)
	for i := range sums {
		sums[i] = make([]float64, width)
	}
	for i := range x {
		o.FixedAxpy(sums[holder(i)], a[i], x[i], 1, 0)
	}
	high, low := make([]float32, width), make([]float32, width)
	for i := range sums {
		h, l := make([]float32, width), make([]float32, width)
		o.FixedCut(h, l, sums[i])
		o.Add(high, high, h)
		o.Add(low, low, l)
	}
	o.FixedJoin(high, low)
	return high
}

// Terms that are not finite, or beyond what is exact, are not hidden.
func TestFixedSumsOfLargeTerms(t *testing.T) {
	o := New(isa.Best())
	for _, v := range []float32{inf, -inf, float32(math.NaN())} {
		got := fixedSum(o, [][]float32{{v, 1}, {1, 1}}, []float32{1, 1},
			func(i int) int { return i }, 2, 2)
		if !(math.IsNaN(float64(got[0])) || math.IsInf(float64(got[0]), 0)) || got[1] != 2 {
			t.Errorf("%g + 1 = %g beside %g", v, got[0], got[1])
		}
	}
	for _, v := range []float32{1 << 17, 1e9, -3e30} {
		got := fixedSum(o, [][]float32{{v}, {v}}, []float32{1, 1}, func(i int) int { return i }, 2,
			1)
		if math.Abs(float64(got[0]/(2*v))-1) > 1e-6 {
			t.Errorf("%g + %g = %g", v, v, got[0])
		}
	}
}

// BenchmarkFixedAxpy is an expert's output for a row, in eight chunks.
func BenchmarkFixedAxpy(b *testing.B) {
	sum, x := make([]float64, 2048), random(rand.New(rand.NewPCG(1, 2)), 8*2048, 1)
	for _, level := range isa.All() {
		b.Run(level.String(), func(b *testing.B) {
			o := New(level)
			for b.Loop() {
				o.FixedAxpy(sum, 0.3, x, 8, 2048)
			}
		})
	}
}
