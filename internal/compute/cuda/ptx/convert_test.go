package ptx

import (
	"math"
	"math/big"
	"testing"
)

// halfValue is an f16 by the definition of the format.
func halfValue(h uint16) float64 {
	sign := 1 - 2*float64(h>>15)
	e, m := int(h>>10&31), float64(h&1023)
	switch e {
	case 0:
		return sign * m * 0x1p-24
	case 31:
		if m != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+m, e-25)
}

// nearestHalf searches all f16 for the one that is nearest, of two the even one.
func nearestHalf(x float64) uint16 {
	if x != x {
		return 0x7fff
	}
	sign := uint16(0)
	if math.Signbit(x) {
		sign, x = 0x8000, -x
	}
	if x >= 65520 {
		return sign | 0x7c00
	}
	lo, hi := 0, 0x7bff
	for lo < hi { // the largest that is not above x
		if mid := (lo + hi + 1) / 2; halfValue(uint16(mid)) <= x {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	below, above := halfValue(uint16(lo)), halfValue(uint16(lo+1))
	if lo == 0x7bff {
		above = 65536
	}
	if x-below > above-x || x-below == above-x && lo&1 == 1 {
		lo++
	}
	return sign | uint16(lo)
}

func nearestBfloat(x float64) uint16 {
	if x != x {
		return 0x7fff
	}
	f := float32(x) // the tests' values are exact in float32
	b := math.Float32bits(f)
	rest := b & 0xffff
	b >>= 16
	if rest > 0x8000 || rest == 0x8000 && b&1 == 1 {
		b++
	}
	return uint16(b)
}

func bfloatValue(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }

func TestConversions(t *testing.T) {
	runSnippets(t, []snippet{
		{"cvt.s64.s32 %D, %a;", true, func(l lane) uint64 { return uint64(int64(int32(l.a()))) }},
		{"cvt.u64.u32 %D, %a;", true, func(l lane) uint64 { return uint64(l.a()) }},
		{"cvt.u32.u64 %d, %A;", false, func(l lane) uint64 { return uint64(l.a()) }},
		{"cvt.s32.s8 %d, %a;", false, func(l lane) uint64 { return uint64(uint32(int8(l.a()))) }},
		{"cvt.u32.u16 %d, %h;", false, func(l lane) uint64 { return l.A & 0xffff }},
		{"cvt.s64.s16 %D, %h;", true, func(l lane) uint64 { return uint64(int64(int16(l.A))) }},
		{"{.reg .b16 %z; cvt.u16.u32 %z, %a; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			return l.A & 0xffff
		}},
		{"{.reg .b16 %z; cvt.s16.s8 %z, %h; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			return uint64(uint16(int8(l.A)))
		}},
		{"cvt.sat.s8.s32 %d, %a;", false, func(l lane) uint64 {
			return uint64(uint32(max(-128, min(127, int32(l.a())))))
		}},
		{"cvt.sat.u8.s32 %d, %a;", false, func(l lane) uint64 {
			return uint64(max(0, min(255, int32(l.a()))))
		}},
		{"cvt.rn.f32.s32 %d, %a;", false, func(l lane) uint64 {
			return uint64(math.Float32bits(float32(int32(l.a()))))
		}},
		{"cvt.rn.f32.u64 %d, %A;", false, func(l lane) uint64 {
			f, _ := new(big.Float).SetUint64(l.A).Float32()
			return uint64(math.Float32bits(f))
		}},
		{"cvt.rn.f32.s64 %d, %A;", false, func(l lane) uint64 {
			f, _ := new(big.Float).SetInt64(int64(l.A)).Float32()
			return uint64(math.Float32bits(f))
		}},
		{"cvt.rn.f64.u64 %D, %A;", true, func(l lane) uint64 {
			f, _ := new(big.Float).SetUint64(l.A).Float64()
			return math.Float64bits(f)
		}},
		{"cvt.rn.f64.s64 %D, %A;", true, func(l lane) uint64 {
			f, _ := new(big.Float).SetInt64(int64(l.A)).Float64()
			return math.Float64bits(f)
		}},
		{"cvt.rz.f32.u32 %d, %a;", false, func(l lane) uint64 {
			x := new(big.Float).SetPrec(24).SetMode(big.ToZero)
			f, _ := x.SetUint64(uint64(l.a())).Float32()
			return uint64(math.Float32bits(f))
		}},
		{"cvt.rzi.s32.f32 %d, %a;", false, floatToInt(math.Trunc)},
		{"cvt.rni.s32.f32 %d, %a;", false, floatToInt(math.RoundToEven)},
		{"cvt.rmi.s32.f32 %d, %a;", false, floatToInt(math.Floor)},
		{"cvt.rpi.s32.f32 %d, %a;", false, floatToInt(math.Ceil)},
		{"cvt.rzi.u32.f32 %d, %a;", false, func(l lane) uint64 {
			x := float64(math.Float32frombits(l.a()))
			switch {
			case !(x > 0):
				return 0
			case x >= 1<<32:
				return 0xffffffff
			}
			return uint64(x)
		}},
		{"cvt.rmi.f32.f32 %d, %a;" + canonicalNaN, false, f32(func(a, _, _ float32) float32 {
			return float32(math.Floor(float64(a)))
		})},
		{"cvt.sat.f32.f32 %d, %a;", false, f32(func(a, _, _ float32) float32 {
			if !(a > 0) {
				return 0
			}
			return min(a, 1)
		})},
		{"cvt.rn.f32.f64 %d, %A;" + canonicalNaN, false, func(l lane) uint64 {
			return uint64(canonical(float32(math.Float64frombits(l.A))))
		}},
		{"cvt.f64.f32 %D, %a;" + canonical64, true, func(l lane) uint64 {
			x := float64(math.Float32frombits(l.a()))
			if x != x {
				return math.MaxInt64
			}
			return math.Float64bits(x)
		}},
		{"{.reg .b16 %z; cvt.rn.f16.f32 %z, %a; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			return uint64(nearestHalf(float64(math.Float32frombits(l.a()))))
		}},
		{"{.reg .b16 %z; cvt.rn.bf16.f32 %z, %a; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			return uint64(nearestBfloat(float64(math.Float32frombits(l.a()))))
		}},
		{"cvt.rn.bf16x2.f32 %d, %a, %b;", false, func(l lane) uint64 {
			return uint64(nearestBfloat(float64(math.Float32frombits(l.a()))))<<16 |
				uint64(nearestBfloat(float64(math.Float32frombits(l.b()))))
		}},
		{"cvt.rn.f16x2.f32 %d, %a, %b;", false, func(l lane) uint64 {
			return uint64(nearestHalf(float64(math.Float32frombits(l.a()))))<<16 |
				uint64(nearestHalf(float64(math.Float32frombits(l.b()))))
		}},
		{"cvt.f32.f16 %d, %h;" + canonicalNaN, false, func(l lane) uint64 {
			return uint64(canonical(float32(halfValue(uint16(l.A)))))
		}},
		{"cvt.f32.bf16 %d, %h;" + canonicalNaN, false, func(l lane) uint64 {
			return uint64(canonical(float32(bfloatValue(uint16(l.A)))))
		}},
		{"cvt.rna.tf32.f32 %d, %a; and.b32 %d, %d, 0xffffe000;", false, func(l lane) uint64 {
			if a := l.a(); a&0x7fffffff > 0x7f800000 {
				return 0x7fffe000
			}
			return uint64(l.a()+0x1000) & 0xffffe000
		}},
		{"{.reg .b16 %z; cvt.rn.satfinite.e4m3x2.f32 %z, %a, %b; cvt.u32.u16 %d, %z;}", false,
			func(l lane) uint64 {
				return uint64(nearestE4M3(math.Float32frombits(l.a())))<<8 |
					uint64(nearestE4M3(math.Float32frombits(l.b())))
			}},
		{"cvt.rn.f16x2.e4m3x2 %d, %h;", false, func(l lane) uint64 {
			return uint64(nearestHalf(e4m3Value(byte(l.A>>8))))<<16 |
				uint64(nearestHalf(e4m3Value(byte(l.A))))
		}},
	})
}

