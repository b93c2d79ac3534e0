package ptx

import (
	"math/bits"
	"strings"
	"testing"
)

// all32 makes a want function of the values of the whole warp's first registers.
func runWarp(t *testing.T, body string, want func(in []lane, l lane) uint64) {
	t.Helper()
	m := mustParse(t, header+snippetKernel("k", body, false))
	for round := range 6 {
		in := inputs(round)
		got := runSnippet(t, m.Kernel("k"), in)
		for i, l := range in {
			if w := want(in, l); got[i] != w {
				t.Fatalf("%s: lane %d: got %#x, want %#x", body, i, got[i], w)
			}
		}
	}
}

func TestShuffle(t *testing.T) {
	runWarp(t, "shfl.sync.bfly.b32 %d, %a, 5, 31, -1;", func(in []lane, l lane) uint64 {
		return uint64(in[l.id^5].a())
	})
	runWarp(t, "shfl.sync.down.b32 %d|%p, %a, 3, 31, 0xffffffff; @!%p mov.u32 %d, 7;",
		func(in []lane, l lane) uint64 {
			if l.id+3 > 31 {
				return 7
			}
			return uint64(in[l.id+3].a())
		})
	runWarp(t, "shfl.sync.up.b32 %d|%p, %a, 2, 0, -1; @!%p mov.u32 %d, 7;",
		func(in []lane, l lane) uint64 {
			if l.id < 2 {
				return 7
			}
			return uint64(in[l.id-2].a())
		})
	// Segments of eight lanes: the mask of segments is 24, the clamp 7 within them.
	runWarp(t, "shfl.sync.idx.b32 %d, %a, 13, 0x181f, -1;", func(in []lane, l lane) uint64 {
		return uint64(in[l.id&24|13&7].a())
	})
	runWarp(t, "shfl.sync.down.b32 %d|%p, %a, 1, 0x181f, -1; @!%p mov.u32 %d, 7;",
		func(in []lane, l lane) uint64 {
			if l.id&7 == 7 {
				return 7
			}
			return uint64(in[l.id+1].a())
		})
	runWarp(t, "shfl.sync.idx.b32 %d, %a, %b, 31, -1;", func(in []lane, l lane) uint64 {
		return uint64(in[l.b()&31].a())
	})
}

func TestVotes(t *testing.T) {
	ballot := func(in []lane, f func(lane) bool) (r uint32) {
		for i, l := range in {
			if f(l) {
				r |= 1 << i
			}
		}
		return r
	}
	negative := func(l lane) bool { return int32(l.a()) < 0 }
	const test = "setp.lt.s32 %p, %a, 0; "
	runWarp(t, test+"vote.sync.ballot.b32 %d, %p, -1;", func(in []lane, _ lane) uint64 {
		return uint64(ballot(in, negative))
	})
	runWarp(t, test+"vote.sync.ballot.b32 %d, !%p, -1;", func(in []lane, _ lane) uint64 {
		return uint64(^ballot(in, negative))
	})
	runWarp(t, test+"vote.sync.any.pred %q, %p, -1; selp.b32 %d, 1, 0, %q;",
		func(in []lane, _ lane) uint64 { return bit(ballot(in, negative) != 0) })
	runWarp(t, test+"vote.sync.all.pred %q, %p, -1; selp.b32 %d, 1, 0, %q;",
		func(in []lane, _ lane) uint64 { return bit(ballot(in, negative) == allLanes) })
	runWarp(t, "and.b32 %e, %a, 3; match.any.sync.b32 %d, %e, -1;", func(in []lane, l lane) uint64 {
		return uint64(ballot(in, func(o lane) bool { return o.a()&3 == l.a()&3 }))
	})
	runWarp(t, "match.all.sync.b32 %d|%p, 5, -1; selp.b32 %d, %d, 0, %p;",
		func([]lane, lane) uint64 { return allLanes })
	runWarp(t, "redux.sync.add.u32 %d, %a, -1;", func(in []lane, _ lane) uint64 {
		var sum uint32
		for _, l := range in {
			sum += l.a()
		}
		return uint64(sum)
	})
	runWarp(t, "redux.sync.min.s32 %d, %a, -1;", func(in []lane, _ lane) uint64 {
		least := int32(in[0].a())
		for _, l := range in {
			least = min(least, int32(l.a()))
		}
		return uint64(uint32(least))
	})
	runWarp(t, "activemask.b32 %d;", func([]lane, lane) uint64 { return allLanes })
	runWarp(t, "elect.sync %e|%p, -1; selp.b32 %d, %e, 9, %p;", func(_ []lane, l lane) uint64 {
		return bit(l.id > 0) * 9
	})
	// Half the warp by itself: the member mask says which.
	runWarp(t, `setp.lt.u32 %p, %lane, 16; mov.u32 %e, 0; @!%p bra OTHER;
		redux.sync.or.b32 %d, %lane, 0x0000ffff; bra.uni END;
		OTHER: redux.sync.and.b32 %d, %lane, 0xffff0000;
		END:`, func(_ []lane, l lane) uint64 {
		if l.id < 16 {
			return 15
		}
		return 16
	})
}

