package model

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
)

// newQwen3Moe builds Qwen3MoeForCausalLM: Qwen3's attention with a mixture of experts as feed-forward block
// in all layers but those the config names.
func newQwen3Moe(l *loader) (Model, error) {
	c := l.cfg
	return newDecoder(l, decoderOptions{qkvBias: c.QKVBias, outBias: c.OutBias, headNorms: true,
		mlp: func(l *loader, layer int, prefix string) (feedForward, error) {
			if !c.SparseLayer(layer) {
				return newGatedMLP(l, prefix, c.IntermediateSize, false)
			}
			return newMixture(l, prefix)
		}})
}

// mixture sends each row to the few experts its router finds most likely and adds their outputs, weighted.
// Every rank holds its share of each expert's inner features.
type mixture struct {
	router    *gemm.Matrix
	experts   []expert
	perToken  int
	normalise bool
	width     int
	chunks    int

	scores  []float32
	chosen  []int32   // [rows][perToken], most likely first
	weights []float32 // parallel to chosen
	// Rows ordered by expert: those of expert e, ascending, are rowsOf[first[e]:first[e+1]].
	first    []int32
	rowsOf   []int32
	weightOf []float32 // parallel to rowsOf
	in, both []float32
	combined []float32
	parts    []float32 // [chunks][rows of one expert][hidden]
	sum      []float32 // [rows][chunks][hidden]
	total    []float32
}

type expert struct{ gateUp, down *gemm.Matrix }

func newMixture(l *loader, prefix string) (*mixture, error) {
	c := l.cfg
	hidden, inner := c.HiddenSize, c.MoEIntermediateSize
	y := &mixture{perToken: c.ExpertsPerToken, normalise: c.NormTopK, width: inner / l.shard.Size,
		chunks: Chunks / l.shard.Size, experts: make([]expert, c.Experts)}
	var err error
	if y.router, err = l.column(whole(prefix+"gate.weight", c.Experts, hidden)); err != nil {
		return nil, err
	}
	for e := range y.experts {
		p := fmt.Sprintf("%sexperts.%d.", prefix, e)
		x := &y.experts[e]
		if x.gateUp, err = l.column(l.columnPart(p+"gate_proj.weight", inner, hidden),
			l.columnPart(p+"up_proj.weight", inner, hidden)); err != nil {
			return nil, err
		}
		if x.down, err = l.row(p+"down_proj.weight", hidden, inner); err != nil {
			return nil, err
		}
	}
	return y, nil
}

// forward keeps the chunks of the experts' outputs apart until all experts are summed: the order of addition,
// experts first and then the tree over chunks and ranks, is the same for any number of ranks.
func (y *mixture) forward(b *base, residual, x []float32, rows int) error {
	hidden := b.hidden
	y.route(b, x, rows)
	y.group(rows)
	y.sum = grow(y.sum, y.chunks*rows*hidden)
	clear(y.sum)
	for e := range y.experts {
		if lo, hi := y.first[e], y.first[e+1]; lo < hi {
			y.expert(b, &y.experts[e], x, y.rowsOf[lo:hi], y.weightOf[lo:hi])
		}
	}
	y.total = grow(y.total, rows*hidden)
	b.dev.SumChunks(y.total, y.sum, rows, y.chunks, hidden)
	if err := b.allReduce(y.total[:rows*hidden]); err != nil {
		return err
	}
	b.dev.Add(residual, y.total, rows, hidden)
	return nil
}

// route fills chosen and weights: the softmax of the router's scores, its largest perToken entries, and
// those divided by their sum when the config says so.
func (y *mixture) route(b *base, x []float32, rows int) {
	n, k := len(y.experts), y.perToken
	y.scores = grow(y.scores, rows*n)
	b.dev.Linear(y.scores, x, y.router, rows, nil)
	y.chosen = slices.Grow(y.chosen[:0], rows*k)[:rows*k]
	y.weights = grow(y.weights, rows*k)
	for r := range rows {
		p := y.scores[r*n : (r+1)*n]
		b.dev.Vec().Softmax(p)
		w := y.weights[r*k : (r+1)*k]
		largest(p, y.chosen[r*k:(r+1)*k], w)
		if !y.normalise {
			continue
		}
		var sum float32
		for _, v := range w {
			sum += v
		}
		for j := range w {
			w[j] /= sum
		}
	}
}

// largest finds the len(ids) largest of p, at least as many, in descending order; of equals the first comes first.
func largest(p []float32, ids []int32, values []float32) {
	found := 0
	for i, v := range p {
		if found == len(ids) {
			if !(v > values[found-1]) {
				continue
			}
			found--
		}
		at := found
		for ; at > 0 && v > values[at-1]; at-- {
			ids[at], values[at] = ids[at-1], values[at-1]
		}
		ids[at], values[at] = int32(i), v
		found++
	}
}

// group orders the rows by the experts they go to.
func (y *mixture) group(rows int) {
	n, all := len(y.experts), rows*y.perToken
	y.first = slices.Grow(y.first[:0], n+1)[:n+1]
	y.rowsOf = slices.Grow(y.rowsOf[:0], all)[:all]
	y.weightOf = grow(y.weightOf, all)
	clear(y.first)
	for _, e := range y.chosen {
		y.first[e]++
	}
	// first[e] becomes where the rows of e end; filling from the last row on makes it where they begin.
	var end int32
	for e := range n {
		end += y.first[e]
		y.first[e] = end
	}
	y.first[n] = end
	for i := all - 1; i >= 0; i-- {
		e := y.chosen[i]
		y.first[e]--
		y.rowsOf[y.first[e]] = int32(i / y.perToken)
		y.weightOf[y.first[e]] = y.weights[i]
	}
}

// expert adds the weighted output of one expert for the given rows to the chunk sums.
func (y *mixture) expert(b *base, e *expert, x []float32, rows []int32, weights []float32) {
	hidden, n := b.hidden, len(rows)
	y.in = grow(y.in, n*hidden)
	for i, r := range rows {
		copy(y.in[i*hidden:(i+1)*hidden], x[int(r)*hidden:])
	}
	y.both = grow(y.both, n*2*y.width)
	y.combined = grow(y.combined, n*y.width)
	y.parts = grow(y.parts, y.chunks*n*hidden)
	b.dev.Linear(y.both, y.in, e.gateUp, n, nil)
	b.dev.SiluMul(y.combined, y.both, n, y.width)
	b.dev.LinearChunks(y.parts, y.combined, e.down, n)
	b.dev.AddWeighted(y.sum, y.parts, weights, rows, y.chunks, hidden)
}
