package attention

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
)

// On AMX, scaled queries and weights of positions are rounded to bfloat16, as keys and values are,
// and both products are those of package amx: scores sum along the head's dimension, outputs along
// positions, in blocks that begin at multiples of amx.Block positions. A position that a row does
// not attend to weighs nothing, and adds nothing (but 0 to -0). So the queries of a group share the
// work of making panels of keys and values, which is most of it for few rows, and one query has the
// bits that it has among many. Codes are exact in bfloat16; a weight is multiplied by its value's
// scale before it is rounded.

// tileQueries is how many queries a group has at most whose products are made by tiles, and
// blockQueries those of a pass: their scores and weights stay in the core's caches, and they do not
// score all positions that later ones attend to.
const (
	tileQueries  = 512
	blockQueries = 2 * amx.Block
)

// tiled says that AMX's tiles make the products of a layer.
func (j *job) tiled() bool {
	dtype := j.c.cfg.DType
	return j.a.tiles && (dtype == compute.BFloat16 || dtype.Scaled()) &&
		j.p.Kind == compute.KeysValues && j.args.HeadDim%2 == 0
}

// tiling is the scratch memory of products by tiles.
type tiling struct {
	queries []uint16 // of the group, in blocks
	weights []uint16 // of positions for each query of a pass, in blocks
	all     span     // of the group
	keys    []uint16 // of it, in panels
	values  []uint16 // likewise
	// The greatest score of each query of a pass, and the sum of its weights.
	tops, sums [blockQueries]float32
}

// span is what some queries attend to in a stretch: positions own to end-1, which lie in panels, or
// in blocks of weights, from the position first on.
type span struct{ first, own, end int }

// span is that of n queries of a group, from i0 on.
func (j *job) span(g *group, st, i0, n int) span {
	own := max(st*stretch, j.from(g.pos(j, i0)))
	end := min((st+1)*stretch, j.until(g.seg, g.pos(j, i0+n-1)))
	return span{own / amx.Block * amx.Block, own, end}
}

// panelled is how many columns the panels have that a number of columns takes.
func panelled(n int) int { return (n + amx.Block - 1) / amx.Block * amx.Block }

// loadTiles rounds the queries of a group, times the scale of scores.
func (s *scratch) loadTiles(j *job, g *group) {
	dim := j.args.HeadDim
	blocks := panelled(dim) / amx.Block
	x := &s.tiling
	x.queries = grow(x.queries, panelled(g.n)*blocks*amx.Block)
	s.scores = grow(s.scores, min(panelled(g.n), blockQueries)*scoreStride)
	for i := range g.n {
		at, ahead := g.query(j, i, j.ldq, dim), 0
		if i+1 < g.n {
			ahead = 4 * (g.query(j, i+1, j.ldq, dim) - at)
		}
		amx.RoundScaled(x.queries[amx.Row(i, blocks):], j.q[at:][:dim], j.args.Scale, ahead)
	}
}

// beginTiles makes what all queries of a group share in a stretch.
func (s *scratch) beginTiles(j *job, g *group, st int) {
	i0, n := j.active(g, st, 0, g.n)
	if n == 0 {
		return
	}
	all := j.span(g, st, i0, n)
	s.tiling.all = all
	if j.orderedFor(n) == nil {
		s.makePanels(j, g, all)
	}
	if j.c.cfg.DType.Scaled() {
		t := (all.own - all.first) / tile
		s.mapScales(j, g.head, all.first%stretch/tile, t, (all.end-all.first+tile-1)/tile)
		// What lies before and behind may be another sequence's.
		clear(s.scaling.values[:all.own-all.first])
		clear(s.scaling.values[all.end-all.first:])
	}
}

// attendTiles is attend by tiles, or for few queries by kernels that sum in their order.
func (s *scratch) attendTiles(j *job, g *group, st, i0, n int, acc []float32) {
	w := j.width()
	p, k := j.span(g, st, i0, n), j.orderedFor(n)
	skip := p.first - s.tiling.all.first
	if k != nil {
		s.scoreOrdered(j, k, g, i0, n, p)
	} else {
		s.scoreTiles(j, i0, n, p, skip)
	}

	// Weights, of all positions from first on, to the end of a block.
	count := panelled(p.end - p.first)
	x := &s.tiling
	x.weights = grow(x.weights, blockQueries*count)
	var keys, values []float32 // scales
	if j.c.cfg.DType.Scaled() {
		keys, values = s.scaling.keys[skip:], s.scaling.values[skip:][:count]
	}
	for i := i0; i < i0+n; i++ {
		own := j.span(g, st, i, 1)
		from, until := own.own-p.first, own.end-p.first
		scores := s.scores[i%blockQueries*scoreStride:][:count]
		if keys != nil {
			j.a.ops.Mul(scores[from:until], keys[from:])
		}
		if limit := j.args.Cap; limit > 0 {
			j.a.ops.TanhCap(scores[from:until], limit)
		}
		r := i % blockQueries
		to := x.weights[amx.Row(r, count/amx.Block):]
		x.tops[r], x.sums[r] = amx.Weigh(to, scores, from, until, values)
	}
	if k != nil {
		s.valueOrdered(j, k, g, st, i0, n, p, acc)
	} else {
		s.valueTiles(j, i0, n, p, skip, acc)
	}
	for i := range n {
		a, r := acc[i*w:(i+1)*w], (i0+i)%blockQueries
		a[w-extra], a[w-extra+1] = x.tops[r], x.sums[r]
		if k != nil {
			continue
		}
		// A weight of zero times a value that is no finite number is none of the row's.
		if sum := j.a.ops.Sum(a[:w-extra]); sum != sum {
			s.attendTiles(j, g, st, i0+i, 1, a)
		}
	}
}

