package gemm

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// nearest16 rounds by comparing the distances to the two neighbours, given a decoder of a 16-bit
// format whose patterns are ordered.
func nearest16(f float32, decode func(uint16) float32, inf uint16) uint16 {
	sign := uint16(math.Float32bits(f) >> 16 & 0x8000)
	a := math.Abs(float64(f))
	lo, hi := uint16(0), inf
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if float64(decode(mid)) <= a {
			lo = mid
		} else {
			hi = mid
		}
	}
	upper := float64(decode(hi))
	if hi == inf { // the value that would follow the largest finite one
		upper = 2*float64(decode(inf-1)) - float64(decode(inf-2))
	}
	below, above := a-float64(decode(lo)), upper-a
	if below < above || below == above && lo%2 == 0 {
		return sign | lo
	}
	return sign | hi
}

func TestRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var cases []uint32
	for _, edge := range []float32{0, 1, 65504, 65519.996, 65520, 65536, 0x1p-14, 0x1p-24, 0x1p-25, 0x1.8p-25,
		0x1.000002p-25, 0x1p-126, 0x1p-149, 0x1.fffffep127, 0x1.ff7ffep127, 0x1.ffp127} {
		for d := range uint32(7) {
			cases = append(cases, math.Float32bits(edge)+d-3)
		}
	}
	for range 20000 {
		cases = append(cases, r.Uint32(), uint32(113-12+r.IntN(46))<<23|r.Uint32()&0x7fffff, r.Uint32()&^0xfff|0x1000)
	}
	for _, u := range cases {
		for _, u := range []uint32{u, u ^ 1<<31} {
			f := math.Float32frombits(u)
			if f != f || math.IsInf(float64(f), 0) {
				continue
			}
			if got, want := floatToHalf(f), nearest16(f, halfToFloat, 0x7c00); got != want {
				t.Fatalf("floatToHalf(%x) = %#x, want %#x", f, got, want)
			}
			if got, want := floatToBF16(f), nearest16(f, bf16ToFloat, 0x7f80); got != want {
				t.Fatalf("floatToBF16(%x) = %#x, want %#x", f, got, want)
			}
		}
	}
}

func TestEvery16BitPattern(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		f := halfToFloat(h)
		exp, frac := int(h>>10&31), float64(h&0x3ff)
		want := math.Ldexp(frac/1024, -14)
		if exp > 0 {
			want = math.Ldexp(1+frac/1024, exp-15)
		}
		if exp == 31 {
			want = math.Inf(1)
			if frac != 0 {
				want = math.NaN()
			}
		}
		if math.Signbit(float64(f)) != (h>>15 != 0) || !same(float32(math.Abs(float64(f))), float32(want)) {
			t.Fatalf("halfToFloat(%#x) = %v, want ±%v", h, f, want)
		}
		if back := floatToHalf(f); f == f && back != h || f != f && back&0x7fff <= 0x7c00 {
			t.Fatalf("floatToHalf(%v) = %#x, want %#x", f, back, h)
		}
		b := bf16ToFloat(h)
		if back := floatToBF16(b); b == b && back != h || b != b && back&0x7fff <= 0x7f80 {
			t.Fatalf("floatToBF16(%v) = %#x, want %#x", b, back, h)
		}
	}
}

// The vector conversions agree with the Go ones.
func TestVectorConversions(t *testing.T) {
	if !isa.Available(isa.AVX2) {
		t.Skip("this machine has no AVX2")
	}
	r := rand.New(rand.NewPCG(2, 2))
	src := make([]float32, 4096+5)
	for i := range src {
		src[i] = math.Float32frombits(r.Uint32())
		if i%8 == 0 { // ties, infinities, NaNs whose payload rounding would carry away
			src[i] = math.Float32frombits([]uint32{0x3f808000, 0x3f818000, 0x7f800000, 0xff800000, 0x7f800001, 0xffffffff, 0x7f7fffff, 0x80000001}[i/8%8])
		}
	}
	got, want := make([]uint16, len(src)), make([]uint16, len(src))
	roundRow(got, src)
	roundRowPortable(want, src)
	for i := range src {
		if got[i] != want[i] {
			t.Fatalf("bf16 of %x: %#x, want %#x", math.Float32bits(src[i]), got[i], want[i])
		}
	}
	// Every finite binary16 as a weight, times one.
	data := make([]byte, 2<<16)
	for i := range 1 << 16 {
		data[2*i], data[2*i+1] = byte(i), byte(i>>8)
	}
	m := mustPack(t, nil, Options{Kind: F16, Chunks: 1, ISA: isa.Best()}, Source{Kind: F16, Data: data, Rows: 1 << 16, Cols: 1, RowHi: 1 << 16, ColHi: 1})
	var s Scratch
	dst := make([]float32, 1<<16)
	m.Mul(nil, &s, dst, 1<<16, []float32{1}, 1, 1, nil)
	for i, v := range dst {
		want := halfToFloat(uint16(i))
		if i == 0x8000 {
			want = 0 // 0 + 1·(-0)
		}
		if !same(v, want) {
			t.Fatalf("binary16 %#x: %v, want %v", i, v, want)
		}
	}
}
