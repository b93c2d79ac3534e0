package attention

import (
	"math/rand/v2"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// TestChunksAreBounded wants every part of every group of a batch in one chunk, and no chunk of
// more work than one may have but for its last part, however long the context is and however many
// threads there are; and one request's long context shared by all of them.
func TestChunksAreBounded(t *testing.T) {
	for name, b := range map[string]*compute.Batch{
		"a prompt":                consecutive(0, 6000),
		"a long prompt":           consecutive(0, 40000),
		"a late part of one":      consecutive(100000, 2048),
		"many that decode":        decoding(256, 8000),
		"one that decodes":        decoding(1, 10),
		"one with a long context": decoding(1, 40000),
	} {
		for _, threads := range []int{1, 2, 5, 64} {
			j := &job{a: New(isa.Best()), b: b, args: Args{Heads: 32, KVHeads: 8, HeadDim: 128},
				c: &Cache{cfg: compute.CacheShape{DType: compute.BFloat16}},
				p: &place{CacheLayer: compute.CacheLayer{Heads: 8, Dim: 128}}}
			j.plan(threads)
			done, most := map[chunk]bool{}, 0
			for _, c := range j.chunks {
				at, work, last := c, 0, 0
				for at.parts = 0; c.parts > 0; c.parts-- {
					g := j.group(at.seg, at.head, at.group)
					parts, _ := j.parts(&g)
					last = 2 * (g.pos(j, g.n-1) + 1) * g.n * j.args.HeadDim / parts
					work += last
					if done[at] {
						t.Fatalf("%s, %d threads: %+v is in two chunks", name, threads, at)
					}
					done[at] = true
					at.next(j, &g)
				}
				most = max(most, work-last)
			}
			if most > pool.MostWork {
				t.Errorf("%s, %d threads: a chunk of %d multiply-adds", name, threads, most)
			}
			all := 0
			for si, s := range j.segments {
				for n := range (s.rows + j.rows - 1) / j.rows {
					g := j.group(si, 0, n)
					parts, _ := j.parts(&g)
					all += parts * j.heads
				}
			}
			if len(done) != all {
				t.Errorf("%s, %d threads: %d parts, not %d", name, threads, len(done), all)
			}
			if name == "one with a long context" && len(j.chunks) < threads {
				t.Errorf("%s: %d chunks for %d threads", name, len(j.chunks), threads)
			}
		}
	}
}

// consecutive is a batch of rows of one sequence, from a position on.
func consecutive(pos int32, rows int) *compute.Batch {
	b := &compute.Batch{Seq: make([]int32, rows)}
	for i := range int32(rows) {
		b.Position = append(b.Position, pos+i)
	}
	return b
}

// decoding is a batch of one row of each of so many sequences, at the same position.
func decoding(sequences, pos int32) *compute.Batch {
	b := &compute.Batch{}
	for i := range sequences {
		b.Position, b.Seq = append(b.Position, pos), append(b.Seq, i)
	}
	return b
}

// TestSharedStretches wants the bits of one thread where several share the stretches of one long
// context, with windows, sinks and latents as without, and no memory beyond what ScratchBytes
// says.
func TestSharedStretches(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 1))
	const n = 2100
	for _, s := range []shape{
		{kvHeads: 1, group: 2, dim: 32, kind: compute.BFloat16},
		{kvHeads: 2, group: 7, dim: 20, window: 1500, sinks: true, kind: compute.Float32},
		{kvHeads: 1, group: 30, dim: 48, values: 32, kind: compute.Float16},
	} {
		q := s.sequence(r, n)
		var rows []row
		for pos := range n {
			rows = append(rows, row{0, pos})
		}
		one := newRig(t, s, isa.Best(), 1, 16, r, q)
		one.step(rows)
		many := newRig(t, s, isa.Best(), 9, 32, r, q)
		many.step(rows)
		equalBits(t, "a prompt", s, many.out[0], one.out[0])
		clear(many.out[0])
		w := s.heads() * s.outDim()
		for _, at := range [][]row{{{0, n - 1}}, {{0, 3}, {0, n - 2}}, {{0, n - 4}, {0, n - 3}}} {
			many.step(at)
			if len(many.a.job.joins) == 0 {
				t.Fatalf("%+v: no stretches are shared", s)
			}
		}
		equalBits(t, "shared stretches", s, many.out[0][(n-4)*w:], one.out[0][(n-4)*w:])
		equalBits(t, "beside a shared one", s, many.out[0][3*w:4*w], one.out[0][3*w:4*w])
		for _, x := range many.a.scratch {
			if size := int64(len(x.scores)+len(x.part)+len(x.acc)+len(x.q)) * 4; size >
				ScratchBytes()-mostStored*4 {
				t.Errorf("%+v: %d bytes for a thread", s, size)
			}
		}
	}
}
