package ptx

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func f32(f func(a, b, c float32) float32) func(lane) uint64 {
	return func(l lane) uint64 {
		return uint64(canonical(f(math.Float32frombits(l.a()), math.Float32frombits(l.b()),
			math.Float32frombits(l.c()))))
	}
}

// canonical has one NaN; snippets end in canonicalNaN where results may be others.
func canonical(x float32) uint32 {
	if x != x {
		return 0x7fffffff
	}
	return math.Float32bits(x)
}

const canonicalNaN = " setp.nan.f32 %p, %d, %d; @%p mov.b32 %d, 0x7fffffff;"

// exact32 rounds an exact sum of products to float32, by big floats.
func exact32(a, b, c float32, mode big.RoundingMode) float32 {
	for _, x := range []float32{a, b, c} {
		if x != x || math.IsInf(float64(x), 0) {
			return float32(math.FMA(float64(a), float64(b), float64(c)))
		}
	}
	x := new(big.Float).SetPrec(600).SetFloat64(float64(a))
	x.Mul(x, new(big.Float).SetPrec(600).SetFloat64(float64(b)))
	x.Add(x, new(big.Float).SetPrec(600).SetFloat64(float64(c)))
	if x.Sign() == 0 {
		return float32(float64(a)*float64(b) + float64(c))
	}
	// big.Float has no subnormal numbers: the precision is what is left of the mantissa.
	prec := min(24, max(0, x.MantExp(nil)+149))
	if prec == 0 {
		least := math.Float32frombits(1)
		switch {
		case mode == big.ToPositiveInf && x.Sign() > 0:
			return least
		case mode == big.ToNegativeInf && x.Sign() < 0:
			return -least
		case mode == big.ToNearestEven && new(big.Float).Abs(x).Cmp(big.NewFloat(float64(least)/2)) > 0:
			return float32(math.Copysign(float64(least), float64(x.Sign())))
		}
		return float32(math.Copysign(0, float64(x.Sign())))
	}
	y := new(big.Float).SetMode(mode).SetPrec(uint(prec)).Set(x)
	f, _ := y.Float64()
	if limit := float64(math.MaxFloat32); math.Abs(f) > limit &&
		(mode == big.ToZero || mode == big.ToNegativeInf && f > 0 || mode == big.ToPositiveInf && f < 0) {
		return float32(math.Copysign(limit, f))
	}
	return float32(f)
}

func TestFloats(t *testing.T) {
	runSnippets(t, []snippet{
		{"add.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 { return a + b })},
		{"sub.rn.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 { return a - b })},
		{"mul.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 { return a * b })},
		{"div.rn.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 { return a / b })},
		{"fma.rn.f32 %d, %a, %b, %c;" + canonicalNaN, false, f32(func(a, b, c float32) float32 {
			return exact32(a, b, c, big.ToNearestEven)
		})},
		{"fma.rz.f32 %d, %a, %b, %c;" + canonicalNaN, false, f32(func(a, b, c float32) float32 {
			return exact32(a, b, c, big.ToZero)
		})},
		{"fma.rm.f32 %d, %a, %b, %c;" + canonicalNaN, false, f32(func(a, b, c float32) float32 {
			return exact32(a, b, c, big.ToNegativeInf)
		})},
		{"add.rp.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 {
			return exact32(a, 1, b, big.ToPositiveInf)
		})},
		{"mul.rz.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 {
			return exact32(a, b, float32(math.Copysign(0, float64(a)*float64(b))), big.ToZero)
		})},
		{"add.ftz.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 {
			return flushFloat(flushFloat(a) + flushFloat(b))
		})},
		{"mul.sat.f32 %d, %a, %b;", false, f32(func(a, b, _ float32) float32 {
			p := a * b
			if !(p > 0) {
				return 0
			}
			return min(1, p)
		})},
		{"min.f32 %d, %a, %b;", false, f32(func(a, b, _ float32) float32 { return pick(a, b, true) })},
		{"max.f32 %d, %a, %b;", false, f32(func(a, b, _ float32) float32 { return pick(a, b, false) })},
		{"max.NaN.f32 %d, %a, %b;", false, f32(func(a, b, _ float32) float32 { return max(a, b) })},
		{"neg.f32 %d, %a;", false, func(l lane) uint64 { return uint64(l.a() ^ 1<<31) }},
		{"abs.f32 %d, %a;", false, func(l lane) uint64 { return uint64(l.a() &^ (1 << 31)) }},
		{"rcp.rn.f32 %d, %a;" + canonicalNaN, false, f32(func(a, _, _ float32) float32 { return 1 / a })},
		{"sqrt.rn.f32 %d, %a;" + canonicalNaN, false, f32(func(a, _, _ float32) float32 {
			return float32(math.Sqrt(float64(a)))
		})},
		{"ex2.approx.ftz.f32 %d, %a;" + canonicalNaN, false, f32(func(a, _, _ float32) float32 {
			return flushFloat(float32(math.Exp2(float64(flushFloat(a)))))
		})},
		{"lg2.approx.f32 %d, %a;" + canonicalNaN, false, f32(func(a, _, _ float32) float32 {
			return float32(math.Log2(float64(a)))
		})},
		{"tanh.approx.f32 %d, %a;" + canonicalNaN, false, f32(func(a, _, _ float32) float32 {
			return float32(math.Tanh(float64(a)))
		})},
		{"copysign.f32 %d, %a, %b;", false, func(l lane) uint64 {
			return uint64(l.a()&(1<<31) | l.b()&^(1<<31))
		}},
		{"testp.subnormal.f32 %p, %a; selp.b32 %d, 1, 0, %p;", false, func(l lane) uint64 {
			return bit(l.a()&0x7f800000 == 0 && l.a()<<1 != 0)
		}},
		{"setp.lt.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, compared(func(a, b float32) bool {
			return a < b
		})},
		{"setp.gtu.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, compared(func(a, b float32) bool {
			return !(a <= b)
		})},
		{"setp.ne.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, compared(func(a, b float32) bool {
			return a < b || a > b
		})},
		{"setp.equ.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, compared(func(a, b float32) bool {
			return !(a < b || a > b)
		})},
		{"setp.num.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, compared(func(a, b float32) bool {
			return a == a && b == b
		})},
		{"setp.eq.ftz.f32 %p, %a, 0f00000000; selp.b32 %d, 1, 0, %p;", false,
			func(l lane) uint64 { return bit(l.a()&0x7f800000 == 0) }},
		{"fma.rn.f64 %D, %A, %B, %C;" + canonical64, true, f64(math.FMA)},
		{"add.f64 %D, %A, %B;" + canonical64, true, f64(func(a, b, _ float64) float64 { return a + b })},
		{"div.rn.f64 %D, %A, %B;" + canonical64, true, f64(func(a, b, _ float64) float64 { return a / b })},
		{"setp.lt.f64 %p, %A, %B; selp.b32 %d, 1, 0, %p;", false, func(l lane) uint64 {
			return bit(math.Float64frombits(l.A) < math.Float64frombits(l.B))
		}},
	})
}

