package ptx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// lane is what a lane of a snippet has: three values of 64 bits, whose lower halves are the
// registers %a, %b and %c.
type lane struct {
	id      int
	A, B, C uint64
}

func (l lane) a() uint32 { return uint32(l.A) }
func (l lane) b() uint32 { return uint32(l.B) }
func (l lane) c() uint32 { return uint32(l.C) }

// registers declares what snippets use: %a %b %c %d %e of 32 bits, %A %B %C %D %E of 64, %h %i %j
// %k of 16, and predicates %p %q %r.
const registers = `
	.reg .b16 %h, %i, %j, %k, %l;
	.reg .b32 %a, %b, %c, %d, %e, %f, %g, %lane, %x<64>;
	.reg .b64 %A, %B, %C, %D, %E, %F, %in, %out, %t, %X<16>;
	.reg .pred %p, %q, %r;
`

// snippetKernel wraps a snippet: its result is %D, or %d with D clear.
func snippetKernel(name, body string, wide bool) string {
	end := "cvt.u64.u32 %D, %d;"
	if wide {
		end = ""
	}
	return fmt.Sprintf(`
.visible .entry %s(.param .u64 in, .param .u64 out) {
	.shared .align 16 .b8 mem[1024];
	%s
	ld.param.u64 %%in, [in];
	ld.param.u64 %%out, [out];
	mov.u32 %%lane, %%laneid;
	mul.wide.u32 %%t, %%lane, 24;
	add.s64 %%in, %%in, %%t;
	ld.global.u64 %%A, [%%in];
	ld.global.u64 %%B, [%%in+8];
	ld.global.u64 %%C, [%%in+16];
	cvt.u32.u64 %%a, %%A;
	cvt.u32.u64 %%b, %%B;
	cvt.u32.u64 %%c, %%C;
	cvt.u16.u64 %%h, %%A;
	cvt.u16.u64 %%i, %%B;
	cvt.u16.u64 %%j, %%C;
	mov.u32 %%d, 0;
	mov.u64 %%D, 0;
	%s
	%s
	mul.wide.u32 %%t, %%lane, 8;
	add.s64 %%out, %%out, %%t;
	st.global.u64 [%%out], %%D;
	ret;
}
`, name, registers, body, end)
}

const header = ".version 8.3\n.target sm_90a\n.address_size 64\n"

func mustParse(t testing.TB, src string) *Module {
	t.Helper()
	m, err := Parse([]byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func upload(t testing.TB, mem *Memory, data any) uint64 {
	t.Helper()
	b, err := binary.Append(nil, binary.LittleEndian, data)
	if err != nil {
		t.Fatal(err)
	}
	at, err := mem.Alloc(uint64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if err := mem.Write(at, b); err != nil {
		t.Fatal(err)
	}
	return at
}

func download[T any](t testing.TB, mem *Memory, at uint64, n int) []T {
	t.Helper()
	out := make([]T, n)
	b := make([]byte, binary.Size(out))
	if err := mem.Read(b, at); err != nil {
		t.Fatal(err)
	}
	if _, err := binary.Decode(b, binary.LittleEndian, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func params(values ...any) []byte {
	var b []byte
	for _, v := range values {
		b, _ = binary.Append(b, binary.LittleEndian, v)
	}
	return b
}

// corners are values that instructions treat specially, in integers and in floats.
var corners = []uint64{0, 1, 2, 31, 32, 33, 63, 64, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff,
	0x7fffffff, 0x80000000, 0xffffffff, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000,
	0x00800000, 0x007fffff, 0x80000001, 0x4f000000, 0xcf000000, 0x3f7fffff, 0x40490fdb,
	0x8000000000000000, 0x7fffffffffffffff, 0xffffffffffffffff, 0x3ff0000000000000, 0x7c00,
	0xfc00, 0x7e00, 0x3c00, 0x0001, 0x03ff, 0x0400, 0x3f80, 0x7f80, 0x477fe000, 0x477ff000,
	0x33800000}

// inputs are the values of one warp: corners against corners, or random.
func inputs(round int) []lane {
	r := rand.New(rand.NewPCG(uint64(round), 7))
	all := make([]lane, lanes)
	value := func() uint64 {
		switch r.IntN(4) {
		case 0:
			return corners[r.IntN(len(corners))]
		case 1: // two floats of moderate size
			return uint64(0x3e000000+r.Uint32N(1<<26))<<32 | uint64(0x3e000000+r.Uint32N(1<<26))
		case 2:
			return uint64(r.IntN(200)) - 100
		}
		return r.Uint64()
	}
	for i := range all {
		all[i] = lane{i, value(), value(), value()}
	}
	return all
}

// snippet is an instruction form and what it gives.
type snippet struct {
	body string
	wide bool
	want func(l lane) uint64
}

// runSnippets runs each snippet on several warps of inputs.
func runSnippets(t *testing.T, all []snippet) {
	t.Helper()
	var text strings.Builder
	text.WriteString(header)
	for i, s := range all {
		text.WriteString(snippetKernel(fmt.Sprintf("k%d", i), s.body, s.wide))
	}
	m := mustParse(t, text.String())
	for i, s := range all {
		for round := range 12 {
			in := inputs(round)
			got := runSnippet(t, m.Kernel(fmt.Sprintf("k%d", i)), in)
			for k, l := range in {
				if want := s.want(l); got[k] != want {
					t.Fatalf("%s: lane %d: a %#x b %#x c %#x: got %#x, want %#x", s.body, k, l.A,
						l.B, l.C, got[k], want)
				}
			}
		}
	}
}

func runSnippet(t *testing.T, k *Kernel, in []lane) []uint64 {
	t.Helper()
	mem := NewMemory(1 << 20)
	var words []uint64
	for _, l := range in {
		words = append(words, l.A, l.B, l.C)
	}
	at, out := upload(t, mem, words), upload(t, mem, make([]uint64, lanes))
	m := &Machine{Memory: mem, Check: true}
	if _, err := m.Launch(k, [3]uint32{1, 1, 1}, [3]uint32{lanes, 1, 1}, 0,
		params(at, out)); err != nil {
		t.Fatal(err)
	}
	return download[uint64](t, mem, out, lanes)
}

// launchFault launches a kernel that does wrong, and returns what the fault says.
func launchFault(t *testing.T, m *Machine, k *Kernel, grid, block uint32, shared uint32,
	p []byte) *Fault {
	t.Helper()
	_, err := m.Launch(k, [3]uint32{grid, 1, 1}, [3]uint32{block, 1, 1}, shared, p)
	var f *Fault
	if !errors.As(err, &f) {
		t.Fatalf("no fault, but %v", err)
	}
	if f.Error() == "" || f.Line == 0 || f.Text == "" || f.Kernel != k.Name {
		t.Errorf("a fault without its place: %+v", f)
	}
	return f
}
