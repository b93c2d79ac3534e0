package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// latents are layers that keep latents: DeepSeek's, smaller ones, and such as fill no tile.
var latents = []shape{
	{kvHeads: 1, group: 16, dim: 576, values: 512, kind: compute.BFloat16},
	{kvHeads: 1, group: 2, dim: 576, values: 512, kind: compute.Float16},
	{kvHeads: 1, group: 71, dim: 48, values: 32, kind: compute.Float32},
	{kvHeads: 1, group: 6, dim: 40, values: 40, window: 23, kind: compute.BFloat16},
	{kvHeads: 1, group: 1, dim: 34, values: 18, kind: compute.Float16},
	{kvHeads: 1, group: 5, dim: 50, values: 34, window: 70, kind: compute.Float32},
	{kvHeads: 1, group: 7, dim: 576, values: 512, kind: compute.Int8},
	{kvHeads: 1, group: 3, dim: 40, values: 32, window: 40, kind: compute.E4M3},
}

// TestLatentReference compares attention over latents with float64.
func TestLatentReference(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 1))
	for _, i := range levels() {
		for _, s := range latents {
			q := s.sequence(r, 150)
			g := newRig(t, s, i, 2, 16*(1+r.IntN(3)), r, q)
			g.mixed(r)
			dim := s.outDim()
			for range 60 {
				pos, head := r.IntN(q.n), r.IntN(s.heads())
				for d, want := range s.reference(q, pos, head) {
					got := float64(g.out[0][(pos*s.heads()+head)*dim+d])
					if !(math.Abs(got-want) <= 8e-6) {
						t.Fatalf("%v %+v: position %d, head %d, dimension %d is %v, want %v", i, s,
							pos, head, d, got, want)
					}
				}
			}
		}
	}
}

// TestLatentBits wants the bits of a row over latents to depend on nothing but its own sequence, as
// TestBitIdentity does of keys and values.
func TestLatentBits(t *testing.T) {
	for _, i := range levels() {
		r := rand.New(rand.NewPCG(12, uint64(i)))
		for k, s := range latents {
			n := 300
			if i == isa.Portable {
				n = 40
			}
			seqs := []*sequence{s.sequence(r, n), s.sequence(r, 1+r.IntN(n)), s.sequence(r, 1)}
			want := newRig(t, s, i, 1, 16, r, seqs[0]).decode(0)
			for threads := 1; threads <= 3; threads++ {
				if testing.Short() && threads != 1+k%3 {
					continue // the shapes take turns
				}
				g := newRig(t, s, i, threads, 16*(1+r.IntN(4)), r, seqs...)
				g.mixed(r)
				equalBits(t, fmt.Sprintf("%v, mixed batches, %d threads", i, threads), s, g.out[0],
					want)
			}
		}
	}
}

// TestTurn wants the tiles that kernels turn to be those of the portable loop.
func TestTurn(t *testing.T) {
	if !isa.Available(isa.AVX2) {
		t.Skip("no AVX2")
	}
	r := rand.New(rand.NewPCG(13, 1))
	for _, kind := range kinds {
		const slices = 3
		size := slices * tile * tile * kind.Size()
		src, got, want := make([]byte, size), make([]byte, size), make([]byte, size)
		for i := range src {
			src[i] = byte(r.Uint32())
		}
		avx2Kernels(kind).turn(unsafe.Pointer(&got[0]), unsafe.Pointer(&src[0]), slices)
		switch {
		case kind == compute.Float32:
			turnPortable(kind, cast[float32](want), cast[float32](src))
		case kind.Scaled():
			turnPortable(kind, want, src)
		default:
			turnPortable(kind, cast[uint16](want), cast[uint16](src))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("%v: byte %d is %#x, not %#x", kind, i, got[i], want[i])
			}
		}
	}
}

// TestLatentWithoutAllocation wants no step to allocate once scratch has grown.
func TestLatentWithoutAllocation(t *testing.T) {
	r := rand.New(rand.NewPCG(14, 1))
	s := latents[0]
	q := s.sequence(r, 100)
	g := newRig(t, s, isa.Best(), 2, 16, r, q)
	g.mixed(r)
	b := &compute.Batch{Position: []int32{99, 50}, Seq: []int32{0, 0}, Tables: g.tables}
	x, dst := q.q[:2*s.heads()*s.dim], make([]float32, 2*s.heads()*s.outDim())
	run := func() {
		g.a.Run(g.p, g.c, 1, b, s.args(), dst, len(dst)/2, x, len(x)/2)
		g.c.Write(1, 1, q.k, nil, s.dim, []int32{g.tables[0][0]}, compute.CacheScales{})
	}
	run()
	if n := testing.AllocsPerRun(20, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkLatent decodes one row at 4,096 positions: 16 query heads that read a latent, and as
// many that read one key/value head, or two, of about as many bytes.
func BenchmarkLatent(b *testing.B) {
	const n = 4096
	for name, s := range map[string]shape{
		"latent":      {kvHeads: 1, group: 16, dim: 576, values: 512},
		"one head":    {kvHeads: 1, group: 16, dim: 288},
		"eight heads": {kvHeads: 8, group: 2, dim: 128},
	} {
		for _, kind := range kinds {
			for _, threads := range []int{1, 2} {
				s.kind = kind
				b.Run(fmt.Sprintf("%s/%v/threads=%d", name, kind, threads), func(b *testing.B) {
					c, table := filled(b, s, 16, n)
					p := pool.New(threads)
					defer p.Close()
					a := New(isa.Best())
					q := randomRows(rand.New(rand.NewPCG(2, 2)), s.heads()*s.dim)
					dst := make([]float32, s.heads()*s.outDim())
					batch := &compute.Batch{Position: []int32{n - 1}, Seq: []int32{0},
						Tables: [][]int32{table}}
					run := best(b, func() {
						a.Run(p, c, 0, batch, s.args(), dst, len(dst), q, len(q))
					})
					work := n * s.heads() * (s.dim + s.outDim())
					b.ReportMetric(float64(run.Nanoseconds())/1e3, "best-µs")
					b.ReportMetric(float64(run)/float64(time.Nanosecond)/float64(len(c.data)),
						"ns/byte")
					b.ReportMetric(2*float64(work)/run.Seconds()/1e9, "GFLOP/s")
				})
			}
		}
	}
}
