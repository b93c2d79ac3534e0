package ptx

import (
	"math"
	"math/rand/v2"
	"testing"
)

// gemm is a launch of testdata/hopper.cu.
type gemm struct {
	mem     *Memory
	params  []byte
	grid    [3]uint32
	m, n, k int
	a, b    []uint16
	c       uint64
}

func newGemm(t testing.TB, rows, cols, k int) *gemm {
	g := &gemm{mem: NewMemory(1 << 26), m: rows, n: cols, k: k}
	r := rand.New(rand.NewPCG(4, 4))
	g.a, g.b = bfloats(r, rows*k), bfloats(r, cols*k)
	c, err := g.mem.Alloc(uint64(rows*cols) * 2)
	if err != nil {
		t.Fatal(err)
	}
	g.c = c
	encode := func(at uint64, rows, cols, swizzle int) [TensorMapBytes]byte {
		m := TensorMap{Base: at, ElementBytes: 2, Dims: []uint32{uint32(cols), uint32(rows)},
			Strides: []uint64{uint64(cols) * 2}, Box: []uint32{64, 64}, Swizzle: swizzle}
		b, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	g.params = params(encode(upload(t, g.mem, g.a), rows, k, 128),
		encode(upload(t, g.mem, g.b), cols, k, 128), encode(c, rows, cols, 0), int32(k))
	g.grid = [3]uint32{uint32(cols / 64), uint32(rows / 64), 1}
	return g
}

func (g *gemm) launch(m *Machine, mod *Module) (Stats, error) {
	m.Memory = g.mem
	return m.Launch(mod.Kernel("gemm"), g.grid, [3]uint32{160, 1, 1}, 51200, g.params)
}

// right says whether the result is the product, within the rounding to bf16.
func (g *gemm) right(t testing.TB) bool {
	c := download[uint16](t, g.mem, g.c, g.m*g.n)
	for i := range g.m {
		for j := range g.n {
			want := 0.0
			for k := range g.k {
				want += bfloatValue(g.a[i*g.k+k]) * bfloatValue(g.b[j*g.k+k])
			}
			if got := bfloatValue(c[i*g.n+j]); !(math.Abs(got-want) <= math.Abs(want)/200+1e-3) {
				return false
			}
		}
	}
	return true
}

func TestWarpGroups(t *testing.T) {
	_, mod := parseFile(t, "hopper.ptx")
	for seed := range uint64(6) {
		g := newGemm(t, 128, 64, 448)
		if _, err := g.launch(&Machine{Seed: seed, Check: true, Threads: 2}, mod); err != nil {
			t.Fatal(err)
		}
		if !g.right(t) {
			t.Errorf("seed %d: the product is wrong", seed)
		}
	}
}

func TestWarpGroupMutants(t *testing.T) {
	src, _ := parseFile(t, "hopper.ptx")
	all := Mutants(src)
	var missed []string
	for _, mutant := range all {
		g := newGemm(t, 64, 64, 448)
		m := &Machine{Check: true, Steps: 1 << 20}
		_, err := g.launch(m, mustParse(t, string(mutant.Source())))
		if err == nil && g.right(t) {
			missed = append(missed, mutant.Name)
		}
	}
	t.Logf("%d mutants, %d not found: %q", len(all), len(missed), missed)
	// The arrival after the last tile of an odd number: the producer waits for it no more.
	if len(all) < 25 || len(missed) != 1 {
		t.Errorf("%d mutants of %d are not found, not 1", len(missed), len(all))
	}
}

func TestTensorCopies(t *testing.T) {
	const src = header + `
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 x, .param .u32 y) {
	.shared .align 1024 .b8 mem[4096];
	.shared .align 8 .b64 bar;
	.reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .pred %p<3>;
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, mem;
	mov.u32 %r2, bar;
	ld.param.u32 %r3, [x];
	ld.param.u32 %r4, [y];
	setp.ne.u32 %p0, %r0, 0;
	@%p0 bra WAIT;
	mbarrier.init.shared.b64 [%r2], 1;
	fence.proxy.async;
	mov.b64 %rd0, map;
	cvta.param.u64 %rd0, %rd0;
	cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd0, {%r3, %r4}], [%r2];
	mbarrier.arrive.expect_tx.shared.b64 %rd7, [%r2], 1024;
WAIT:
	bar.sync 0;
AGAIN:
	mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;
	@!%p1 bra AGAIN;
	mad.lo.u32 %r5, %r0, 32, %r1;
	ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r5];
	ld.param.u64 %rd1, [out];
	mul.wide.u32 %rd2, %r0, 32;
	add.s64 %rd3, %rd1, %rd2;
	st.global.v4.u32 [%rd3], {%r6, %r7, %r8, %r9};
	ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r5+16];
	st.global.v4.u32 [%rd3+16], {%r6, %r7, %r8, %r9};
	ret;
}
`
	k := mustParse(t, src).Kernel("k")
	const width, height, box, rows = 40, 20, 16, 16
	values := make([]uint32, width*height)
	for i := range values {
		values[i] = uint32(i + 1)
	}
	for _, swizzle := range []int{0, 64} {
		for _, at := range [][2]int32{{0, 0}, {8, 4}, {32, 10}, {-5, -3}, {100, 0}} {
			mem := NewMemory(1 << 20)
			m := TensorMap{Base: upload(t, mem, values), ElementBytes: 4,
				Dims: []uint32{width, height}, Strides: []uint64{width * 4}, Box: []uint32{box,
					rows},
				Swizzle: swizzle}
			encoded, err := m.Encode()
			if err != nil {
				t.Fatal(err)
			}
			out := upload(t, mem, make([]uint32, box*rows))
			if _, err := (&Machine{Memory: mem, Check: true}).Launch(k, [3]uint32{1, 1, 1},
				[3]uint32{32, 1, 1}, 0, params(encoded, out, at[0], at[1])); err != nil {
				t.Fatal(err)
			}
			got := download[uint32](t, mem, out, box*rows)
			for i := range box * rows {
				x, y := int(at[0])+i%box, int(at[1])+i/box
				want := uint32(0)
				if x >= 0 && x < width && y >= 0 && y < height {
					want = values[y*width+x]
				}
				// With 64 bytes of swizzle, piece p of row r is at piece p ^ r/2 mod 4.
				place := i
				if swizzle == 64 {
					piece := i % box / 4
					place = i/box*box + (piece^(i/box/2&3))*4 + i%4
				}
				if got[place] != want {
					t.Fatalf("swizzle %d at %v: element %d is %d, want %d", swizzle, at, i,
						got[place], want)
				}
			}
		}
	}
}
