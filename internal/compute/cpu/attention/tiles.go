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

// tileQueries is how many queries a group has at most whose products are made by tiles.
const tileQueries = 256

// tiled says that AMX's tiles make the products of a layer.
func (j *job) tiled() bool {
	dtype := j.c.cfg.DType
	return j.a.tiles && (dtype == compute.BFloat16 || dtype.Scaled()) &&
		j.p.Kind == compute.KeysValues && j.args.HeadDim%2 == 0
}

// tiling is the scratch memory of products by tiles.
type tiling struct {
	queries []uint16  // of the group, in blocks
	weights []uint16  // of positions of the stretch for each query, in blocks
	panels  []uint16  // of keys, then of values
	out     []float32 // [query][padded to columns of panels]
}

// panelled is how many columns the panels have that a number of columns takes.
func panelled(n int) int { return (n + amx.Block - 1) / amx.Block * amx.Block }

// loadTiles rounds the queries of a group, times the scale of scores.
func (s *scratch) loadTiles(j *job, g *group) {
	dim := j.args.HeadDim
	blocks := panelled(dim) / amx.Block
	x := &s.tiling
	x.queries = grow(x.queries, panelled(g.n)*blocks*amx.Block)
	s.scores = grow(s.scores, panelled(g.n)*scoreStride)
	for i := range g.n {
		at, ahead := g.query(j, i, j.ldq, dim), 0
		if i+1 < g.n {
			ahead = 4 * (g.query(j, i+1, j.ldq, dim) - at)
		}
		amx.RoundScaled(x.queries[amx.Row(i, blocks):], j.q[at:][:dim], j.args.Scale, ahead)
	}
}

// attendTiles is attend by tiles.
func (s *scratch) attendTiles(j *job, g *group, st, i0, n int, acc []float32) {
	w := j.width()
	begin, end := st*stretch, (st+1)*stretch
	lastPos := g.pos(j, i0+n-1)
	first := max(begin, j.from(g.pos(j, i0))) / amx.Block * amx.Block
	last := min(end, j.until(g.seg, lastPos))
	k := j.orderedFor(n)
	if k != nil {
		s.scoreOrdered(j, k, g, i0, n, first, last)
	} else {
		s.scoreTiles(j, g, i0, n, first, last)
	}

	// Weights, of all positions from first on, to the end of a block.
	count := panelled(last - first)
	x := &s.tiling
	x.weights = grow(x.weights, panelled(i0+n)*count)
	own := max(begin, j.from(g.pos(j, i0))) - first
	var scales []float32 // of values
	if j.c.cfg.DType.Scaled() {
		t := own / tile
		s.mapScales(j, g.head, first%stretch/tile, t, (last-first+tile-1)/tile)
		scales = s.scaling.values[:count]
		// What lies before and behind may be another sequence's.
		clear(scales[:own])
		clear(scales[last-first:])
	}
	for i := i0; i < i0+n; i++ {
		pos := g.pos(j, i)
		from, until := max(begin, j.from(pos))-first, min(end, j.until(g.seg, pos))-first
		all := s.scores[i*scoreStride:][:count]
		if scales != nil {
			j.a.ops.Mul(all[from:until], s.scaling.keys[from:])
		}
		if limit := j.args.Cap; limit > 0 {
			j.a.ops.TanhCap(all[from:until], limit)
		}
		a := acc[(i-i0+1)*w-extra:]
		a[0], a[1] = amx.Weigh(x.weights[amx.Row(i, count/amx.Block):], all, from, until,
			scales)
	}
	if k != nil {
		s.valueOrdered(j, k, g, st, i0, n, first, count, acc)
		return
	}
	s.valueTiles(j, g, i0, n, first, own, last-first, acc)
	for i := 0; n > 1 && i < n; i++ {
		// A weight of zero times a value that is no finite number is none of the row's.
		if sum := j.a.ops.Sum(acc[i*w : (i+1)*w-extra]); sum != sum {
			s.attendTiles(j, g, st, i0+i, 1, acc[i*w:(i+1)*w])
		}
	}
}