// loops is a kernel in which lanes leave loops after different numbers of rounds.
const loops = header + `
.visible .entry k(.param .u64 out) {
	.reg .b32 %r<20>; .reg .b64 %rd<4>; .reg .pred %p<6>;
	ld.param.u64 %rd0, [out];
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, 0;
	mov.u32 %r2, 0;
	and.b32 %r3, %r0, 7;
	setp.eq.u32 %p0, %r3, 6;
	@%p0 bra SIX;
OUTER:
	setp.ge.u32 %p1, %r1, %r3;
	@%p1 bra DONE;
	mov.u32 %r4, 0;
INNER:
	add.u32 %r2, %r2, %r0;
	add.u32 %r4, %r4, 1;
	setp.le.u32 %p2, %r4, %r1;
	@%p2 bra INNER;
	setp.eq.u32 %p3, %r2, 99;
	@%p3 exit;
	add.u32 %r1, %r1, 1;
	bra.uni OUTER;
SIX:
	mov.u32 %r2, 1000;
	setp.gt.u32 %p4, %r0, 16;
	@%p4 bra NESTED;
	add.u32 %r2, %r2, 1;
	bra.uni DONE;
NESTED:
	add.u32 %r2, %r2, 2;
DONE:
	redux.sync.add.u32 %r5, %r2, 0xffffffff;
	mul.wide.u32 %rd1, %r0, 8;
	add.s64 %rd2, %rd0, %rd1;
	st.global.v2.u32 [%rd2], {%r2, %r5};
	ret;
}
`

func TestDivergence(t *testing.T) {
	k := mustParse(t, loops).Kernel("k")
	mem := NewMemory(1 << 20)
	out := upload(t, mem, make([]uint32, 2*lanes))
	m := &Machine{Memory: mem, Check: true}
	if _, err := m.Launch(k, [3]uint32{1, 1, 1}, [3]uint32{lanes, 1, 1}, 0,
		params(out)); err != nil {
		t.Fatal(err)
	}
	got := download[uint32](t, mem, out, 2*lanes)
	var want [lanes]uint32
	sum := uint32(0)
	for i := range uint32(lanes) {
		n := i & 7
		switch {
		case n == 6 && i > 16:
			want[i] = 1002
		case n == 6:
			want[i] = 1001
		default:
			want[i] = i * n * (n + 1) / 2
		}
		sum += want[i]
	}
	for i := range want {
		if got[2*i] != want[i] || got[2*i+1] != sum {
			t.Errorf("lane %d: %d and %d, want %d and %d", i, got[2*i], got[2*i+1], want[i], sum)
		}
	}
}

