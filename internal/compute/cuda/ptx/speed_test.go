package ptx

import (
	"strings"
	"testing"
)

// BenchmarkInstructions says what an instruction of a whole warp costs, in user time of one core.
func BenchmarkInstructions(b *testing.B) {
	for _, c := range []struct{ name, body string }{
		{"add.s32", "add.s32 %r5, %r6, %r7;"},
		{"fma.rn.f32", "fma.rn.f32 %f0, %f1, %f2, %f0;"},
		{"setp and selp", "setp.lt.s32 %p1, %r5, %r6; selp.b32 %r7, %r5, %r6, %p1;"},
		{"add.s64", "add.s64 %rd3, %rd3, %rd1;"},
		{"guarded", "@%p2 add.s32 %r5, %r6, %r7;"},
		{"ex2.approx.ftz.f32", "ex2.approx.ftz.f32 %f0, %f1;"},
		{"div.s32", "div.s32 %r5, %r6, 7;"},
		{"cvt.rn.bf16x2.f32", "cvt.rn.bf16x2.f32 %r5, %f1, %f2;"},
		{"bfe.u32", "bfe.u32 %r5, %r6, 3, 7;"},
		{"shfl.sync", "shfl.sync.bfly.b32 %r5, %r6, 1, 31, -1;"},
		{"ld.shared", "ld.shared.u32 %r5, [%r4];"},
		{"st.shared", "st.shared.u32 [%r4], %r6;"},
		{"ld.global", "ld.global.u32 %r5, [%rd2];"},
		{"st.global", "st.global.u32 [%rd2], %r6;"},
		{"ld.global.v4", "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4];"},
		{"cp.async", "cp.async.cg.shared.global [%r15], [%rd4], 16; cp.async.wait_all;"},
		{"mma m16n8k16", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f4,%f5,%f6,%f7}, " +
			"{%r5,%r6,%r7,%r8}, {%r9,%r10}, {%f4,%f5,%f6,%f7};"},
	} {
		for _, check := range []bool{false, true} {
			name := c.name + "/unchecked"
			if check {
				name = c.name + "/checked"
			}
			b.Run(name, func(b *testing.B) { benchmarkBody(b, c.body, check) })
		}
	}
}

func benchmarkBody(b *testing.B, body string, check bool) {
	src := faulty(`mul.wide.u32 %rd4, %r1, 16; add.s64 %rd4, %rd4, %rd0; and.b32 %r15, %r1, 31;
		mad.lo.u32 %r15, %r15, 16, %r3; setp.lt.u32 %p2, %r1, 16; st.shared.u32 [%r4], %r1; bar.warp.sync -1;
		mov.u32 %r16, 0;
		LOOP: add.u32 %r16, %r16, 1; ` + strings.Repeat(body, 100) + `
		setp.lt.u32 %p0, %r16, 100; @%p0 bra LOOP;`)
	k := mustParse(b, src).Kernel("k")
	mem := NewMemory(1 << 20)
	at := upload(b, mem, make([]byte, 1024))
	m := &Machine{Memory: mem, Check: check}
	var stats Stats
	start := userTime(b)
	for b.Loop() {
		var err error
		if stats, err = m.Launch(k, [3]uint32{1, 1, 1}, [3]uint32{32, 1, 1}, 64,
			params(at, uint32(0))); err != nil {
			b.Fatal(err)
		}
	}
	spent := (userTime(b) - start) / float64(b.N)
	b.ReportMetric(spent/float64(stats.Instructions)*1e9, "ns/instruction")
}
