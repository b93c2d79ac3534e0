package attention

import (
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// TestWalk wants every tile that a row reads fetched while that is read which is as many as ahead
// says before it, where a stretch has so many.
func TestWalk(t *testing.T) {
	for _, c := range []struct{ positions, window int }{{64, 0}, {512, 0}, {1300, 0}, {1300, 700},
		{1536, 512}} {
		s := shape{kvHeads: 3, group: 2, dim: 32, kind: compute.BFloat16, window: c.window}
		cache, table := filled(t, s, 16, c.positions)
		a := New(isa.AVX2)
		j := &a.job
		j.c, j.args = cache, s.args()
		j.b = &compute.Batch{Position: []int32{int32(c.positions - 1)}, Seq: []int32{0},
			Tables: [][]int32{table}}
		width := s.heads() * s.dim
		j.q, j.dst, j.ldq, j.ldd = make([]float32, width), make([]float32, width), width, width
		if err := j.check(0); err != nil {
			t.Fatal(err)
		}
		j.plan(1)
		var read, fetched []int
		scratch := &scratch{mapped: -1}
		for head := range j.heads {
			g := j.group(0, head, 0)
			from, until := g.stretches(j)
			for st := from; st < until; st++ {
				scratch.begin(j, 0, &g, st)
				w := &scratch.tiles
				for i, soon := range []*[stretchTiles]int{&w.keys, &w.values} {
					for k := scratch.first; k < scratch.first+scratch.count; k++ {
						at := w.at[k] + j.keys(head) + i*j.p.values
						read, fetched = append(read, at), append(fetched, at+soon[k])
					}
				}
			}
		}
		for i := ahead; i < len(read); i++ {
			if fetched[i-ahead] != read[i] {
				t.Errorf("%+v: of %d tiles that are read, the one at %d was not fetched at %d: "+
					"offset %d, want %d", c, len(read), i, i-ahead, fetched[i-ahead], read[i])
				break
			}
		}
	}
}