// TestOrder runs a loop whose way out stands between its blocks: without another order, lanes that
// leave it early would reach the matrix product alone.
func TestOrder(t *testing.T) {
	const src = header + `
.visible .entry k(.param .u64 out) {
	.reg .b32 %r<12>; .reg .b64 %rd<4>; .reg .pred %p<3>; .reg .f32 %f<8>;
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, 0;
	mov.u32 %r2, 0;
	mov.f32 %f0, 0f00000000;
	bra HEAD;
OUT:
	mov.u32 %r4, 0x3f803f80;
	mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f4,%f5,%f6,%f7}, {%r4,%r4}, {%r4}, {%f0,%f0,%f0,%f0};
	cvt.rzi.u32.f32 %r5, %f4;
	ld.param.u64 %rd0, [out];
	mul.wide.u32 %rd1, %r0, 8;
	add.s64 %rd2, %rd0, %rd1;
	st.global.v2.u32 [%rd2], {%r2, %r5};
	ret;
HEAD:
	setp.ge.u32 %p0, %r1, %r0;
	@%p0 bra OUT;
	add.u32 %r2, %r2, %r1;
	add.u32 %r1, %r1, 1;
	bra HEAD;
}
`
	mem := NewMemory(1 << 20)
	out := upload(t, mem, make([]uint32, 2*lanes))
	m := &Machine{Memory: mem, Check: true}
	if _, err := m.Launch(mustParse(t, src).Kernel("k"), [3]uint32{1, 1, 1},
		[3]uint32{lanes, 1, 1}, 0, params(out)); err != nil {
		t.Fatal(err)
	}
	got := download[uint32](t, mem, out, 2*lanes)
	for i := range uint32(lanes) {
		if want := i * (i - 1) / 2; i > 0 && got[2*i] != want || got[2*i+1] != 8 {
			t.Errorf("lane %d: %d and %d, want %d and 8", i, got[2*i], got[2*i+1], want)
		}
	}
}

func TestBranchIndexAndCall(t *testing.T) {
	const src = header + `
.func (.param .b32 result) twice(.param .b32 x) {
	.reg .b32 %r<4>; .reg .pred %p;
	ld.param.b32 %r0, [x];
	setp.gt.u32 %p, %r0, 100;
	@%p bra BIG;
	shl.b32 %r1, %r0, 1;
	st.param.b32 [result], %r1;
	ret;
BIG:
	mov.u32 %r1, 1;
	st.param.b32 [result], %r1;
	ret;
}
.visible .entry k(.param .u64 out) {
	.reg .b32 %r<8>; .reg .b64 %rd<4>;
	mov.u32 %r0, %tid.x;
	and.b32 %r1, %r0, 3;
TABLE: .branchtargets A, B, C, A;
	brx.idx %r1, TABLE;
A:	mov.u32 %r2, 10;
	bra.uni END;
B:	mov.u32 %r2, 200;
	bra.uni END;
C:	mov.u32 %r2, 30;
END:
	{
	.param .b32 p0;
	.param .b32 r0;
	st.param.b32 [p0], %r2;
	call.uni (r0), twice, (p0);
	ld.param.b32 %r3, [r0];
	}
	ld.param.u64 %rd0, [out];
	mul.wide.u32 %rd1, %r0, 4;
	add.s64 %rd2, %rd0, %rd1;
	st.global.u32 [%rd2], %r3;
	ret;
}
`
	k := mustParse(t, src).Kernel("k")
	mem := NewMemory(1 << 20)
	out := upload(t, mem, make([]uint32, lanes))
	m := &Machine{Memory: mem, Check: true}
	if _, err := m.Launch(k, [3]uint32{1, 1, 1}, [3]uint32{lanes, 1, 1}, 0,
		params(out)); err != nil {
		t.Fatal(err)
	}
	for i, v := range download[uint32](t, mem, out, lanes) {
		if want := [4]uint32{20, 1, 60, 20}[i&3]; v != want {
			t.Errorf("lane %d: %d, want %d", i, v, want)
		}
	}
}

