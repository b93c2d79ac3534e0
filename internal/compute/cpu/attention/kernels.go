package attention

import "unsafe"

// scoreKernel writes the scaled scores of its queries with the 16 positions of each tile: queries
// and score rows lie qStride and outStride bytes apart. The kernels for one query or two write up
// to the next multiple of four tiles, those for more up to that of two at most. Tiles are those of
// a walk, of which offs is a place in at.
type scoreKernel func(base unsafe.Pointer, offs *int, tiles int,
	q *float32, qStride, dim int, scale float32, out *float32, outStride int)

// valueKernel adds count positions of V, from position first of the first tile on, times their
// weights to the accumulators of its queries, in slices slices of 16 dimensions from base on. Those
// of several slices at a time need a multiple of their number. Tiles are those of a walk, too.
type valueKernel func(base unsafe.Pointer, offs *int, first, count, slices int,
	p *float32, pStride int, acc *float32, accStride int)

// kernels are the kernels of one element kind, by how many queries they take at once (and slices).
// AVX2 has none for twelve.
type kernels struct {
	qk1, qk2, qk4, qk6, qk12                         scoreKernel
	pv1x1, pv1x2, pv1x4, pv2, pv4, pv6, pv12, pv12x2 valueKernel

	// wide is how many slices pv4 and pv6 take at a time, pair how many pv2.
	wide, pair int

	// turn makes slices of a tile of V, at dst, of those of a tile of K.
	turn func(dst, src unsafe.Pointer, slices int)
}
