package ptx

import (
	"fmt"
	"math"
	"math/big"
	"testing"
)

// TestRareForms has instruction forms that compilers write seldom.
func TestRareForms(t *testing.T) {
	rounded := func(f func(a, b *big.Float) *big.Float, mode big.RoundingMode) func(lane) uint64 {
		return func(l lane) uint64 {
			a, b := new(big.Float).SetPrec(300), new(big.Float).SetPrec(300)
			a.SetFloat64(float64(moderate(l.a())))
			b.SetFloat64(float64(moderate(l.b())))
			x := new(big.Float).SetMode(mode).SetPrec(24).Set(f(a, b))
			r, _ := x.Float32()
			return uint64(math.Float32bits(r))
		}
	}
	quotient := func(a, b *big.Float) *big.Float { return new(big.Float).SetPrec(300).Quo(a, b) }
	root := func(a, _ *big.Float) *big.Float { return new(big.Float).SetPrec(300).Sqrt(a) }
	inverse := func(a, _ *big.Float) *big.Float {
		return new(big.Float).SetPrec(300).Quo(big.NewFloat(1), a)
	}
	// moderate floats: the exponents of a and b are set to 1.
	const within = "and.b32 %a, %a, 0x7fffff; or.b32 %a, %a, 0x3f800000; " +
		"and.b32 %b, %b, 0x7fffff; or.b32 %b, %b, 0x3f800000; "
	single := func(f func(float64) float64) func(lane) uint64 {
		return f32(func(a, _, _ float32) float32 { return float32(f(float64(a))) })
	}
	runSnippets(t, []snippet{
		{within + "div.rz.f32 %d, %a, %b;", false, rounded(quotient, big.ToZero)},
		{within + "div.rp.f32 %d, %a, %b;", false, rounded(quotient, big.ToPositiveInf)},
		{within + "sqrt.rm.f32 %d, %a;", false, rounded(root, big.ToNegativeInf)},
		{within + "sqrt.rp.f32 %d, %a;", false, rounded(root, big.ToPositiveInf)},
		{within + "rcp.rz.f32 %d, %a;", false, rounded(inverse, big.ToZero)},
		{"sin.approx.f32 %d, %a;" + canonicalNaN, false, single(math.Sin)},
		{"cos.approx.f32 %d, %a;" + canonicalNaN, false, single(math.Cos)},
		{"rsqrt.approx.f32 %d, %a;" + canonicalNaN, false, single(func(x float64) float64 {
			return 1 / math.Sqrt(x)
		})},
		{"ex2.approx.f16 %k, %h; cvt.u32.u16 %d, %k;", false, func(l lane) uint64 {
			return uint64(nearestHalf(math.Exp2(halfValue(uint16(l.A)))))
		}},
		{"tanh.approx.f16x2 %d, %a;", false, func(l lane) uint64 {
			return uint64(nearestHalf(math.Tanh(halfValue(uint16(l.A>>16)))))<<16 |
				uint64(nearestHalf(math.Tanh(halfValue(uint16(l.A)))))
		}},
		{"add.ftz.f16 %k, %h, %i; cvt.u32.u16 %d, %k;", false, func(l lane) uint64 {
			flush := func(h uint16) uint16 {
				if h&0x7c00 == 0 {
					return h & 0x8000
				}
				return h
			}
			x := halfValue(flush(uint16(l.A))) + halfValue(flush(uint16(l.B)))
			return uint64(flush(nearestHalf(x)))
		}},
		{"add.u16x2 %d, %a, %b;", false, func(l lane) uint64 {
			return (l.A&0xffff0000+l.B&0xffff0000)&0xffff0000 | (l.A+l.B)&0xffff
		}},
		{"max.s16x2 %d, %a, %b;", false, func(l lane) uint64 {
			return uint64(uint16(max(int16(l.A>>16), int16(l.B>>16))))<<16 |
				uint64(uint16(max(int16(l.A), int16(l.B))))
		}},
		{"sub.sat.s32 %d, %a, %b;", false, s32(func(a, b, _ int32) int32 {
			return int32(max(-1<<31, min(1<<31-1, int64(a)-int64(b))))
		})},
		{"prmt.b32.b4e %d, %a, %b, 1;", false, u32(func(a, b, _ uint32) uint32 {
			return b>>16&0xff<<24 | b>>24<<16 | a&0xff<<8 | a>>8&0xff
		})},
		{"prmt.b32.rc8 %d, %a, %b, %c;", false, u32(func(a, _, c uint32) uint32 {
			return a >> (8 * (c & 3)) & 255 * 0x01010101
		})},
		{"prmt.b32.rc16 %d, %a, %b, %c;", false, u32(func(a, _, c uint32) uint32 {
			return a >> (16 * (c & 1)) & 0xffff * 0x00010001
		})},
		{"prmt.b32.ecl %d, %a, %b, 2;", false, u32(func(a, _, _ uint32) uint32 {
			return a&0xff000000 | a>>16&0xff*0x010101
		})},
		{"prmt.b32.ecr %d, %a, %b, 1;", false, u32(func(a, _, _ uint32) uint32 {
			return a&0xff | a>>8&0xff*0x01010100
		})},
		{"slct.b32.f32 %d, %a, %b, %c;", false, u32(func(a, b, c uint32) uint32 {
			if math.Float32frombits(c) >= 0 {
				return a
			}
			return b
		})},
		{"max.f64 %D, %A, %B;" + canonical64, true, f64(func(a, b, _ float64) float64 {
			switch {
			case a != a:
				return b
			case b != b:
				return a
			}
			return math.Max(a, b)
		})},
		{"sqrt.rn.f64 %D, %A;" + canonical64, true, f64(func(a, _, _ float64) float64 {
			return math.Sqrt(a)
		})},
		{"neg.f64 %D, %A;", true, u64(func(a, _, _ uint64) uint64 { return a ^ 1<<63 })},
		{"abs.f64 %D, %A;", true, u64(func(a, _, _ uint64) uint64 { return a &^ (1 << 63) })},
		{"max.xorsign.abs.f32 %d, %a, %b;", false, func(l lane) uint64 {
			m := pick(math.Float32frombits(l.a()&^(1<<31)), math.Float32frombits(l.b()&^(1<<31)),
				false)
			return uint64(canonical(m) | (l.a()^l.b())&(1<<31))
		}},
		{"mov.b32 %d, WARP_SZ;", false, func(lane) uint64 { return 32 }},
		{"cvta.shared.u64 %E, 2000; isspacep.shared %p, %E; isspacep.global %q, %E; " +
			"selp.b32 %d, 1, 0, %p; selp.b32 %e, 2, 0, %q; or.b32 %d, %d, %e;", false,
			func(lane) uint64 { return 1 }},
		{"createpolicy.fractional.L2::evict_first.b64 %E, 1.0; prefetch.global.L2 [%in]; " +
			"mov.u32 %d, 4; nanosleep.u32 100;", false, func(lane) uint64 { return 4 }},
		{"cvt.rn.relu.bf16x2.f32 %d, %a, %b;", false, func(l lane) uint64 {
			relu := func(v uint32) uint64 {
				x := math.Float32frombits(v)
				if x < 0 || x == 0 {
					x = 0
				}
				return uint64(nearestBfloat(float64(x)))
			}
			return relu(l.a())<<16 | relu(l.b())
		}},
	})
	for name, f := range map[string]func(a, b int64) bool{
		"eq.s64": func(a, b int64) bool { return a == b },
		"ne.s64": func(a, b int64) bool { return a != b },
		"lt.s64": func(a, b int64) bool { return a < b },
		"gt.s64": func(a, b int64) bool { return a > b },
		"ls.u64": func(a, b int64) bool { return uint64(a) <= uint64(b) },
		"ge.f64": func(a, b int64) bool {
			return math.Float64frombits(uint64(a)) >= math.Float64frombits(uint64(b))
		},
		"neu.f64": func(a, b int64) bool {
			return math.Float64frombits(uint64(a)) != math.Float64frombits(uint64(b))
		},
		"nan.f64": func(a, b int64) bool {
			x, y := math.Float64frombits(uint64(a)), math.Float64frombits(uint64(b))
			return x != x || y != y
		},
	} {
		runSnippets(t, []snippet{{fmt.Sprintf("setp.%s %%p, %%A, %%B; selp.b32 %%d, 1, 0, %%p;",
			name), false, func(l lane) uint64 { return bit(f(int64(l.A), int64(l.B))) }}})
	}
}

