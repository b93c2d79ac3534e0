package ptx

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// fragments is a test of one mma shape: element i of lane l's fragments, by the manual's formulas
// (PTX ISA 9.7.14.5.7 to 9.7.14.5.11).
type fragments struct {
	name     string // after mma.sync.aligned.
	k        int
	bits     int
	a, b     func(l, i int) (row, col int)
	value    func(bits uint64) float64
	random   func(r *rand.Rand) uint64
	halfAcc  bool
	integers bool
}

func accumulator(l, i int) (row, col int) { return l/4 + i/2*8, l%4*2 + i%2 }

func shapes() []fragments {
	a16 := func(l, i int) (int, int) {
		row := l / 4
		if !(i < 2 || i >= 4 && i < 6) {
			row += 8
		}
		col := l%4*2 + i&1
		if i >= 4 {
			col += 8
		}
		return row, col
	}
	b16 := func(l, i int) (int, int) {
		row := l%4*2 + i&1
		if i >= 2 {
			row += 8
		}
		return row, l / 4
	}
	a8 := func(l, i int) (int, int) {
		row := l / 4
		if !(i < 4 || i >= 8 && i < 12) {
			row += 8
		}
		col := l%4*4 + i&3
		if i >= 8 {
			col += 16
		}
		return row, col
	}
	b8 := func(l, i int) (int, int) { return l%4*4 + i&3 + i/4*16, l / 4 }
	bf := func(r *rand.Rand) uint64 {
		return uint64(nearestBfloat(float64(float32(r.NormFloat64()))))
	}
	hf := func(r *rand.Rand) uint64 { return uint64(nearestHalf(r.NormFloat64())) }
	half := func(b uint64) float64 { return halfValue(uint16(b)) }
	bfloat := func(b uint64) float64 { return bfloatValue(uint16(b)) }
	tf := func(r *rand.Rand) uint64 {
		return uint64(math.Float32bits(float32(r.NormFloat64())) &^ 0x1fff)
	}
	single := func(b uint64) float64 { return float64(math.Float32frombits(uint32(b))) }
	e4m3 := func(b uint64) float64 { return e4m3Value(byte(b)) }
	small := func(r *rand.Rand) uint64 { return uint64(r.IntN(0x50)) | uint64(r.IntN(2))<<7 }
	return []fragments{
		{"m16n8k16.row.col.f32.bf16.bf16.f32", 16, 16, a16, b16, bfloat, bf, false, false},
		{"m16n8k16.row.col.f32.f16.f16.f32", 16, 16, a16, b16, half, hf, false, false},
		{"m16n8k16.row.col.f16.f16.f16.f16", 16, 16, a16, b16, half, hf, true, false},
		{"m16n8k8.row.col.f32.bf16.bf16.f32", 8, 16, a16, b16, bfloat, bf, false, false},
		{"m16n8k8.row.col.f32.f16.f16.f32", 8, 16, a16, b16, half, hf, false, false},
		{"m16n8k8.row.col.f32.tf32.tf32.f32", 8, 32,
			func(l, i int) (int, int) { return l/4 + i%2*8, l%4 + i/2*4 },
			func(l, i int) (int, int) { return l%4 + i*4, l / 4 }, single, tf, false, false},
		{"m16n8k4.row.col.f32.tf32.tf32.f32", 4, 32,
			func(l, i int) (int, int) { return l/4 + i*8, l % 4 },
			func(l, i int) (int, int) { return l % 4, l / 4 }, single, tf, false, false},
		{"m16n8k32.row.col.s32.s8.s8.s32", 32, 8, a8, b8,
			func(b uint64) float64 { return float64(int8(b)) },
			func(r *rand.Rand) uint64 { return r.Uint64() & 255 }, false, true},
		{"m16n8k32.row.col.s32.u8.u8.s32", 32, 8, a8, b8,
			func(b uint64) float64 { return float64(uint8(b)) },
			func(r *rand.Rand) uint64 { return r.Uint64() & 255 }, false, true},
		{"m16n8k16.row.col.s32.s8.s8.s32", 16, 8, a8, b8,
			func(b uint64) float64 { return float64(int8(b)) },
			func(r *rand.Rand) uint64 { return r.Uint64() & 255 }, false, true},
		{"m16n8k32.row.col.f32.e4m3.e4m3.f32", 32, 8, a8, b8, e4m3, small, false, false},
	}
}

