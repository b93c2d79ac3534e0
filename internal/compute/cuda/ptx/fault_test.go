package ptx

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// faulty is a kernel of a body, with the parameters p (a pointer) and n, 256 words of shared memory
// (mem) and dynamic shared memory (dyn).
func faulty(body string) string {
	return header + `
.extern .shared .align 16 .b8 dyn[];
.visible .entry k(.param .u64 p, .param .u32 n) {
	.shared .align 16 .b8 mem[1024];
	.reg .b32 %r<20>; .reg .b64 %rd<8>; .reg .pred %p<6>; .reg .f32 %f<20>;
	ld.param.u64 %rd0, [p];
	ld.param.u32 %r0, [n];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mul.wide.u32 %rd1, %r1, 4;
	add.s64 %rd2, %rd0, %rd1;
	mov.u32 %r3, mem;
	mad.lo.u32 %r4, %r1, 4, %r3;
` + body + `
	ret;
}
`
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, body  string
		grid, block uint32
		want        string
	}{
		{"one byte too far", "st.global.u8 [%rd0+256], %r1;", 1, 1, "out of range"},
		{"a vector that crosses the end", "ld.global.v4.u32 {%r5,%r6,%r7,%r8}, [%rd0+248];", 1, 1,
			"misaligned"},
		{"a vector beyond the end", "ld.global.v2.u32 {%r5,%r6}, [%rd0+256];", 1, 1,
			"out of range"},
		{"null", "mov.u64 %rd3, 0; ld.global.u32 %r5, [%rd3];", 1, 1, "no allocation is near"},
		{"misaligned global", "ld.global.u32 %r5, [%rd0+2];", 1, 1, "misaligned"},
		{"misaligned shared", "st.shared.v4.u32 [%r3+8], {%r1,%r1,%r1,%r1};", 1, 1, "misaligned"},
		{"shared beyond the end", "st.shared.u32 [%r3+1104], %r1;", 1, 1,
			"shared access out of range"},
		{"the system's shared memory", "mov.u32 %r6, 12; ld.shared.u32 %r5, [%r6];", 1, 1,
			"shared access out of range"},
		{"generic to shared", "cvta.shared.u64 %rd3, 1020; ld.u32 %r5, [%rd3];", 1, 1,
			"shared access out of range"},
		{"misaligned rows",
			"add.u32 %r5, %r3, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r5];",
			1, 32, "misaligned"},
		{"misaligned copy", "add.u32 %r5, %r3, 8; cp.async.cg.shared.global [%r5], [%rd0], 16;", 1,
			1,
			"misaligned"},
		{"uninitialised shared", "ld.shared.u32 %r5, [%r4];", 1, 32, "not written"},
		{"uninitialised global", "ld.global.u32 %r5, [%rd0+128];", 1, 1, "not written"},
		{"division by zero", "sub.u32 %r5, %r1, %r1; div.u32 %r6, %r1, %r5;", 1, 32,
			"division by zero"},
		{"trap", "setp.eq.u32 %p0, %r1, 5; @%p0 trap;", 1, 32, "trap"},
		{"no bar.sync",
			"st.shared.u32 [%r4], %r1; xor.b32 %r5, %r4, 128; ld.shared.u32 %r6, [%r5];", 1,
			64, ""},
		{"write after read", `st.shared.u32 [%r4], %r1; bar.sync 0; xor.b32 %r5, %r4, 128;
			ld.shared.u32 %r6, [%r5]; st.shared.u32 [%r4], %r6;`, 1, 64, "race"},
		{"two writes", "st.shared.u32 [%r3], 1;", 1, 64, "race"},
		{"lanes without bar.warp.sync",
			"st.shared.u32 [%r4], %r1; xor.b32 %r5, %r4, 4; ld.shared.u32 %r6, [%r5];", 1, 32,
			"race: read of shared"},
		{"lanes that write after reads", `st.shared.u32 [%r4], %r1; bar.warp.sync -1;
			xor.b32 %r5, %r4, 4; ld.shared.u32 %r6, [%r5]; st.shared.u32 [%r4], %r6;`, 1, 32,
			"after a read by lane"},
		{"lanes of one store", "st.shared.u32 [%r3], %r1;", 1, 32, "different values"},
		{"blocks that write the same", "st.global.u32 [%rd2], %r2;", 2, 1, "race"},
		{"blocks that read and write", `ld.global.u32 %r5, [%rd0]; setp.eq.u32 %p0, %r2, 1;
			@%p0 st.global.u32 [%rd0], 1;`, 2, 1, "race"},
		{"a constant that is written", `st.global.u32 [%rd0], 1; ld.global.nc.u32 %r5, [%rd0];`, 1, 1,
			"ld.global.nc"},
		{"a flag in the block's scope only", `setp.ne.u32 %p0, %r2, 0; @%p0 bra SECOND;
			st.global.u32 [%rd0+4], 5; st.release.cta.global.u32 [%rd0], 1; ret;
			SECOND: ld.acquire.cta.global.u32 %r5, [%rd0]; setp.eq.u32 %p1, %r5, 0; @%p1 bra SECOND;
			ld.global.u32 %r6, [%rd0+4];`, 2, 1, "race"},
		{"warps without bar.sync", `setp.lt.u32 %p0, %r1, 32; @%p0 st.global.u32 [%rd0], 1;
			@!%p0 ld.global.u32 %r5, [%rd0];`, 1, 33, "race"},
		{"no wait_group", `cp.async.ca.shared.global [%r4], [%rd0], 4; cp.async.commit_group;
			ld.shared.u32 %r5, [%r4]; cp.async.wait_all;`, 1, 32, "is under way"},
		{"wait_group without a commit", `cp.async.ca.shared.global [%r4], [%rd0], 4;
			cp.async.wait_group 0; ld.shared.u32 %r5, [%r4]; cp.async.wait_all;`, 1, 32, "is under way"},
		{"the source changes", `cp.async.ca.shared.global [%r3], [%rd0], 4; st.global.u32 [%rd0], 77;
			cp.async.wait_all;`, 1, 1, "source of the copy"},
		{"a copy for other warps without bar.sync", `setp.ge.u32 %p0, %r1, 32; @%p0 bra READ;
			cp.async.ca.shared.global [%r4], [%rd2], 4; cp.async.wait_all; bra.uni END;
			READ: ld.shared.u32 %r5, [%r4+-128]; END:`, 1, 64, ""},
		{"exit with copies under way", "cp.async.ca.shared.global [%r4], [%rd0], 4;", 1, 1,
			"exit before"},
		{"part of a warp at mma", `setp.gt.u32 %p0, %r1, 15; @%p0 bra END;
			mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r5,%r6}, {%r7},
			{%f0,%f1,%f2,%f3}; END:`, 1, 32, ".aligned instruction reached by lanes 0x0000ffff"},
		{"mma after an exit", `setp.gt.u32 %p0, %r1, 15; @%p0 exit;
			mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r5,%r6}, {%r7},
			{%f0,%f1,%f2,%f3};`, 1, 32, "exited"},
		{"part of a warp at bar.sync", "setp.gt.u32 %p0, %r1, 15; @%p0 bar.sync 0;", 1, 32,
			".aligned"},
		{"shfl from a lane that is absent", `setp.gt.u32 %p0, %r1, 15; @%p0 bra END;
			shfl.sync.bfly.b32 %r5, %r1, 16, 31, 0x0000ffff; END:`, 1, 32, "does not take part"},
		{"a lane outside its mask", "shfl.sync.bfly.b32 %r5, %r1, 1, 31, 0xfffe;", 1, 32,
			"member mask"},
		{"lanes that never come", `setp.gt.u32 %p0, %r1, 15; @%p0 bra OTHER; bar.warp.sync -1; bra.uni END;
			OTHER: shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1; END:`, 1, 32, "deadlock in the warp"},
		{"different barriers", `setp.gt.u32 %p0, %r1, 31; @%p0 bra OTHER; bar.sync 1, 64; bra.uni END;
			OTHER: bar.sync 2, 64; END:`, 1, 64, "deadlock: warp 0 waits"},
		{"different counts", `setp.gt.u32 %p0, %r1, 31; @%p0 bra OTHER; bar.sync 1, 96; bra.uni END;
			OTHER: bar.sync 1, 64; END:`, 1, 64, "where others wait"},
		{"a count that is no multiple of 32", "bar.sync 1, 40;", 1, 64, "no multiple of 32"},
		{"an endless loop", "AGAIN: add.u32 %r5, %r5, 1; bra AGAIN;", 1, 1, "warp instructions"},
		{"an mbarrier that is not there", "mbarrier.arrive.shared.b64 %rd3, [%r3];", 1, 1,
			"no mbarrier is initialised"},
		{"too many arrivals", `mbarrier.init.shared.b64 [%r3], 3; mbarrier.arrive.shared.b64 %rd3, [%r3];
			mbarrier.arrive.shared.b64 %rd3, [%r3], 3;`, 1, 1, "more arrivals"},
		{"an mbarrier as memory", "mbarrier.init.shared.b64 [%r3], 1; ld.shared.u32 %r5, [%r3+4];",
			1, 1,
			"access of the mbarrier"},
		{"nobody arrives", `mbarrier.init.shared.b64 [%r3], 2; mbarrier.arrive.shared.b64 %rd3, [%r3];
			AGAIN: mbarrier.try_wait.shared.b64 %p0, [%r3], %rd3; @!%p0 bra AGAIN;`, 1, 1,
			"phase 0: 1 of 2 arrivals"},
		{"a branch index",
			".reg .b32 %x; mov.u32 %x, 3; T: .branchtargets A, B; brx.idx %x, T; A: B:", 1,
			1, "branch index"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mod := mustParse(t, faulty(c.body))
			mem := NewMemory(1 << 20)
			at, err := mem.Alloc(256)
			if err != nil {
				t.Fatal(err)
			}
			if err := mem.Write(at, make([]byte, 128)); err != nil {
				t.Fatal(err)
			}
			m := &Machine{Memory: mem, Check: true, Steps: 1 << 16}
			f := launchFault(t, m, mod.Kernel("k"), c.grid, c.block, 64, params(at, uint32(0)))
			if !strings.Contains(f.What, c.want) || strings.Contains(f.What, "internal") {
				t.Errorf("the fault is %q, not %q", f.What, c.want)
			}
		})
	}
}