// moderate is a float between 1 and 2.
func moderate(a uint32) float32 { return math.Float32frombits(a&0x7fffff | 0x3f800000) }

func TestRareAtomics(t *testing.T) {
	one := func(width, op string, start, operand uint64, want uint64) {
		t.Helper()
		body := fmt.Sprintf(`mov.u32 %%e, mem; setp.ne.u32 %%p, %%lane, 3; @%%p bra END;
			mov.b64 %%A, %#x; mov.b64 %%B, %#x; st.shared.u64 [%%e], %%A;
			cvt.u32.u64 %%b, %%B; cvt.u16.u64 %%i, %%B; %s
			ld.shared.%s %%D, [%%e]; END:`, start, operand, op, width)
		k := mustParse(t, header+snippetKernel("k", body, true)).Kernel("k")
		if got := runSnippet(t, k, inputs(0))[3]; got != want {
			t.Errorf("%s: %#x, want %#x", op, got, want)
		}
	}
	one("u32", "red.shared.and.b32 [%e], %b;", 0b1100, 0b1010, 0b1000)
	one("u32", "red.shared.or.b32 [%e], %b;", 0b1100, 0b1010, 0b1110)
	one("u32", "red.shared.min.u32 [%e], %b;", 9, 5, 5)
	one("u32", "red.shared.max.s32 [%e], %b;", 0xffffffff, 5, 5)
	one("u32", "atom.shared.exch.b32 %d, [%e], %b;", 9, 5, 5)
	one("u32", "atom.shared.dec.u32 %d, [%e], %b;", 0, 5, 5)
	one("u32", "atom.shared.dec.u32 %d, [%e], %b;", 3, 5, 2)
	one("u64", "red.shared.add.u64 [%e], %B;", math.MaxUint64, 3, 2)
	one("u64", "atom.shared.cas.b64 %E, [%e], %A, %B;", 7, 5, 5)
	one("u32", "red.shared.add.f32 [%e], %b;", 0x3f800000, 0x40000000, 0x40400000)
	one("u64", "red.shared.add.f64 [%e], %B;", 0x3ff0000000000000, 0x3ff0000000000000,
		0x4000000000000000)
	one("u32", "red.shared.add.noftz.bf16x2 [%e], %b;", 0x3f803f80, 0x3f804000, 0x40004040)
	one("u32", "atom.shared.add.noftz.f16 %k, [%e+2], %i;", 0x3c000000, 0x3c00, 0x40000000)
}