func TestModuleVariables(t *testing.T) {
	const src = header + `
.const .align 4 .u32 table[4] = {5, 6, 0x7, 8};
.global .align 8 .u64 pointer = table;
.global .align 4 .f32 floats[2] = {0f3F800000, 2.0};
.global .align 4 .u32 counter;
.visible .entry k(.param .u64 out) {
	.local .align 8 .b8 depot[16];
	.reg .b32 %r<8>; .reg .b64 %rd<12>;
	ld.global.u64 %rd1, [pointer];
	ld.u32 %r1, [%rd1+8];
	ld.const.u32 %r2, [table+4];
	ld.global.u32 %r3, [floats+4];
	mov.u64 %rd2, depot;
	cvta.local.u64 %rd3, %rd2;
	st.local.u32 [depot+4], %r2;
	ld.u32 %r4, [%rd3+4];
	atom.global.add.u32 %r5, [counter], 3;
	ld.param.u64 %rd4, [out];
	st.global.v4.u32 [%rd4], {%r1, %r2, %r3, %r4};
	st.global.u32 [%rd4+16], %r5;
	ret;
}
`
	mod := mustParse(t, src)
	mem := NewMemory(1 << 20)
	out := upload(t, mem, make([]uint32, 8))
	m := &Machine{Memory: mem, Check: true}
	for launch := range uint32(2) {
		if _, err := m.Launch(mod.Kernel("k"), [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0,
			params(out)); err != nil {
			t.Fatal(err)
		}
		got := download[uint32](t, mem, out, 5)
		if want := [5]uint32{7, 6, 0x40000000, 6, 3 * launch}; [5]uint32(got) != want {
			t.Errorf("launch %d: %x, want %x", launch, got, want)
		}
	}
	at, size, ok, err := mod.Global(mem, "counter")
	if err != nil || !ok || size != 4 || download[uint32](t, mem, at, 1)[0] != 6 {
		t.Error("the counter is not 6", ok, size, err)
	}
}

func TestAtomics(t *testing.T) {
	body := func(op string) string {
		return header + snippetKernel("k", strings.ReplaceAll(`
			mov.u32 %e, mem;
			setp.eq.u32 %p, %lane, 0;
			@%p st.shared.u32 [%e], 100;
			bar.warp.sync -1;
			OP
			bar.warp.sync -1;
			ld.shared.u32 %d, [%e];`, "OP", op), false)
	}
	for _, c := range []struct {
		op   string
		want func(in []lane) uint32
	}{
		{"atom.shared.add.u32 %f, [%e], %lane;", func([]lane) uint32 { return 100 + 31*16 }},
		{"red.shared.max.s32 [%e], %a;", func(in []lane) uint32 {
			most := int32(100)
			for _, l := range in {
				most = max(most, int32(l.a()))
			}
			return uint32(most)
		}},
		{"red.shared.xor.b32 [%e], %a;", func(in []lane) uint32 {
			r := uint32(100)
			for _, l := range in {
				r ^= l.a()
			}
			return r
		}},
		{"atom.shared.inc.u32 %f, [%e], 110;", func([]lane) uint32 { return (100 + 32) % 111 }},
		{"atom.shared.cas.b32 %f, [%e], 100, 7;", func([]lane) uint32 { return 7 }},
		{"red.shared.add.noftz.f16x2 [%e], 0x3c000000;", func([]lane) uint32 { return 0x50000064 }},
	} {
		k := mustParse(t, body(c.op)).Kernel("k")
		in := inputs(1)
		if got := runSnippet(t, k, in)[3]; got != uint64(c.want(in)) {
			t.Errorf("%s: %#x, want %#x", c.op, got, c.want(in))
		}
	}
}

func TestSharedByteOrder(t *testing.T) {
	runWarp(t, `mov.u32 %e, mem; mad.lo.u32 %e, %lane, 8, %e;
		st.shared.v2.u32 [%e], {%a, %b}; ld.shared.u8 %d, [%e+5]; ld.shared.s8 %f, [%e+1];
		shl.b32 %f, %f, 8; or.b32 %d, %d, %f; ld.shared.u16 %f, [%e+2]; xor.b32 %d, %d, %f;`,
		func(_ []lane, l lane) uint64 {
			return uint64((l.b()>>8&255 | uint32(int32(int8(l.a()>>8)))<<8) ^ l.a()>>16)
		})
	runWarp(t, "brev.b32 %d, %a;", func(_ []lane, l lane) uint64 {
		return uint64(bits.Reverse32(l.a()))
	})
}