// panelTiles are how many tiles of positions lie side by side in a panel of keys, or slices of
// dimensions in one of values.
const panelTiles = amx.Block / tile

// scoreTiles writes the scores of n queries of the group, from i0 on, and of some before these,
// with positions first to last-1 of a stretch.
func (s *scratch) scoreTiles(j *job, g *group, i0, n, first, last int) {
	dim := j.args.HeadDim
	blocks := panelled(dim) / amx.Block
	x := &s.tiling
	size := padded(dim) / 2 * amx.Block * 2 // of a panel
	x.panels = grow(x.panels, stretch/amx.Block*size)
	begin := first % stretch / tile
	tiles := (last - first + tile - 1) / tile
	for t := range tiles {
		s.pair(j, begin+t, t+1 < tiles, j.keys(g.head), padded(dim)/2,
			&x.panels[t/panelTiles*size+t%panelTiles*2*tile])
	}
	// Rows of a block of queries lie together.
	row := i0 / amx.Block * amx.Block
	amx.Multiply(unsafe.Pointer(&x.panels[0]), 2*size, (tiles+panelTiles-1)/panelTiles,
		unsafe.Pointer(&x.queries[row*blocks*amx.Block]), blocks*amx.BlockBytes, dim/2, i0+n-row,
		unsafe.Pointer(&s.scores[row*scoreStride]), scoreStride*4, 0, 0, 4*amx.Block)
}

// valueTiles writes what n queries of the group, from i0 on, find to the accumulators at acc: in a
// stretch, of the positions after first, those from own to before end.
func (s *scratch) valueTiles(j *job, g *group, i0, n, first, own, end int, acc []float32) {
	w := j.width()
	x := &s.tiling
	slices := w/tile - 1
	count := panelled(end)
	columns := panelled(slices * tile)
	size := count * amx.Block // of a panel
	x.panels = grow(x.panels, columns/amx.Block*size)
	begin, slice := first%stretch/tile, tile*tile*j.c.cfg.DType.Size()
	panel := func(i int) []uint16 {
		return x.panels[i/panelTiles*size+i%panelTiles*2*tile:]
	}
	for t := own / tile; t*tile < end; t++ {
		for i := range slices {
			s.pair(j, begin+t, (t+1)*tile < end, j.p.values+j.keys(g.head)+i*slice, tile/2,
				&panel(i)[t*tile*amx.Block])
		}
	}
	for i := range slices {
		// What lies before and, to the end of a pair of steps, behind may be another sequence's.
		clearSteps(panel(i), 0, own)
		clearSteps(panel(i), end, end+end%2)
	}
	row := i0 / amx.Block * amx.Block
	x.out = grow(x.out, panelled(g.n)*columns)
	amx.Multiply(unsafe.Pointer(&x.panels[0]), 2*size, columns/amx.Block,
		unsafe.Pointer(&x.weights[row*count]), count*amx.Block*2, (end+1)/2, i0+n-row,
		unsafe.Pointer(&x.out[row*columns]), columns*4, 0, 0, 4*amx.Block)
	for i := range n {
		copy(acc[i*w:(i+1)*w-extra], x.out[(i0+i)*columns:])
	}
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
		ahead = s.tiles[t+1] - s.tiles[t]
	}
	to, from := unsafe.Pointer(dst), unsafe.Pointer(&j.c.data[s.tiles[t]+offset])
	switch j.c.cfg.DType {
	case compute.Int8:
		amx.PairInt8(to, 4*amx.Block, from, pairs, ahead)
	case compute.E4M3:
		amx.PairE4M3(to, 4*amx.Block, from, pairs, ahead)
	default:
		amx.Pair(to, 4*amx.Block, from, pairs, ahead)
	}
}