// list is "{%x3, %x4}".
func list(prefix string, first, n int) string {
	var parts []string
	for i := range n {
		parts = append(parts, fmt.Sprintf("%%%s%d", prefix, first+i))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// registersKernel loads n words of each lane into %x0 ..., runs a body, and stores words from %x32
// on.
func registersKernel(n, out int, body string) string {
	var load, store strings.Builder
	for i := range n {
		fmt.Fprintf(&load, "ld.global.u32 %%x%d, [%%in+%d];\n", i, 4*i)
	}
	for i := range out {
		fmt.Fprintf(&store, "st.global.u32 [%%out+%d], %%x%d;\n", 4*i, 32+i)
	}
	return header + fmt.Sprintf(`
.visible .entry k(.param .u64 in, .param .u64 out) {
	.shared .align 128 .b8 mem[4096];
	%s
	ld.param.u64 %%in, [in];
	ld.param.u64 %%out, [out];
	mov.u32 %%lane, %%tid.x;
	mul.wide.u32 %%t, %%lane, %d;
	add.s64 %%in, %%in, %%t;
	mul.wide.u32 %%t, %%lane, %d;
	add.s64 %%out, %%out, %%t;
	%s %s %s
	ret;
}`, registers, 4*n, 4*out, load.String(), body, store.String())
}

func runRegisters(t *testing.T, src string, threads uint32, in []uint32, out int) []uint32 {
	t.Helper()
	mem := NewMemory(1 << 24)
	at, to := upload(t, mem, in), upload(t, mem, make([]uint32, int(threads)*out))
	m := &Machine{Memory: mem, Check: true}
	if _, err := m.Launch(mustParse(t, src).Kernel("k"), [3]uint32{1, 1, 1},
		[3]uint32{threads, 1, 1}, 0, params(at, to)); err != nil {
		t.Fatal(err)
	}
	return download[uint32](t, mem, to, int(threads)*out)
}

func TestMatrixMultiply(t *testing.T) {
	for _, s := range shapes() {
		r := rand.New(rand.NewPCG(uint64(s.k), 5))
		per := 32 / s.bits
		nA, nB := 16*s.k/lanes/per, 8*s.k/lanes/per
		nC := 4
		if s.halfAcc {
			nC = 2
		}
		words := nA + nB + nC
		in := make([]uint32, lanes*words)
		var a [16][32]float64
		var b [32][8]float64
		var c [16][8]float64
		for l := range lanes {
			regs := in[l*words:]
			for i := range nA * per {
				v := s.random(r)
				row, col := s.a(l, i)
				a[row][col] = s.value(v)
				regs[i/per] |= uint32(v) << (i % per * s.bits)
			}
			for i := range nB * per {
				v := s.random(r)
				row, col := s.b(l, i)
				b[row][col] = s.value(v)
				regs[nA+i/per] |= uint32(v) << (i % per * s.bits)
			}
			for i := range 4 {
				row, col := accumulator(l, i)
				switch x := r.NormFloat64(); {
				case s.integers:
					c[row][col] = math.Trunc(x * 1000)
					regs[nA+nB+i] = uint32(int32(c[row][col]))
				case s.halfAcc:
					c[row][col] = halfValue(nearestHalf(x))
					regs[nA+nB+i/2] |= uint32(nearestHalf(x)) << (i % 2 * 16)
				default:
					c[row][col] = float64(float32(x))
					regs[nA+nB+i] = math.Float32bits(float32(x))
				}
			}
		}
		body := fmt.Sprintf("mma.sync.aligned.%s %s, %s, %s, %s;\n", s.name, list("x", 32, nC),
			list("x", 0, nA), list("x", nA, nB), list("x", nA+nB, nC))
		got := runRegisters(t, registersKernel(words, nC, body), lanes, in, nC)
		for l := range lanes {
			for i := range 4 {
				row, col := accumulator(l, i)
				want, size := c[row][col], math.Abs(c[row][col])
				for k := range s.k {
					want += a[row][k] * b[k][col]
					size += math.Abs(a[row][k] * b[k][col])
				}
				var x float64
				tolerance := size * 1e-6
				switch {
				case s.integers:
					x, tolerance = float64(int32(got[l*nC+i])), 0
				case s.halfAcc:
					x, tolerance = halfValue(uint16(got[l*nC+i/2]>>(i%2*16))), size*2e-3
				default:
					x = float64(math.Float32frombits(got[l*nC+i]))
				}
				if !(math.Abs(x-want) <= tolerance) {
					t.Fatalf("%s: row %d column %d: %g, want %g", s.name, row, col, x, want)
				}
			}
		}
	}
}

// TestMultiplyRows compares the host's product of fragments with the portable one.
func TestMultiplyRows(t *testing.T) {
	host := hostOps()
	if host == nil {
		t.Skip("this machine has no vector instructions that are used")
	}
	r := rand.New(rand.NewPCG(1, 1))
	for _, k := range []int{4, 8, 16, 32} {
		var x, y mmaScratch
		for i := range x.a {
			x.a[i] = float32(r.NormFloat64())
		}
		for i := range x.b {
			x.b[i] = float32(r.NormFloat64())
		}
		y = x
		host.multiply(&x, k)
		y.multiplyRows(k)
		if x != y {
			t.Errorf("k = %d: the products differ", k)
		}
	}
}

// TestMatrixMoves stores four matrices in shared memory and loads them in all ways.
func TestMatrixMoves(t *testing.T) {
	// Word w of the shared memory is w; row r of matrix m begins at byte 128m + 16r.
	const fill = `mov.u32 %e, mem; mad.lo.u32 %f, %lane, 16, %e;
		mul.lo.u32 %a, %lane, 4; add.u32 %b, %a, 1; add.u32 %c, %a, 2; add.u32 %d, %a, 3;
		st.shared.v4.u32 [%f], {%a, %b, %c, %d}; bar.warp.sync -1;
		`
	element := func(m, row, col int) uint32 {
		return uint32(m*32+row*4+col/2) >> (16 * (col & 1)) & 0xffff
	}
	for _, n := range []int{1, 2, 4} {
		for _, trans := range []bool{false, true} {
			name := fmt.Sprintf("ldmatrix.sync.aligned.m8n8.x%d", n)
			if trans {
				name += ".trans"
			}
			body := fill + fmt.Sprintf("%s.shared.b16 %s, [%%f];", name, list("x", 32, n))
			got := runRegisters(t, registersKernel(1, n, body), lanes, make([]uint32, lanes), n)
			for l := range lanes {
				for m := range n {
					row, col := l/4, l%4*2
					want := element(m, row, col) | element(m, row, col+1)<<16
					if trans {
						want = element(m, col, row) | element(m, col+1, row)<<16
					}
					if got[l*n+m] != want {
						t.Fatalf("%s lane %d matrix %d: %#x, want %#x", name, l, m, got[l*n+m],
							want)
					}
				}
			}
		}
	}
	for _, trans := range []string{"", ".trans"} {
		body := fill + fmt.Sprintf(`ldmatrix.sync.aligned.m8n8.x4%s.shared.b16 {%%x0, %%x1, %%x2, %%x3}, [%%f];
			bar.warp.sync -1; add.u32 %%g, %%f, 1024;
			stmatrix.sync.aligned.m8n8.x4%s.shared.b16 [%%g], {%%x0, %%x1, %%x2, %%x3};
			bar.warp.sync -1; ld.shared.v4.u32 {%%x32, %%x33, %%x34, %%x35}, [%%g];`, trans, trans)
		got := runRegisters(t, registersKernel(4, 4, body), lanes, make([]uint32, 4*lanes), 4)
		for i, v := range got {
			if v != uint32(i) {
				t.Fatalf("stmatrix%s: word %d is %d", trans, i, v)
			}
		}
	}
}

func TestCopyAsync(t *testing.T) {
	const start = `mov.u32 %e, mem; mad.lo.u32 %f, %lane, 16, %e;
		`
	for _, c := range []struct {
		name, body string
		want       func(l, i int) uint32
	}{
		{"16 bytes", `cp.async.cg.shared.global [%f], [%in], 16; cp.async.commit_group;
			cp.async.wait_group 0;`, func(l, i int) uint32 { return uint32(4*l + i) }},
		{"filled with zeros", `cp.async.cg.shared.global [%f], [%in], 16, 8; cp.async.wait_all;`,
			func(l, i int) uint32 { return uint32(4*l+i) * uint32((3-i)/2) }},
		{"source ignored", `setp.lt.u32 %p, %lane, 16;
			cp.async.ca.shared.global [%f], [%in], 16, %p; cp.async.wait_all;`,
			func(l, i int) uint32 { return uint32(4*l+i) * uint32(l/16) }},
		{"two groups", `cp.async.ca.shared.global [%f], [%in], 8; cp.async.commit_group;
			cp.async.ca.shared.global.L2::128B [%f+8], [%in+8], 8; cp.async.commit_group;
			cp.async.wait_group 1; ld.shared.u32 %a, [%f]; cp.async.wait_group 0;`,
			func(l, i int) uint32 { return uint32(4*l + i) }},
	} {
		body := start + c.body + "ld.shared.v4.u32 {%x32, %x33, %x34, %x35}, [%f];"
		in := make([]uint32, 4*lanes)
		for i := range in {
			in[i] = uint32(i)
		}
		got := runRegisters(t, registersKernel(4, 4, body), lanes, in, 4)
		for l := range lanes {
			for i := range 4 {
				if got[4*l+i] != c.want(l, i) {
					t.Errorf("%s: lane %d word %d: %d", c.name, l, i, got[4*l+i])
				}
			}
		}
	}
}
