package attention

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
)

// fewQueries is how many queries of a group are multiplied without tiles at most: making panels of
// keys and values is more work than multiplying by them.
const fewQueries = 4

// ordered are the kernels of one element kind that sum in the order of AMX's tiles, for fewer
// queries than make panels worth their while.
type ordered struct {
	qk1, qk2          orderedScores
	pv1x1, pv1x4, pv2 orderedValues
}

// orderedScores is a scoreKernel of queries that are rounded, times the scale of scores, in blocks.
type orderedScores func(base unsafe.Pointer, offs *int, tiles int, q *uint16, qStride, dim int,
	out *float32, outStride int)

// orderedValues writes what count positions of V, from position first of a block on, times their
// weights, which lie in blocks, sum to. The weights, and the tiles, are those from the block on.
type orderedValues func(base unsafe.Pointer, offs *int, first, count, slices int, p *uint16,
	pStride int, acc *float32, accStride int)

// orderedFor are the kernels for n queries of a layer that tiles take, or nil for tiles.
func (j *job) orderedFor(n int) *ordered {
	if n > fewQueries {
		return nil
	}
	return j.a.ordered[j.c.cfg.DType]
}

// scoreOrdered is scoreTiles by the kernels k.
func (s *scratch) scoreOrdered(j *job, k *ordered, g *group, i0, n int, p span) {
	dim := j.args.HeadDim
	blocks := panelled(dim) / amx.Block
	offs := s.tiles.at[p.first%stretch/tile:][:(p.end-p.first+tile-1)/tile]
	base := unsafe.Pointer(&j.c.data[j.keys(g.head)])
	query := func(i int) *uint16 { return &s.tiling.queries[amx.Row(i, blocks)] }
	for i := i0; i < i0+n; i++ {
		f, stride, out := k.qk1, 0, &s.scores[i%blockQueries*scoreStride]
		q := query(i)
		if i+1 < i0+n {
			f, stride = k.qk2, int(uintptr(unsafe.Pointer(query(i+1)))-uintptr(unsafe.Pointer(q)))
			i++
		}
		f(base, &offs[0], len(offs), q, stride, dim, out, scoreStride*4)
	}
}

// valueOrdered is valueTiles by the kernels k: of each query, of its own positions alone.
func (s *scratch) valueOrdered(j *job, k *ordered, g *group, st, i0, n int, p span,
	acc []float32) {
	w, blocks := j.width(), panelled(p.end-p.first)/amx.Block
	slices := w/tile - 1
	whole := slices &^ 3
	data := j.c.data[j.p.values+j.keys(g.head):]
	rest := whole * tile * tile * j.c.cfg.DType.Size()
	for i := i0; i < i0+n; {
		took, own := min(i0+n-i, j.queries-i%j.queries, 2), j.span(g, st, i, 1)
		weights := func(i int) *uint16 {
			at := amx.Row(i%blockQueries, blocks)
			return &s.tiling.weights[at+(own.first-p.first)*amx.Block]
		}
		offs := &s.tiles.at[own.first%stretch/tile]
		q, to := weights(i), acc[(i-i0)*w:]
		stride, wide := 0, k.pv1x4
		if took == 2 {
			wide = k.pv2
			stride = int(uintptr(unsafe.Pointer(weights(i+1))) - uintptr(unsafe.Pointer(q)))
		}
		if whole > 0 {
			wide(unsafe.Pointer(&data[0]), offs, own.own-own.first, own.end-own.own, whole, q,
				stride, &to[0], w*4)
		}
		for r := 0; r < took && whole < slices; r++ {
			k.pv1x1(unsafe.Pointer(&data[rest]), offs, own.own-own.first, own.end-own.own,
				slices-whole, weights(i+r), 0, &to[r*w+whole*tile], w*4)
		}
		i += took
	}
}
