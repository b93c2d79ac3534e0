package attention

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// TestSinks compares attention with sinks with float64, and its bits in mixed batches with those of
// decoding one by one: over keys and values, in a window, in chunks, and over latents.
func TestSinks(t *testing.T) {
	for _, i := range levels() {
		r := rand.New(rand.NewPCG(21, uint64(i)))
		for _, s := range []shape{
			{kvHeads: 2, group: 8, dim: 64, sinks: true, kind: compute.BFloat16},
			{kvHeads: 1, group: 3, dim: 20, window: 17, sinks: true, kind: compute.Float16},
			{kvHeads: 2, group: 8, dim: 64, window: 37, chunked: true, sinks: true,
				kind: compute.BFloat16},
			{kvHeads: 1, group: 3, dim: 20, window: 16, chunked: true, kind: compute.Float32},
			{kvHeads: 1, group: 16, dim: 48, values: 32, sinks: true, kind: compute.Float32},
		} {
			seqs := []*sequence{s.sequence(r, 130), s.sequence(r, 60)}
			want := newRig(t, s, i, 1, 16, r, seqs[0]).decode(0)
			for threads := 1; threads <= 3; threads++ {
				g := newRig(t, s, i, threads, 32, r, seqs...)
				g.mixed(r)
				equalBits(t, "mixed batches", s, g.out[0], want)
			}
			for pos := range seqs[0].n {
				head := r.IntN(s.heads())
				for d, w := range s.reference(seqs[0], pos, head) {
					got := float64(want[(pos*s.heads()+head)*s.outDim()+d])
					if !(math.Abs(got-w) <= s.tolerance(i)) {
						t.Fatalf("%v %+v: position %d, head %d, dimension %d is %v, want %v", i, s,
							pos, head, d, got, w)
					}
				}
			}
		}
	}
}

// TestSinkLimits wants a sink of minus infinity to be none, bit by bit, and one far above all
// scores to take all of the weight.
func TestSinkLimits(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 1))
	s := shape{kvHeads: 1, group: 2, dim: 32, kind: compute.BFloat16}
	q := s.sequence(r, 40)
	g := newRig(t, s, isa.Best(), 1, 16, r, q)
	want := slices.Clone(g.decode(0))
	b := &compute.Batch{Position: []int32{39}, Seq: []int32{0}, Tables: g.tables}
	x, dst := q.q[39*2*s.dim:], make([]float32, 2*s.dim)
	for _, sink := range []float32{negInf, 1e4} {
		args := s.args()
		args.Sinks = []float32{sink, sink}
		g.a.Run(g.p, g.c, 1, b, args, dst, len(dst), x, len(x))
		for d, got := range dst {
			if sink > 0 && got != 0 || sink < 0 && got != want[39*2*s.dim+d] {
				t.Fatalf("sink %v: dimension %d is %v, without one %v", sink, d, got,
					want[39*2*s.dim+d])
			}
		}
	}
}
