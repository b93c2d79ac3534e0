package half

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// TestFinite puts each kind of number in each place of texts of all lengths up to some words, and
// compares with what math says of it.
func TestFinite(t *testing.T) {
	patterns := func(bits int) []uint32 {
		var list []uint32
		for _, x := range []float64{0, 1, -1, 1e-45, 65504, -65504, 3e38, math.MaxFloat32,
			-math.MaxFloat32, math.Inf(1), math.Inf(-1), math.NaN()} {
			f := float32(x)
			switch bits {
			case 32:
				list = append(list, math.Float32bits(f))
			case 16:
				list = append(list, uint32(ToBF16(f)), uint32(ToF16(f)))
			}
		}
		for range 200 {
			list = append(list, rand.Uint32()>>(32-bits))
		}
		return list
	}
	bad := func(x float64) bool { return math.IsInf(x, 0) || math.IsNaN(x) }
	for _, c := range []struct {
		name   string
		size   int
		finite func([]byte) bool
		value  func(uint32) float64
	}{
		{"BF16", 2, FiniteBF16,
			func(p uint32) float64 { return float64(math.Float32frombits(p << 16)) }},
		{"F16", 2, FiniteF16, func(p uint32) float64 { return float64(FromF16(uint16(p))) }},
		{"F32", 4, FiniteF32, func(p uint32) float64 { return float64(math.Float32frombits(p)) }},
	} {
		for _, p := range patterns(8 * c.size) {
			for n := 1; n < 24; n++ {
				at := rand.IntN(n)
				b := make([]byte, n*c.size)
				for i := range n { // the largest that are sound beside it
					if c.name == "F16" {
						binary.LittleEndian.PutUint16(b[2*i:], 0xfbff)
					} else if c.size == 2 {
						binary.LittleEndian.PutUint16(b[2*i:], 0xff7f)
					} else {
						binary.LittleEndian.PutUint32(b[4*i:], 0xff7fffff)
					}
				}
				if c.size == 2 {
					binary.LittleEndian.PutUint16(b[2*at:], uint16(p))
				} else {
					binary.LittleEndian.PutUint32(b[4*at:], p)
				}
				if got, want := c.finite(b), !bad(c.value(p)); got != want {
					t.Fatalf("%s %#x at %d of %d: finite %v, want %v", c.name, p, at, n, got, want)
				}
				if c.size == 4 {
					v := make([]float32, n)
					v[at] = math.Float32frombits(p)
					if AllFinite(v) == bad(float64(v[at])) {
						t.Fatalf("%v: finite %v", v[at], AllFinite(v))
					}
				}
			}
		}
	}
}

func BenchmarkFiniteBF16(b *testing.B) {
	data := make([]byte, 256<<10)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if !FiniteBF16(data) {
			b.Fatal("zeros")
		}
	}
}
