package layers

import "github.com/eagleray/eagleray/internal/compute"

// wholeNorms normalise queries, and keys, over all heads of all ranks.
type wholeNorms struct {
	// query and key are the numbers of heads of all ranks.
	query, key int
	// copies is how many ranks have the same key head.
	copies       int
	qNorm, kNorm compute.Memory // of this rank

	squares Tensor // [rows][query heads, then key heads, of all ranks]
}

// normalise normalises the queries and keys of qkv, which lie before keys and before values. The
// sum of squares of each head is exact in its place on the rank that has it and zero on others, so
// that their sum over ranks is the same for any number of them; heads are summed in their order.
func (y *Attention) normalise(qkv *Tensor, keys, values int) error {
	w, dim := y.whole, y.args.HeadDim
	q, k := qkv.Columns(0, keys), qkv.Columns(keys, values-keys)
	y.dev.Resize(&w.squares, qkv.Rows, w.query+w.key)
	y.dev.Zero(&w.squares)
	y.dev.Squares(w.squares.Columns(y.group.Rank*y.args.Heads, y.args.Heads), q, dim)
	if y.group.Rank%max(1, w.copies) == 0 {
		first := w.query + y.group.Rank*w.key/y.group.Size
		y.dev.Squares(w.squares.Columns(first, y.args.KVHeads), k, dim)
	}
	if err := y.allReduce(&w.squares); err != nil {
		return err
	}
	y.dev.NormAcross(q, w.qNorm, w.squares.Columns(0, w.query), dim, y.eps)
	y.dev.NormAcross(k, w.kNorm, w.squares.Columns(w.query, w.key), dim, y.eps)
	return nil
}
