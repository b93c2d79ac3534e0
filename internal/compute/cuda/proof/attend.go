package proof

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// What the kernels of attend.cu compute in: positions of a tile, and of a segment.
const (
	tilePositions    = 64
	segmentPositions = 128
)

// attendCases are of attention by tensor cores, whose blocks have few rows or many, and a segment
// of the positions each or all of them.
func attendCases() (list []Case) {
	// Few rows of long sequences are cut in segments, which are folded.
	decoding := []sequence{{300, 1}, {129, 2}, {5, 1}}
	var many []sequence
	for i := range 70 {
		many = append(many, sequence{100 + i, 1})
	}
	for _, a := range []attentionShape{
		{args: plain(4, 2, 64), sequences: decoding},
		{args: plain(2, 2, 128), sequences: short},
		{args: plain(1, 1, 128), sequences: []sequence{{300, 1}}},
		{args: plain(4, 2, 64), sequences: short},
		{args: plain(4, 2, 64), sequences: []sequence{{50, 17}}},
		{args: plain(2, 2, 128), sequences: []sequence{{50, 17}}},
		{args: plain(4, 2, 64), sequences: long, cost: Full},
		{args: plain(4, 1, 128), sequences: long, cost: Full},
		{args: windowed(plain(4, 2, 64), 70), sequences: long, cost: Full},
		{args: windowed(plain(2, 2, 64), 1), sinks: true, sequences: long, cost: Full},
		{args: capped(plain(3, 1, 128)), sinks: true, sequences: decoding, cost: Full},
		{args: plain(16, 1, 128), sequences: short, cost: Full},
		{args: windowed(plain(5, 1, 64), 150), sequences: decoding, cost: Full},
		{args: plain(4, 4, 64), sequences: many, cost: Full}, // segments are one block's
		{args: plain(4, 2, 64), sequences: []sequence{{600, 1}}, cost: Full},
		{args: plain(2, 1, 128), sequences: []sequence{{600, 1}}, cost: Full},
		{args: plain(2, 1, 64), sequences: []sequence{{3500, 1}}, cost: Full},
		{args: plain(32, 8, 128), sequences: []sequence{{6000, 1}, {1030, 1}, {0, 300}},
			cost: Large},
		{args: plain(16, 8, 128), sequences: []sequence{{2000, 40}}, cost: Large},
	} {
		list = append(list, a.attendCase())
	}
	return list
}

func (a attentionShape) attendCase() Case {
	var about []kernels.ID
	many, segments := a.computed()
	if many > 0 {
		about = append(about, kernels.Attend64BF16)
	}
	if many < len(a.sequences) {
		about = append(about, kernels.AttendFew64BF16)
	}
	if segments {
		about = append(about, kernels.AttendSegments64BF16)
	}
	for i := range about {
		if a.args.HeadDim == 128 {
			about[i]++
		}
	}
	if segments {
		about = append(about, kernels.Fold)
	}
	return Case{Name: a.attendName(), Kernels: about, cost: a.cost,
		run: func(s *subject) { s.inSegments(&a, segmentPositions) }}
}

// inSegments compares attention by tensor cores with its reference, in segments of so many
// positions.
func (s *subject) inSegments(a *attentionShape, positions int) {
	// A weight may round to its neighbour, which is what its sum may be off by.
	tolerance := 4e-3
	if s.dtype == compute.Float16 {
		tolerance = 5e-4
	}
	s.attention(a, segmented(positions, a.cache), tolerance)
}

func (a attentionShape) attendName() string {
	rows, positions := 0, 0
	for _, y := range a.sequences {
		rows, positions = rows+y.rows, max(positions, y.cached+y.rows)
	}
	name := fmt.Sprintf("tensor cores' attention, %d/%d heads of %d, %d rows of %d sequences, up "+
		"to position %d", a.args.Heads, a.args.KVHeads, a.args.HeadDim, rows, len(a.sequences),
		positions)
	if a.values > 0 {
		name += fmt.Sprintf(", a latent with %d values", a.values)
	}
	if a.cache != 0 {
		name += fmt.Sprintf(", %v", a.cache)
	}
	if a.args.Window > 0 {
		name += fmt.Sprintf(", window %d", a.args.Window)
	}
	if a.sinks {
		name += ", sinks"
	}
	if a.args.Cap > 0 {
		name += ", capped"
	}
	return name
}