func floatToInt(round func(float64) float64) func(lane) uint64 {
	return func(l lane) uint64 {
		x := round(float64(math.Float32frombits(l.a())))
		switch {
		case x != x:
			return 0
		case x >= 1<<31:
			return 1<<31 - 1
		case x < -1<<31:
			return 1 << 31
		}
		return uint64(uint32(int32(x)))
	}
}

func e4m3Value(b byte) float64 {
	sign := 1 - 2*float64(b>>7)
	e, m := int(b>>3&15), float64(b&7)
	switch {
	case b&0x7f == 0x7f:
		return math.NaN()
	case e == 0:
		return sign * m / 512
	}
	return sign * math.Ldexp(8+m, e-10)
}

func nearestE4M3(x float32) byte {
	if x != x {
		return 0x7f
	}
	best, least := byte(0), math.Inf(1)
	for b := byte(0); b < 0x7f; b++ {
		d := math.Abs(e4m3Value(b) - math.Min(448, math.Abs(float64(x))))
		if d < least || d == least && b&1 == 0 {
			best, least = b, d
		}
	}
	if math.Signbit(float64(x)) {
		best |= 0x80
	}
	return best
}

func TestHalves(t *testing.T) {
	half := func(f func(a, b, c float64) float64) func(lane) uint64 {
		return func(l lane) uint64 {
			var r uint64
			for k := range 2 {
				x := f(halfValue(uint16(l.A>>(16*k))), halfValue(uint16(l.B>>(16*k))),
					halfValue(uint16(l.C>>(16*k))))
				r |= uint64(nearestHalf(x)) << (16 * k)
			}
			return r
		}
	}
	runSnippets(t, []snippet{
		{"add.rn.f16x2 %d, %a, %b;", false, half(func(a, b, _ float64) float64 { return a + b })},
		{"mul.f16x2 %d, %a, %b;", false, half(func(a, b, _ float64) float64 { return a * b })},
		{"{.reg .b16 %z; sub.f16 %z, %h, %i; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			return uint64(nearestHalf(halfValue(uint16(l.A)) - halfValue(uint16(l.B))))
		}},
		{"neg.f16x2 %d, %a;", false, func(l lane) uint64 { return uint64(l.a() ^ 0x80008000) }},
		{"abs.bf16x2 %d, %a;", false, func(l lane) uint64 { return uint64(l.a() &^ 0x80008000) }},
		{"{.reg .b16 %z; max.bf16 %z, %h, %i; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			a, b := bfloatValue(uint16(l.A)), bfloatValue(uint16(l.B))
			return uint64(nearestBfloat(float64(pick(float32(a), float32(b), false))))
		}},
		{"{.reg .b16 %z; mul.rn.bf16 %z, %h, %i; cvt.u32.u16 %d, %z;}", false, func(l lane) uint64 {
			p := bfloatValue(uint16(l.A)) * bfloatValue(uint16(l.B))
			if a := math.Abs(p); a != 0 && a < 0x1p-120 { // not exact in float32: by the format
				return uint64(bfloatFormat.encode(p, nearest, false))
			}
			return uint64(nearestBfloat(p))
		}},
		{"setp.lt.f16 %p, %h, %i; selp.b32 %d, 1, 0, %p;", false, func(l lane) uint64 {
			return bit(halfValue(uint16(l.A)) < halfValue(uint16(l.B)))
		}},
	})
}