// TestOrdered runs kernels that are right, though their order hangs on little.
func TestOrdered(t *testing.T) {
	for _, c := range []struct {
		name, body  string
		grid, block uint32
	}{
		{"bar.sync", `st.shared.u32 [%r4], %r1; bar.sync 0; xor.b32 %r5, %r4, 128;
			ld.shared.u32 %r6, [%r5]; bar.sync 0; st.shared.u32 [%r4], %r6;`, 1, 64},
		{"named barriers of a producer and a consumer", `setp.gt.u32 %p0, %r1, 31; @%p0 bra CONSUMER;
			st.shared.u32 [%r4], %r1; bar.arrive 1, 64; bar.sync 2, 64; st.shared.u32 [%r4], %r1; ret;
			CONSUMER: bar.sync 1, 64; ld.shared.u32 %r6, [%r4+-128]; bar.arrive 2, 64;`, 1, 64},
		{"shfl between lanes", `st.shared.u32 [%r4], %r1; bar.warp.sync -1; xor.b32 %r5, %r4, 4;
			ld.shared.u32 %r6, [%r5]; shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1;
			st.shared.u32 [%r4], %r6;`, 1, 32},
		{"the same value by all lanes", "st.shared.u32 [%r3], 7;", 1, 32},
		{"halves of a word",
			"shl.b32 %r5, %r1, 1; add.u32 %r5, %r5, %r3; st.shared.u16 [%r5], %r1;", 1,
			64},
		{"bytes of global memory", `cvt.u64.u32 %rd3, %r2; add.s64 %rd3, %rd3, %rd0;
			st.global.u8 [%rd3], %r2;`, 16, 1},
		{"atomics", "red.global.add.u32 [%rd0], 1;", 8, 64},
		{"a lock's handover", `setp.ne.u32 %p0, %r2, 0; @%p0 bra SECOND;
			st.global.u32 [%rd0+4], 5; fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd0], 1; ret;
			SECOND: ld.acquire.gpu.global.u32 %r5, [%rd0]; setp.eq.u32 %p1, %r5, 0; @%p1 bra SECOND;
			ld.global.u32 %r6, [%rd0+4]; st.global.u32 [%rd0+8], %r6;`, 2, 1},
		{"the last block of a grid", `mul.wide.u32 %rd3, %r2, 4; add.s64 %rd3, %rd3, %rd0;
			st.global.u32 [%rd3+16], %r2; membar.gl; atom.global.add.u32 %r5, [%rd0], 1;
			setp.ne.u32 %p0, %r5, 3; @%p0 ret; membar.gl; ld.global.u32 %r6, [%rd0+16];
			ld.global.u32 %r7, [%rd0+28]; st.global.u32 [%rd0+16], %r7;`, 4, 1},
		{"an mbarrier", `setp.ne.u32 %p0, %r1, 0; @!%p0 mbarrier.init.shared.b64 [%r3+512], 64;
			bar.sync 0; st.shared.u32 [%r4], %r1; mbarrier.arrive.shared.b64 %rd3, [%r3+512];
			AGAIN: mbarrier.try_wait.shared.b64 %p1, [%r3+512], %rd3; @!%p1 bra AGAIN;
			xor.b32 %r5, %r4, 128; ld.shared.u32 %r6, [%r5];`, 1, 64},
		{"copies that end at an mbarrier", `setp.ne.u32 %p0, %r1, 0;
			@!%p0 mbarrier.init.shared.b64 [%r3+512], 64; bar.sync 0;
			cp.async.ca.shared.global [%r4], [%rd0], 4;
			cp.async.mbarrier.arrive.noinc.shared.b64 [%r3+512];
			AGAIN: mbarrier.try_wait.parity.shared.b64 %p1, [%r3+512], 0; @!%p1 bra AGAIN;
			xor.b32 %r5, %r4, 128; ld.shared.u32 %r6, [%r5];`, 1, 64},
		{"bar.red", `setp.lt.u32 %p0, %r1, 40; bar.red.popc.u32 %r5, 0, %p0; setp.ne.u32 %p1, %r5, 40;
			bar.red.or.pred %p2, 0, %p1; @%p2 trap; bar.red.and.pred %p3, 0, !%p0; @%p3 trap;`, 1, 64},
		{"local memory", `.local .align 4 .b8 mine[8]; st.local.u32 [mine], %r1; ld.local.u32 %r5, [mine];`,
			1, 32},
	} {
		t.Run(c.name, func(t *testing.T) {
			mod := mustParse(t, faulty(c.body))
			for seed := range uint64(6) {
				mem := NewMemory(1 << 20)
				at := upload(t, mem, make([]byte, 256))
				m := &Machine{Memory: mem, Check: true, Steps: 1 << 21, Seed: seed, Threads: 2}
				if _, err := m.Launch(mod.Kernel("k"), [3]uint32{c.grid, 1, 1},
					[3]uint32{c.block, 1, 1}, 64, params(at, uint32(0))); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestLaunchErrors(t *testing.T) {
	mod := mustParse(t, faulty(""))
	k := mod.Kernel("k")
	m := &Machine{Memory: NewMemory(1 << 20)}
	p := params(uint64(0), uint32(0))
	one := [3]uint32{1, 1, 1}
	for _, c := range []struct {
		name        string
		grid, block [3]uint32
		shared      uint32
		params      []byte
	}{
		{"no block", [3]uint32{0, 1, 1}, one, 0, p},
		{"too many threads", one, [3]uint32{1024, 2, 1}, 0, p},
		{"too much shared memory", one, one, MaxShared, p},
		{"too few parameters", one, one, 0, p[1:]},
	} {
		_, err := m.Launch(k, c.grid, c.block, c.shared, c.params)
		var f *Fault
		if err == nil || errors.As(err, &f) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := m.Launch(k, one, one, MaxShared-1024, p); err != nil {
		t.Error("227 KiB of shared memory:", err)
	}
}

func TestUseAfterFree(t *testing.T) {
	mod := mustParse(t, faulty("ld.global.u32 %r5, [%rd0+4];"))
	mem := NewMemory(1 << 20)
	at := upload(t, mem, make([]byte, 64))
	m := &Machine{Memory: mem, Check: true}
	one := [3]uint32{1, 1, 1}
	p := params(at, uint32(0))
	if _, err := m.Launch(mod.Kernel("k"), one, one, 64, p); err != nil {
		t.Fatal(err)
	}
	if err := mem.Free(at); err != nil {
		t.Fatal(err)
	}
	f := launchFault(t, m, mod.Kernel("k"), 1, 1, 64, p)
	if !strings.Contains(f.What, "that was freed") {
		t.Error(f)
	}
}

func TestMemory(t *testing.T) {
	m := NewMemory(1000)
	if _, err := m.Alloc(0); err == nil {
		t.Error("an allocation of nothing")
	}
	a, err := m.Alloc(100)
	if err != nil || a%256 != 0 {
		t.Fatal(a, err)
	}
	b, err := m.Alloc(300)
	if err != nil || b < a+256+100 || m.Used() != 768 {
		t.Fatal(a, b, err, m.Used())
	}
	if _, err := m.Alloc(300); !errors.Is(err, ErrOutOfMemory) {
		t.Error("beyond the limit:", err)
	}
	if m.Initialised(a, 1) || m.Write(a+10, []byte{1, 2, 3}) != nil || !m.Initialised(a+10, 3) ||
		m.Initialised(a+10, 4) {
		t.Error("what is initialised")
	}
	if m.Copy(b+50, a+9, 5) != nil || m.Initialised(b+50, 5) || !m.Initialised(b+51, 3) {
		t.Error("copies of what is not initialised")
	}
	got := make([]byte, 5)
	if m.Read(got, b+50) != nil || string(got) != "\xff\x01\x02\x03\xff" {
		t.Errorf("read %x", got)
	}
	if m.Fill(a, 7, 100) != nil || !m.Initialised(a, 100) || m.Initialised(a, 101) {
		t.Error("fill")
	}
	for name, err := range map[string]error{"read": m.Read(make([]byte, 2), a+99),
		"write": m.Write(b-1, []byte{1}), "fill": m.Fill(b, 0, 301), "free": m.Free(a + 256),
		"copy": m.Copy(a, b+299, 2)} {
		if err == nil {
			t.Errorf("%s out of range", name)
		}
	}
	if m.Free(a) != nil || m.Free(a) == nil || m.Used() != 512 {
		t.Error("free")
	}
	if c, err := m.Alloc(10); err != nil || c <= b {
		t.Error("an address is used again", c, err)
	}
}

// TestInitialised compares the marks of ranges with an array of them.
func TestInitialised(t *testing.T) {
	const size = 300
	r := rand.New(rand.NewPCG(9, 9))
	for range 50 {
		var k initialised
		var want [size]bool
		for range 40 {
			at := r.Uint64N(size)
			n := r.Uint64N(size-at) + 1
			set := r.IntN(2) == 0
			if set {
				k.set(at, n, size)
			} else {
				k.clear(at, n, size)
			}
			for i := at; i < at+n; i++ {
				want[i] = set
			}
			all := true
			for i := range uint64(size) {
				if k.short(i, 1) != want[i] {
					t.Fatalf("byte %d is %v", i, !want[i])
				}
				all = all && want[i]
			}
			if k.has(0, size) != all {
				t.Fatal("has")
			}
		}
	}
}