// panelTiles are how many tiles of positions lie side by side in a panel of keys, or slices of
// dimensions in one of values.
const panelTiles = amx.Block / tile

// Sizes of panels of keys, and of values of a stretch, in numbers.
func (j *job) keyPanel() int   { return padded(j.args.HeadDim) * amx.Block }
func (j *job) valuePanel() int { return stretch * amx.Block }

// makePanels weaves keys and values of a span into panels.
func (s *scratch) makePanels(j *job, g *group, p span) {
	x := &s.tiling
	begin := p.first % stretch / tile
	tiles := (p.end - p.first + tile - 1) / tile
	size := j.keyPanel()
	x.keys = grow(x.keys, stretch/amx.Block*size)
	for t := range tiles {
		s.pair(j, begin+t, t+1 < tiles, j.keys(g.head), padded(j.args.HeadDim)/2,
			&x.keys[t/panelTiles*size+t%panelTiles*2*tile])
	}

	slices := j.width()/tile - 1
	size = j.valuePanel()
	x.values = grow(x.values, panelled(slices*tile)/amx.Block*size)
	panel := func(i int) []uint16 {
		return x.values[i/panelTiles*size+i%panelTiles*2*tile:]
	}
	slice := tile * tile * j.c.cfg.DType.Size()
	for t := (p.own - p.first) / tile; t < tiles; t++ {
		for i := range slices {
			s.pair(j, begin+t, t+1 < tiles, j.p.values+j.keys(g.head)+i*slice, tile/2,
				&panel(i)[t*tile*amx.Block])
		}
	}
	own, end := p.own-p.first, p.end-p.first
	for i := range slices {
		// What lies before and, to the end of a pair of steps, behind may be another sequence's.
		clearSteps(panel(i), 0, own)
		clearSteps(panel(i), end, end+end%2)
	}
}

// scoreTiles writes the scores of n queries of a pass, from i0 on, and of some before these, with
// the positions of a span, which begins so many after the panels.
func (s *scratch) scoreTiles(j *job, i0, n int, p span, skip int) {
	dim := j.args.HeadDim
	blocks := panelled(dim) / amx.Block
	x := &s.tiling
	size := j.keyPanel()
	// Rows of a block of queries lie together.
	row := i0 / amx.Block * amx.Block
	amx.Multiply(unsafe.Pointer(&x.keys[skip/amx.Block*size]), 2*size,
		panelled(p.end-p.first)/amx.Block, unsafe.Pointer(&x.queries[row*blocks*amx.Block]),
		blocks*amx.BlockBytes, dim/2, i0+n-row,
		unsafe.Pointer(&s.scores[row%blockQueries*scoreStride]), scoreStride*4, 0, 0, 4*amx.Block)
}

// valueTiles writes what n queries of a pass, from i0 on, find in a span, which begins so many
// positions after the panels, to the accumulators at acc, and past their dimensions; rows of a
// block before i0 are written, too.
func (s *scratch) valueTiles(j *job, i0, n int, p span, skip int, acc []float32) {
	w := j.width()
	x := &s.tiling
	count := panelled(p.end - p.first)
	row := i0 / amx.Block * amx.Block
	amx.Multiply(unsafe.Pointer(&x.values[skip*amx.Block]), 2*j.valuePanel(),
		panelled(w-extra)/amx.Block, unsafe.Pointer(&x.weights[row%blockQueries*count]),
		count*amx.Block*2, (p.end-p.first+1)/2, i0+n-row,
		unsafe.Add(unsafe.Pointer(&acc[0]), -(i0-row)*w*4), w*4, 0, 0, 4*amx.Block)
}

// clearSteps makes the columns of a slice zero, from a step to before another.
func clearSteps(panel []uint16, from, until int) {
	for k := from; k < until; k++ {
		if k%2 == 0 && k+1 < until {
			clear(panel[k*amx.Block:][:2*tile])
			k++
			continue
		}
		row := panel[k/2*2*amx.Block+k%2:][:2*tile-1]
		for c := 0; c < len(row); c += 2 {
			row[c] = 0
		}
	}
}

// pair weaves pairs of rows of the t-th tile of the stretch that is mapped, at an offset from its
// keys, into a panel; more says that the next tile follows.
func (s *scratch) pair(j *job, t int, more bool, offset, pairs int, dst *uint16) {
	ahead := 0
	if more {
		ahead = s.tiles.at[t+1] - s.tiles.at[t]
	}
	to, from := unsafe.Pointer(dst), unsafe.Pointer(&j.c.data[s.tiles.at[t]+offset])
	switch j.c.cfg.DType {
	case compute.Int8:
		amx.PairInt8(to, 4*amx.Block, from, pairs, ahead)
	case compute.E4M3:
		amx.PairE4M3(to, 4*amx.Block, from, pairs, ahead)
	default:
		amx.Pair(to, 4*amx.Block, from, pairs, ahead)
	}
}
