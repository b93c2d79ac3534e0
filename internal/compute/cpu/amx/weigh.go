package amx

import "math"

// unscaled are the scales of a block that has none.
var unscaled = [Block]float32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
	1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}

// Weigh makes weights of a softmax of the scores at positions from to before until: e^(score-top),
// top being the greatest, rounded to bfloat16 into the blocks that have the row. dst begins with
// its place in the first one. Other positions weigh 0, and their scores are not kept. There are
// whole blocks of scores. It returns top, and the sum of the weights before they were rounded,
// which is NaN if a score is. Unless scales is nil, weights that were added are multiplied by
// those, as many as scores, before they are rounded.
//
// A weight is 2^n·p(f), n+f being log2(e)·(score-top) and n whole; 0 below 2⁻¹²⁶. p is a polynomial
// of degree 4 that is 1 at 0, and within 3·10⁻⁶ of 2^f, times that: rounding gives away 2⁻⁹.
func Weigh(dst []uint16, scores []float32, from, until int, scales []float32) (top,
	sum float32) {
	const block = Block * Block
	first, last := from/Block, (until+Block-1)/Block
	for i := range len(scores) / Block {
		if i < first || i >= last {
			clear(dst[i*block:][:Block])
		}
	}
	negInf := float32(math.Inf(-1))
	for i := first * Block; i < from; i++ {
		scores[i] = negInf
	}
	for i := until; i < last*Block; i++ {
		scores[i] = negInf
	}
	if first >= last {
		return negInf, 0
	}
	x, to := &scores[:last*Block][first*Block], &dst[:(last-1)*block+Block][first*block]
	top = maxBlocks(x, last-first)
	base := top
	if base == negInf {
		base = 0 // no position weighs anything, rather than minus infinity less itself
	}
	if scales == nil {
		return top, weighBlocks(to, x, last-first, base, &unscaled[0], 0)
	}
	return top, weighBlocks(to, x, last-first, base, &scales[:last*Block][first*Block], 4*Block)
}
