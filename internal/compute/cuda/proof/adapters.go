package proof

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// adapterCases are rows of some adapters and of none, beside a weight of two modules.
func adapterCases() (list []Case) {
	for _, c := range []struct {
		rows, in, chunks, from int
		cost                   Cost
	}{{11, 88, 8, 0, Small}, {70, 600, 1, 3, Small}, {3, 2080, 2, 8, Full}, {97, 72, 4, 0, Full},
		{64, 4096, 8, 0, Large}, {2048, 4096, 8, 0, Large}} {
		about := []kernels.ID{kernels.Lower1, kernels.Raise1}
		if c.rows > 64 {
			about = []kernels.ID{kernels.Lower8, kernels.Raise8}
		}
		list = append(list, Case{Name: fmt.Sprintf("adapters, %d x %d in %d, from %d", c.rows, c.in,
			c.chunks, c.from), Kernels: about, cost: c.cost, run: func(s *subject) {
			adapters(s, c.rows, c.in, c.chunks, c.from)
		}})
	}
	return list
}

// lowRank is what an adapter has beside a weight, and its numbers as kernels have them: of A, and
// of each module's B.
type lowRank struct {
	w    *compute.LowRank
	a    []float64
	up   [][]float64
	rank int
}

// adapter makes one of modules of some ranks, which have 40 and 30 output features of 75.
func (s *subject) adapter(chunks, in int, ranks ...int) *lowRank {
	y := &lowRank{w: new(compute.LowRank)}
	for i, rank := range ranks {
		if rank == 0 {
			continue
		}
		out := 40 - 10*i
		b, numbers := s.weight(1, out, rank)
		y.w.Up = append(y.w.Up, compute.Upward{Weight: b, From: y.rank, Rank: rank, At: 43 * i})
		y.up = append(y.up, numbers)
		y.rank += rank
	}
	y.w.Down, y.a = s.weight(chunks, y.rank, in)
	return y
}

func adapters(s *subject, rows, in, chunks, from int) {
	const out = 75
	all := []*lowRank{s.adapter(chunks, in, 5, 16), nil, s.adapter(chunks, in, 0, 8)}
	beside := s.Beside()
	beside.Set(1, all[2].w)
	beside.Set(1, nil)
	for _, place := range []int{2, 0} {
		beside.Set(place, all[place].w)
	}
	b, places := new(compute.Batch), make([]int32, rows)
	for i := range places {
		addRow(b, i, 0, []int32{0})
		b.Tables, b.States = append(b.Tables, []int32{0}), append(b.States, -1)
		places[i] = int32([]int{0, 0, 2, -1, 1, 2, 2, 2, 0}[i%9])
	}
	s.Begin(b, places)
	x, v := s.tensor(rows, in+from+8)
	y, before := s.tensor(rows, out+5)
	low := s.poisoned(1, beside.Width()+2)
	beside.Lower(low.Memory, 1, x.Columns(from, in))
	beside.Raise(y.Columns(2, out), low.Memory, 1)
	if s.err != nil {
		return
	}
	width := beside.Width() / rows
	lowered, raised := make([]float64, rows*width), doubles(before)
	for r, place := range places {
		if place < 0 || all[place] == nil {
			continue
		}
		l, row := all[place], s.roundedAll(v[r*(in+from+8)+from:][:in])
		for j := range l.rank {
			lowered[r*width+j] = dot(row, l.a[j*in:(j+1)*in])
		}
		for i, up := range l.w.Up {
			for o := range up.Out() {
				raised[r*(out+5)+2+up.At+o] += dot(lowered[r*width+up.From:][:up.Rank],
					l.up[i][o*up.Rank:(o+1)*up.Rank])
			}
		}
	}
	s.report("A·x", low.Floats()[1:1+rows*width], lowered, productTolerance(in))
	s.report("B·(A·x) added", y.Floats(), raised, productTolerance(in)+productTolerance(out))
	ends := []float32{low.Floats()[0], low.Floats()[1+rows*width]}
	s.report("numbers beside it that were written", []float32{float32(
		2 - nans(ends))}, []float64{0}, exactly)
}

// nans counts what is no number.
func nans(v []float32) (n int) {
	for _, x := range v {
		if math.IsNaN(float64(x)) {
			n++
		}
	}
	return n
}
