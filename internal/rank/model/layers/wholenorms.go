package layers

import "math"

// wholeNorms normalise queries, and keys, over all heads of all ranks.
type wholeNorms struct {
	// query and key are the numbers of features of all ranks.
	query, key int
	// copies is how many ranks have the same key head.
	copies       int
	qNorm, kNorm []float32 // of this rank

	squares Tensor // [rows][query heads, then key heads, of all ranks]
}

// normalise normalises the queries and keys of qkv, which lie before keys and before values. The
// sum of squares of each head is exact in its place on the rank that has it and zero on others, so
// that their sum over ranks is the same for any number of them; heads are summed in their order.
func (y *Attention) normalise(qkv *Tensor, keys, values int) error {
	w, dim := y.whole, y.args.HeadDim
	queryHeads, keyHeads := w.query/dim, w.key/dim
	w.squares.Resize(qkv.rows, queryHeads+keyHeads)
	clear(w.squares.data)
	firstQuery, firstKey := y.group.Rank*y.args.Heads, y.group.Rank*keyHeads/y.group.Size
	owner := y.group.Rank%max(1, w.copies) == 0
	for r := range qkv.rows {
		row, squares := qkv.Row(r), w.squares.Row(r)
		for h := range y.args.Heads {
			head := row[h*dim : (h+1)*dim]
			squares[firstQuery+h] = y.dev.Vec().Dot(head, head)
		}
		for h := 0; owner && h < y.args.KVHeads; h++ {
			head := row[keys+h*dim : keys+(h+1)*dim]
			squares[queryHeads+firstKey+h] = y.dev.Vec().Dot(head, head)
		}
	}
	if err := y.allReduce(&w.squares); err != nil {
		return err
	}
	for r := range qkv.rows {
		row, squares := qkv.Row(r), w.squares.Row(r)
		y.scale(row[:keys], w.qNorm, squares[:queryHeads])
		y.scale(row[keys:values], w.kNorm, squares[queryHeads:])
	}
	return nil
}

// scale multiplies x by weight and by the reciprocal of the root mean square of the heads with the
// given sums of squares.
func (y *Attention) scale(x, weight, squares []float32) {
	sum := float32(0)
	for _, s := range squares {
		sum += s
	}
	n := float32(len(squares) * y.args.HeadDim)
	f := float32(1 / math.Sqrt(float64(sum/n+y.eps)))
	for i := range x {
		x[i] = float32(x[i]*f) * weight[i]
	}
}
