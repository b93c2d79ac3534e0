package vec

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// TestRounding rounds rows of lengths around the steps of the kernels, with numbers half-way
// between two integers, and wants of each instruction set what the definition says.
func TestRounding(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 7, 8, 31, 32, 33, 64, 100, 256} {
		for _, size := range []float32{1, 3e-3, 1e-38, 1e-44, 2e-43, 1e38} {
			x := make([]float32, n)
			for i := range x {
				x[i] = size * (2*rng.Float32() - 1)
				if i%5 == 0 {
					x[i] = size * (float32(rng.IntN(509)-254) / 254)
				}
			}
			x[rng.IntN(n)] = -size
			var most float32
			for _, v := range x {
				most = max(most, v, -v)
			}
			scale := most / 127
			want8, want4, wantE4M3 := make([]byte, n), make([]byte, n), make([]byte, n)
			factor := float32(1 / (-size / -8))
			if math.IsInf(float64(factor), 0) {
				factor = 0
			}
			for i, v := range x {
				if scale > 0 {
					q := math.RoundToEven(float64(v / scale))
					want8[i] = byte(int8(min(max(q, -127), 127)))
				}
				if few := most / 256; few > 0 { // some are too large, some denormal
					wantE4M3[i] = nearestE4M3(v / few)
				}
				want4[i] = byte(min(15, 8+math.RoundToEven(float64(float32(v*factor)))))
			}
			for _, set := range []isa.ISA{isa.Portable, isa.AVX2} {
				if !isa.Available(set) {
					continue
				}
				o, got := New(set), make([]byte, n)
				if m := math.Float32frombits(o.Largest(x)); m != most {
					t.Errorf("%v, %d of %g: the largest is %g, not %g", set, n, size, m, most)
				}
				if o.RoundInt8(got, x, scale); !bytes.Equal(got, want8) {
					t.Errorf("%v, %d of %g: bytes %d, not %d", set, n, size, got, want8)
				}
				if o.RoundE4M3(got, x, most/256); !bytes.Equal(got, wantE4M3) {
					t.Errorf("%v, %d of %g: e4m3 %x, not %x", set, n, size, got, wantE4M3)
				}
				if o.RoundInt4(got, x, factor); !bytes.Equal(got, want4) {
					t.Errorf("%v, %d of %g: codes %d, not %d", set, n, size, got, want4)
				}
				for _, v := range []float32{float32(math.Inf(-1)), float32(math.NaN())} {
					at := rng.IntN(n)
					old := x[at]
					x[at] = v
					if o.Largest(x) < 0x7f800000 {
						t.Errorf("%v: %d numbers with %v are finite", set, n, v)
					}
					x[at] = old
				}
			}
		}
	}
}

// nearestE4M3 is the code of the number nearest to v, the even one of two.
func nearestE4M3(v float32) byte {
	codes := compute.Codes{Type: compute.CodeE4M3}
	best := byte(0)
	for code := byte(1); code < 0x7f; code++ {
		far := math.Abs(math.Abs(float64(v)) - float64(codes.Number(code)))
		least := math.Abs(math.Abs(float64(v)) - float64(codes.Number(best)))
		if far < least || far == least && code&1 == 0 {
			best = code
		}
	}
	return best | byte(math.Float32bits(v)>>31)<<7
}

// TestRoundE4M3 rounds numbers of every size, those half-way between two codes among them.
func TestRoundE4M3(t *testing.T) {
	codes := compute.Codes{Type: compute.CodeE4M3}
	var x []float32
	for code := byte(0); code < 0x7e; code++ {
		a, b := codes.Number(code), codes.Number(code+1)
		half := a + (b-a)/2
		x = append(x, a, half, math.Nextafter32(half, a), math.Nextafter32(half, b), -half, -b)
	}
	x = append(x, 448, 449, 464, 1e30, -1e30, float32(math.Inf(1)), 1e-40,
		float32(math.Copysign(0, -1)))
	for _, set := range []isa.ISA{isa.Portable, isa.AVX2} {
		if !isa.Available(set) {
			continue
		}
		got := make([]byte, len(x))
		New(set).RoundE4M3(got, x, 1)
		for i, v := range x {
			if want := nearestE4M3(v); got[i] != want {
				t.Errorf("%v: %g is %#x, not %#x", set, v, got[i], want)
			}
		}
	}
}