// computed says of how many sequences many rows are computed, more than sixteen with the heads of a
// group, and whether blocks for few have some segments each, but on a small device: there are fewer
// than it has room for, and they are long enough.
func (a attentionShape) computed() (many int, segments bool) {
	positions := 0
	for _, y := range a.sequences {
		if y.rows*(a.args.Heads/a.args.KVHeads) > 16 {
			many++
		}
		positions = max(positions, y.cached+y.rows)
	}
	few := len(a.sequences) - many
	return many, few > 0 && few < 10 && positions > segmentPositions
}

// segmented is attention in the order in which attend.cu and split.cu compute it, in segments of so
// many positions over a cache of a type, and with their roundings: queries have 16 bits, and so
// have weights, relative to the greatest score of the tiles so far, when they multiply values, or
// codes, whose scale then is part of them; their sum has them as they are. Everything else is exact
// here.
func segmented(positions int, cache compute.DType) attend {
	return func(s *subject, a *compute.AttentionArgs, sink *float64, query []float64,
		keys, values [][]float64, from, to int) []float64 {
		for i, v := range query {
			query[i] = s.rounded(float32(v))
		}
		begin := func() state {
			return state{most: math.Inf(-1), out: make([]float64, len(values[from])), cache: cache}
		}
		whole := begin()
		for at := from / positions * positions; at < to; at += positions {
			part := begin()
			for tile := at; tile < min(at+positions, to); tile += tilePositions {
				part.tile(s, a, query, keys, values, max(tile, from),
					min(tile+tilePositions, to))
			}
			whole.merge(&part)
		}
		if sink != nil {
			one := begin()
			one.most, one.sum = *sink, 1
			whole.merge(&one)
		}
		for i := range whole.out {
			whole.out[i] /= whole.sum
		}
		return whole.out
	}
}

// state is a softmax so far: the greatest score, the sum of weights relative to it, and what they
// make of values.
type state struct {
	most, sum float64
	out       []float64
	cache     compute.DType
}

// scale is what weights are multiplied by before they are rounded, of a value that was stored: 1
// where there are no codes, else that by which the largest number is the largest code. Numbers that
// float16 has of codes are smaller, and the scale greater, so that few weights are below its
// smallest.
func (y *state) scale(s *subject, stored []float64) float64 {
	if !y.cache.Scaled() {
		return 1
	}
	largest, by := 127.0, 64.0
	if y.cache == compute.E4M3 {
		largest, by = 448, 256
	}
	if s.dtype == compute.BFloat16 {
		by = 1
	}
	most := 0.0
	for _, v := range stored {
		most = max(most, math.Abs(v))
	}
	return most / largest * by
}

// tile goes on with the positions from to to-1.
func (y *state) tile(s *subject, a *compute.AttentionArgs, query []float64,
	keys, values [][]float64, from, to int) {
	if from >= to {
		return
	}
	scores, most := make([]float64, to-from), y.most
	for i := range scores {
		scores[i] = scored(a, query, keys[from+i])
		most = max(most, scores[i])
	}
	y.relativeTo(most)
	for i, v := range scores {
		weight := math.Exp(v - most)
		y.sum += weight
		scale := y.scale(s, values[from+i])
		if len(keys[from+i]) > len(values[from+i]) { // a latent, of which values are a part
			scale = y.scale(s, keys[from+i])
		}
		rounded := s.rounded(float32(weight*scale)) / scale
		for d := range y.out {
			y.out[d] += rounded * values[from+i][d]
		}
	}
}

// relativeTo changes the greatest score.
func (y *state) relativeTo(most float64) {
	factor := math.Exp(y.most - most)
	y.most, y.sum = most, y.sum*factor
	for d := range y.out {
		y.out[d] *= factor
	}
}

// merge adds what another state found.
func (y *state) merge(o *state) {
	if math.IsInf(o.most, -1) {
		return
	}
	most := max(y.most, o.most)
	y.relativeTo(most)
	o.relativeTo(most)
	y.sum += o.sum
	for d := range y.out {
		y.out[d] += o.out[d]
	}
}
