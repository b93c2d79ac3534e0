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
		case mode == big.ToNearestEven &&
			new(big.Float).Abs(x).Cmp(big.NewFloat(float64(least)/2)) > 0:
			return float32(math.Copysign(float64(least), float64(x.Sign())))
		}
		return float32(math.Copysign(0, float64(x.Sign())))
	}
	y := new(big.Float).SetMode(mode).SetPrec(uint(prec)).Set(x)
	f, _ := y.Float64()
	if limit := float64(math.MaxFloat32); math.Abs(f) > limit &&
		(mode == big.ToZero || mode == big.ToNegativeInf && f > 0 || mode == big.ToPositiveInf &&
			f < 0) {
		return float32(math.Copysign(limit, f))
	}
	return float32(f)
}

func TestFloats(t *testing.T) {
	runSnippets(t, []snippet{
		{"add.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 {
			return a + b
		})},
		{"sub.rn.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 {
			return a - b
		})},
		{"mul.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 {
			return a * b
		})},
		{"div.rn.f32 %d, %a, %b;" + canonicalNaN, false, f32(func(a, b, _ float32) float32 {
			return a / b
		})},
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
		{"min.f32 %d, %a, %b;", false, f32(func(a, b, _ float32) float32 {
			return pick(a, b, true)
		})},
		{"max.f32 %d, %a, %b;", false, f32(func(a, b, _ float32) float32 {
			return pick(a, b, false)
		})},
		{"max.NaN.f32 %d, %a, %b;", false, f32(func(a, b, _ float32) float32 { return max(a, b) })},
		{"neg.f32 %d, %a;", false, func(l lane) uint64 { return uint64(l.a() ^ 1<<31) }},
		{"abs.f32 %d, %a;", false, func(l lane) uint64 { return uint64(l.a() &^ (1 << 31)) }},
		{"rcp.rn.f32 %d, %a;" + canonicalNaN, false, f32(func(a, _, _ float32) float32 {
			return 1 / a
		})},
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
		{"setp.gtu.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, compared(func(a,
			b float32) bool {
			return !(a <= b)
		})},
		{"setp.ne.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, compared(func(a, b float32) bool {
			return a < b || a > b
		})},
		{"setp.equ.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, compared(func(a,
			b float32) bool {
			return !(a < b || a > b)
		})},
		{"setp.num.f32 %p, %a, %b; selp.b32 %d, 1, 0, %p;", false, compared(func(a,
			b float32) bool {
			return a == a && b == b
		})},
		{"setp.eq.ftz.f32 %p, %a, 0f00000000; selp.b32 %d, 1, 0, %p;", false,
			func(l lane) uint64 { return bit(l.a()&0x7f800000 == 0) }},
		{"fma.rn.f64 %D, %A, %B, %C;" + canonical64, true, f64(math.FMA)},
		{"add.f64 %D, %A, %B;" + canonical64, true, f64(func(a, b, _ float64) float64 {
			return a + b
		})},
		{"div.rn.f64 %D, %A, %B;" + canonical64, true, f64(func(a, b, _ float64) float64 {
			return a / b
		})},
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
		compareLongs(t, host, portable, in)
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

// compareLongs compares what is of 64 bits: instructions, and addresses with their checks.
func compareLongs(t *testing.T, host, portable *laneOps, in []lane) {
	t.Helper()
	var a, b, want, got lanes64
	var low lanes32
	for i, l := range in {
		a[i], b[i], low[i] = l.A, l.B, l.c()
	}
	for name, f := range host.longs {
		portable.longs[name](&want, &a, &b)
		if f(&got, &a, &b); got != want {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
	}
	portable.addresses64(&want, &a, in[0].B)
	if host.addresses64(&got, &a, in[0].B); got != want {
		t.Errorf("addresses of 64 bits: %x, want %x", got, want)
	}
	portable.addresses32(&want, &low, in[0].b())
	if host.addresses32(&got, &low, in[0].b()); got != want {
		t.Errorf("addresses of 32 bits: %x, want %x", got, want)
	}
	for i := range lanes {
		for k := range a {
			a[k] = 0x7f0000001000 + uint64(k)*8
		}
		last := uint64(lanes-1) * 8
		for _, change := range []uint64{0, 1, 4, 8, ^uint64(0), 1 << 63, ^uint64(0) - 7} {
			a[i] = 0x7f0000001000 + uint64(i)*8 + change
			want := portable.offsets(&a, 0x7f0000001000, last, 7)
			if host.offsets(&a, 0x7f0000001000, last, 7) != want {
				t.Errorf("offsets: lane %d with %#x more: not %v", i, change, want)
			}
		}
	}
}