// TestBulkRows copies rows of bytes to shared memory, changes them there and copies them back.
func TestBulkRows(t *testing.T) {
	const src = header + `
.visible .entry k(.param .u64 .ptr .global .align 16 p, .param .u64 out) {
	.shared .align 128 .b8 mem[512];
	.shared .align 8 .b64 bar;
	.reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .pred %p<3>;
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, mem;
	mov.u32 %r2, bar;
	ld.param.u64 %rd0, [p];
	ld.param.u64 %rd1, [out];
	setp.ne.u32 %p0, %r0, 0;
	@%p0 bra WAIT;
	mbarrier.init.shared.b64 [%r2], 2;
	fence.proxy.async;
	mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 512;
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0], 512, [%r2];
	mbarrier.arrive_drop.shared.b64 %rd3, [%r2];
	mbarrier.arrive.shared.b64 %rd3, [%r2];
WAIT:
	bar.sync 0;
AGAIN:
	mbarrier.test_wait.parity.shared.b64 %p1, [%r2], 0;
	@!%p1 bra AGAIN;
	mad.lo.u32 %r3, %r0, 4, %r1;
	ld.shared.u32 %r4, [%r3];
	add.u32 %r4, %r4, 1000;
	st.shared.u32 [%r3], %r4;
	fence.proxy.async.shared::cta;
	bar.sync 0;
	@%p0 ret;
	mbarrier.inval.shared.b64 [%r2];
	cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 512;
	cp.async.bulk.commit_group;
	cp.async.bulk.wait_group 0;
	ret;
}
`
	k := mustParse(t, src).Kernel("k")
	in := make([]uint32, 128)
	for i := range in {
		in[i] = uint32(i)
	}
	for seed := range uint64(4) {
		mem := NewMemory(1 << 20)
		out := upload(t, mem, make([]uint32, 128))
		m := &Machine{Memory: mem, Check: true, Seed: seed, Steps: 1 << 20}
		stats, err := m.Launch(k, [3]uint32{1, 1, 1}, [3]uint32{128, 1, 1}, 0,
			params(upload(t, mem, in), out))
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range download[uint32](t, mem, out, 128) {
			if v != uint32(i+1000) {
				t.Fatalf("word %d is %d", i, v)
			}
		}
		if stats.GlobalRead != 512 || stats.GlobalWritten != 512 {
			t.Errorf("bytes counted: %+v", stats)
		}
	}
}

// TestUnchecked has a launch without Check make what it writes count as initialised.
func TestUnchecked(t *testing.T) {
	k := mustParse(t, faulty("st.global.u32 [%rd2], %r1;")).Kernel("k")
	mem := NewMemory(1 << 20)
	at, err := mem.Alloc(256)
	if err != nil {
		t.Fatal(err)
	}
	one := [3]uint32{1, 1, 1}
	for _, check := range []bool{true, false} {
		m := &Machine{Memory: mem, Check: check}
		if _, err := m.Launch(k, one, one, 64, params(at, uint32(0))); err != nil {
			t.Fatal(err)
		}
		if !mem.Initialised(at, 4) || mem.Initialised(at, 5) == check {
			t.Errorf("check %v: what is initialised", check)
		}
	}
	if mem.Limit() != 1<<20 {
		t.Error("the limit")
	}
	if m := mustParse(t, faulty("")); m.Target() != "sm_90a" || m.Version() != 83 {
		t.Error("the text is for", m.Target(), m.Version())
	}
}