const canonical64 = " setp.nan.f64 %p, %D, %D; @%p mov.b64 %D, 0x7fffffffffffffff;"

func f64(f func(a, b, c float64) float64) func(lane) uint64 {
	return func(l lane) uint64 {
		x := f(math.Float64frombits(l.A), math.Float64frombits(l.B), math.Float64frombits(l.C))
		if x != x {
			return math.MaxInt64
		}
		return math.Float64bits(x)
	}
}

func compared(f func(a, b float32) bool) func(lane) uint64 {
	return func(l lane) uint64 {
		return bit(f(math.Float32frombits(l.a()), math.Float32frombits(l.b())))
	}
}

func flushFloat(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

// pick is the smaller or larger one, and a number rather than a NaN.
func pick(a, b float32, smaller bool) float32 {
	switch {
	case a != a:
		return b
	case b != b:
		return a
	case smaller:
		return min(a, b)
	}
	return max(a, b)
}

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
		{"cvt.rz.f32.u32 %d, %a;", false, func(l lane) uint64 {
			f, _ := new(big.Float).SetPrec(24).SetMode(big.ToZero).SetUint64(uint64(l.a())).Float32()
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

// TestFMA compares all ways to round a*b+c once with big floats, where rounding twice would differ.
func TestFMA(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	ops := []*laneOps{portableOps()}
	if host := hostOps(); host != nil {
		ops = append(ops, host)
	}
	for range 4000 {
		var a, b, c, d lanes32
		for i := range lanes {
			a[i] = 0x3f800000 | r.Uint32N(1<<23)
			b[i] = 0x3f800000 | r.Uint32N(1<<23)
			// c is far below the product's last bits, or of its size.
			c[i] = uint32(r.IntN(150))<<23 | r.Uint32N(1<<23) | r.Uint32N(2)<<31
			if i%4 == 0 {
				a[i], b[i] = a[i]&^0xfff, b[i]&^0x7ff // halfway cases
			}
		}
		for _, o := range ops {
			o.fma(&d, &a, &b, &c)
			for i := range lanes {
				want := exact32(math.Float32frombits(a[i]), math.Float32frombits(b[i]),
					math.Float32frombits(c[i]), big.ToNearestEven)
				if d[i] != math.Float32bits(want) {
					t.Fatalf("fma of %#x %#x %#x: %#x, want %#x", a[i], b[i], c[i], d[i],
						math.Float32bits(want))
				}
			}
		}
	}
}

// TestHostOps compares the host's vector instructions with the portable functions.
func TestHostOps(t *testing.T) {
	host := hostOps()
	if host == nil {
		t.Skip("this machine has no vector instructions that are used")
	}
	portable := portableOps()
	for round := range 200 {
		in := inputs(round)
		var a, b, want, got lanes32
		for i, l := range in {
			a[i], b[i] = l.a(), l.b()
		}
		for name, f := range host.ints {
			portable.ints[name](&want, &a, &b)
			if f(&got, &a, &b); got != want {
				t.Errorf("%s: %x, want %x", name, got, want)
			}
		}
		for name, f := range host.floats {
			portable.floats[name](&want, &a, &b)
			f(&got, &a, &b)
			for i := range got {
				if got[i] != want[i] && !(isNaN32(got[i]) && isNaN32(want[i])) {
					t.Errorf("%s of %#x and %#x: %#x, want %#x", name, a[i], b[i], got[i], want[i])
				}
			}
		}
		for _, c := range [][2]map[string]func(a, b *lanes32) uint32{{host.signed, portable.signed},
			{host.unsigned, portable.unsigned}, {host.compare, portable.compare}} {
			for name, f := range c[0] {
				if got, want := f(&a, &b), c[1][name](&a, &b); got != want {
					t.Errorf("%s: %#x, want %#x", name, got, want)
				}
			}
		}
	}
}
