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

	scores   []float32
	chosen   []int32   // [rows][perToken], most likely first
	weights  []float32 // parallel to chosen
	rowsOf   []int32   // rows sent to the expert at hand
	weightOf []float32
	in, both []float32
	combined []float32
	parts    []float32 // [chunks][rowsOf][hidden]
	sum      []float32 // [chunks][rows][hidden]
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
	y.sum = grow(y.sum, y.chunks*rows*hidden)
	clear(y.sum)
	for e := range y.experts {
		y.rowsOf, y.weightOf = y.rowsOf[:0], y.weightOf[:0]
		for r := range rows {
			for j, id := range y.chosen[r*y.perToken : (r+1)*y.perToken] {
				if int(id) == e {
					y.rowsOf = append(y.rowsOf, int32(r))
					y.weightOf = append(y.weightOf, y.weights[r*y.perToken+j])
				}
			}
		}
		if len(y.rowsOf) > 0 {
			y.expert(b, &y.experts[e], x, rows)
		}
	}
	y.total = grow(y.total, rows*hidden)
	gemm.TreeSum(y.total, y.sum, y.chunks)
	if b.size > 1 {
		if err := b.comm.AllReduce(y.total[:rows*hidden]); err != nil {
			return err
		}
	}
	b.dev.Add(residual, y.total, rows, hidden)
	return nil
}

// route fills chosen and weights: the softmax of the router's scores, its largest perToken entries, and
// those divided by their sum when the config says so.
func (y *mixture) route(b *base, x []float32, rows int) {
	n := len(y.experts)
	y.scores = grow(y.scores, rows*n)
	b.dev.Linear(y.scores, x, y.router, rows, nil)
	y.chosen = slices.Grow(y.chosen[:0], rows*y.perToken)[:rows*y.perToken]
	y.weights = grow(y.weights, rows*y.perToken)
	for r := range rows {
		p := y.scores[r*n : (r+1)*n]
		b.dev.Vec().Softmax(p)
		ids := y.chosen[r*y.perToken : (r+1)*y.perToken]
		w := y.weights[r*y.perToken : (r+1)*y.perToken]
		for j := range ids {
			best := -1
			for e, v := range p {
				if (best < 0 || v > p[best]) && !slices.Contains(ids[:j], int32(e)) {
					best = e
				}
			}
			ids[j], w[j] = int32(best), p[best]
		}
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

// expert adds the weighted output of one expert for the rows in rowsOf to the chunk sums.
func (y *mixture) expert(b *base, e *expert, x []float32, rows int) {
	hidden, n := b.hidden, len(y.rowsOf)
	y.in = grow(y.in, n*hidden)
	for i, r := range y.rowsOf {
		copy(y.in[i*hidden:(i+1)*hidden], x[int(r)*hidden:])
	}
	y.both = grow(y.both, n*2*y.width)
	y.combined = grow(y.combined, n*y.width)
	y.parts = grow(y.parts, y.chunks*n*hidden)
	b.dev.Linear(y.both, y.in, e.gateUp, n, nil)
	b.dev.SiluMul(y.combined, y.both, n, y.width)
	b.dev.LinearChunks(y.parts, y.combined, e.down, n)
	for c := range y.chunks {
		for i, r := range y.rowsOf {
			at := (c*rows + int(r)) * hidden
			from := (c*n + i) * hidden
			b.dev.Vec().Axpy(y.sum[at:at+hidden], y.weightOf[i], y.parts[from:from+hidden])
		}
	}
}
