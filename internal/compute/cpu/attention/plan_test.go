package attention

import (
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// TestChunksAreBounded wants every group of a batch in one chunk, and no chunk of more work than
// one may have but for its last group, however long the context is and however many threads there
// are.
func TestChunksAreBounded(t *testing.T) {
	for name, b := range map[string]*compute.Batch{
		"a prompt":           consecutive(0, 6000),
		"a long prompt":      consecutive(0, 40000),
		"a late part of one": consecutive(100000, 2048),
		"many that decode":   decoding(256, 8000),
		"one that decodes":   decoding(1, 10),
	} {
		for _, threads := range []int{1, 2, 5, 64} {
			j := &job{b: b, args: Args{Heads: 32, KVHeads: 8, HeadDim: 128}}
			j.plan(threads)
			groups, most := 0, 0
			for _, c := range j.chunks {
				at, work, last := c, 0, 0
				for range c.groups {
					s := &j.segments[at.seg]
					rows := min(j.rows, s.rows-at.group*j.rows)
					last = 2 * (s.pos + at.group*j.rows + rows) * rows * j.queries * j.args.HeadDim
					work += last
					groups++
					if at.group++; at.group*j.rows >= s.rows {
						at.group, at.head = 0, at.head+1
					}
					if at.head == j.heads {
						at.head, at.seg = 0, at.seg+1
					}
				}
				most = max(most, work-last)
			}
			if most > pool.MostWork {
				t.Errorf("%s, %d threads: a chunk of %d multiply-adds", name, threads, most)
			}
			all := 0
			for _, s := range j.segments {
				all += (s.rows + j.rows - 1) / j.rows * j.heads
			}
			if groups != all {
				t.Errorf("%s, %d threads: %d groups, not %d", name, threads, groups, all)
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
