package half

import (
	"math"
	"math/rand/v2"
	"testing"
)

type format struct {
	name   string
	narrow func(float32) uint16
	widen  func(uint16) float32
	inf    uint16 // pattern of +∞
	quiet  uint16 // the bit that makes a NaN quiet
	bits   int    // of the fraction
	bias   int
}

var formats = []format{
	{"bf16", ToBF16, FromBF16, 0x7f80, 0x40, 7, 127},
	{"f16", ToF16, FromF16, 0x7c00, 0x200, 10, 15},
}

// value is what a pattern below +∞ stands for, by the definition of the format.
func (f format) value(p uint16) float64 {
	exp, frac := int(p>>f.bits), float64(p&(1<<f.bits-1))/float64(int(1)<<f.bits)
	if exp == 0 {
		return math.Ldexp(frac, 1-f.bias)
	}
	return math.Ldexp(1+frac, exp-f.bias)
}

// nearest rounds a finite x by comparing its distances to the two neighbours.
func (f format) nearest(x float32) uint16 {
	sign := uint16(math.Float32bits(x) >> 16 & 0x8000)
	a := math.Abs(float64(x))
	lo, hi := uint16(0), f.inf
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		if f.value(mid) <= a {
			lo = mid
		} else {
			hi = mid
		}
	}
	// value(inf) is the number that would follow the greatest finite one.
	below, above := a-f.value(lo), f.value(hi)-a
	if below < above || below == above && lo%2 == 0 {
		return sign | lo
	}
	return sign | hi
}

// TestEveryPattern widens all 65,536 patterns of each format and narrows them again.
func TestEveryPattern(t *testing.T) {
	for _, f := range formats {
		for i := range 1 << 16 {
			p := uint16(i)
			x := f.widen(p)
			if math.Signbit(float64(x)) != (p&0x8000 != 0) {
				t.Fatalf("%s %#04x: sign of %v", f.name, p, x)
			}
			magnitude, want := p&0x7fff, p
			switch a := math.Abs(float64(x)); {
			case magnitude < f.inf && a != f.value(magnitude):
				t.Fatalf("%s %#04x widens to %v, want ±%v", f.name, p, x, f.value(magnitude))
			case magnitude == f.inf && !math.IsInf(a, 1):
				t.Fatalf("%s %#04x widens to %v, want ±Inf", f.name, p, x)
			case magnitude > f.inf:
				want |= f.quiet
				if x == x {
					t.Fatalf("%s %#04x widens to %v, want NaN", f.name, p, x)
				}
			}
			if back := f.narrow(x); back != want {
				t.Fatalf("%s %#04x widens to %v and narrows to %#04x, want %#04x", f.name, p, x,
					back, want)
			}
		}
	}
}

// TestRounding holds narrowing against a search for the nearest number: at every tie and beside it,
// at the edges of the formats, and at random.
func TestRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var cases []uint32
	around := func(x float32) {
		for d := range uint32(7) {
			cases = append(cases, math.Float32bits(x)+d-3)
		}
	}
	for _, x := range []float32{0, 1, 65504, 65519.996, 65520, 65536, 0x1p-14, 0x1p-24, 0x1p-25,
		0x1.8p-25, 0x1.000002p-25, 0x1p-126, 0x1p-149, 0x1.fffffep127, 0x1.ff7ffep127, 0x1.ffp127,
		3.3961775e38} {
		around(x)
	}
	for _, f := range formats {
		for p := range f.inf {
			around(float32((f.value(p) + f.value(p+1)) / 2))
		}
	}
	for range 20000 {
		cases = append(cases, r.Uint32(), uint32(113-12+r.IntN(46))<<23|r.Uint32()&0x7fffff,
			math.Float32bits(float32(r.NormFloat64()*math.Exp(r.NormFloat64()*6))))
	}
	for _, u := range cases {
		for _, u := range []uint32{u, u ^ 1<<31} {
			x := math.Float32frombits(u)
			if x != x || math.IsInf(float64(x), 0) {
				continue
			}
			for _, f := range formats {
				if got, want := f.narrow(x), f.nearest(x); got != want {
					t.Fatalf("%s of %x (%#08x): %#04x, want %#04x", f.name, x, u, got, want)
				}
			}
		}
	}
}

// TestNotANumber checks that sign and upper payload of a NaN survive and that it never becomes
// infinite, also where rounding would carry its payload away.
func TestNotANumber(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	cases := []uint32{0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fc00000, 0x7fbfffff}
	for range 1000 {
		cases = append(cases, 0x7f800001+r.Uint32N(0x7fffff), 0xff800001+r.Uint32N(0x7fffff))
	}
	for _, u := range cases {
		sign := uint16(u >> 16 & 0x8000)
		if got, want := ToBF16(math.Float32frombits(u)), uint16(u>>16)|0x40; got != want {
			t.Fatalf("bf16 of NaN %#08x: %#04x, want %#04x", u, got, want)
		}
		if got, want := ToF16(math.Float32frombits(u)),
			sign|0x7e00|uint16(u>>13&0x3ff); got != want {
			t.Fatalf("f16 of NaN %#08x: %#04x, want %#04x", u, got, want)
		}
	}
}

// TestDecode reads stored numbers: as many as there is room for, the bytes of each the least first.
func TestDecode(t *testing.T) {
	for _, c := range []struct {
		decode func([]float32, []byte)
		src    []byte
	}{
		{DecodeBF16, []byte{0x20, 0xc0, 0, 0x3f, 1, 2}},
		{DecodeF16, []byte{0, 0xc1, 0, 0x38, 1, 2}},
		{DecodeF32, []byte{0, 0, 0x20, 0xc0, 0, 0, 0, 0x3f, 1, 2, 3, 4}},
	} {
		got := [3]float32{2: 7}
		if c.decode(got[:2], c.src); got != [3]float32{-2.5, 0.5, 7} {
			t.Errorf("%x is %v", c.src, got)
		}
	}
}
