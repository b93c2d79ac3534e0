package ptx

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"nothing", "", "without kernels"},
		{"an unknown directive", header + ".frobnicate x;", `line 4: unknown directive ".frobnicate"`},
		{"an unknown instruction", faulty("frob.u32 %r1, %r2;"),
			"line 17: frob.u32: unknown instruction"},
		{"an unknown modifier", faulty("cvt.u8.pred %r1, %p1;"),
			"line 17: cvt.u8.pred: unknown types"},
		{"no such register", faulty("mov.u32 %r1, %q7;"), "no register %q7"},
		{"no such label", faulty("bra NOWHERE;"), "no label NOWHERE"},
		{"a register of another size", faulty("add.s64 %rd1, %rd1, %r1;"), "another size"},
		{"too few operands", faulty("add.s32 %r1, %r2;"), "too few or too many"},
		{"a predicate as a guard", faulty("@%r1 bra END; END:"), "no predicate"},
		{"a label twice", faulty("A: A:"), "stands twice"},
		{"no end", header + ".entry k() { .reg .b32 %r<4>;", "has no end"},
		{"a fragment that is too short",
			faulty("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0,%f1}, {%r5,%r6}, " +
				"{%r7}, {%f0,%f1};"),
			"a fragment of"},
		{"a function that calls itself",
			header + ".func f() { call f; ret; } .entry k() { call f; ret; }", "calls itself"},
		{"a huge array", header + ".entry k() { .shared .b8 x[2000000]; mov.u32 %r, x; ret; }",
			"static shared memory"},
		{"a string without an end", "\"abc\n", "string without an end"},
		{"a comment without an end", "/* abc", "comment without an end"},
		{"an initialiser that is too long", header + ".global .u8 x[2] = {1,2,3};", "longer than"},
	} {
		_, err := Parse([]byte(c.src))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, not %q", c.name, err, c.want)
		}
	}
}

func TestKernelProperties(t *testing.T) {
	_, mod := parseFile(t, "attention.ptx")
	k := mod.Kernel("attention")
	if names := mod.Kernels(); len(names) != 1 || names[0] != "attention" ||
		mod.Kernel("x") != nil {
		t.Error("the kernels are", names)
	}
	if k.ParamBytes != 80 || k.MaxThreads != 128 || k.StaticShared != 0 || k.Local != 0 ||
		k.Instructions() < 1000 || k.Line == 0 {
		t.Errorf("the kernel is %+v", k)
	}
	// Registers of the text share those of a warp.
	if k.regs32 > 400 {
		t.Errorf("%d registers of 32 bits", k.regs32)
	}
}

// TestProjectKernels parses the project's own kernels.
func TestProjectKernels(t *testing.T) {
	for _, file := range kernels.Files(9, 0) {
		src, err := kernels.PTX(file)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := Parse(src[:len(src)-1]); err != nil || len(m.Kernels()) == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestRead leaves bodies for later: braces in them do not end them, their mistakes show when they
// are decoded, with the lines of the text, and what they declare of the module's is read at once.
func TestRead(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{"{ mov.u32 %r1, 1; }\n// }\n/* } */ .pragma \"}\";\nfrob.u32 %r1, %r2;",
			"ptx: k: line 20: frob.u32: unknown instruction"},
		{"A: A:", "ptx: line 18: label A stands twice"},
		{".global\n.u32 x;", "a variable of the module in a body"},
		{".global .u32 x; mov.u64 %rd1, x;", ""},
	} {
		m, err := Read([]byte(faulty(c.body)))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		if err = m.Kernel("k").Decode(); err == nil && c.want != "" ||
			err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, not %q", c.body, err, c.want)
		}
		machine := &Machine{Memory: NewMemory(1 << 20)}
		if _, again := machine.Launch(m.Kernel("k"), [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0,
			nil); err != nil && !errors.Is(again, err) {
			t.Errorf("%s: the launch says %v", c.body, again)
		}
	}
	if _, err := Read([]byte(header + ".entry k() { .reg .b32 %r<4>;")); err == nil {
		t.Error("a body without an end is read")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(loops))
	f.Add([]byte(header + snippetKernel("k", "shfl.sync.down.b32 %d|%p, %a, 3, 31, -1;", false)))
	f.Add([]byte(faulty("brx.idx %r1, T; T: .branchtargets A; A: bar.sync 0; " +
		"call (%r1), f, (%r2);")))
	f.Add([]byte(header + ".const .align 4 .u32 t[2][2] = {{1, 2}, {3, 4}};" +
		".global .u64 p = generic(t)+8;"))
	f.Add([]byte(faulty("mbarrier.init.shared.b64 [%r3], 1; cp.async.bulk.shared::cluster.global." +
		"mbarrier::complete_tx::bytes [%r3], [%rd0], 16, [%r3]; wgmma.wait_group.sync.aligned 0;")))
	src, err := os.ReadFile("testdata/hopper.ptx")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(src)
	f.Fuzz(func(_ *testing.T, src []byte) {
		if m, err := Parse(src); err == nil {
			for _, name := range m.Kernels() {
				m.Kernel(name).Instructions()
			}
		}
	})
}
