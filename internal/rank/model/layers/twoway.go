package layers

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
)

// TwoWayAttention is attention of the rows of a text to each other, before and after them. It has
// no cache: all of a text is in one step. The heads are divided among the ranks.
type TwoWayAttention struct {
	*rank
	args   compute.AttentionArgs
	rotary *Rotary
}

// TwoWayAttention makes the layer. reach, if positive, limits a row at position p to the positions
// p-reach to p+reach; rotary turns queries and keys, and is nil for models that have positions
// another way.
func (l *Loader) TwoWayAttention(h Heads, reach int, rotary *Rotary) *TwoWayAttention {
	own := l.local(h)
	l.widen(&l.attended, own.Query*h.Dim)
	y := &TwoWayAttention{rank: l.rank, rotary: rotary, args: compute.AttentionArgs{
		Heads: own.Query, KVHeads: own.KV, HeadDim: h.Dim, Ahead: math.MaxInt32,
		Scale: float32(1 / math.Sqrt(float64(h.Dim)))}}
	if reach > 0 {
		y.args.Window, y.args.Ahead = reach+1, reach
	}
	if l.scale != nil {
		l.widen(&l.laid, l.scale.planner.AmongBytes(own.KV, h.Dim)/4)
	}
	return y
}

// Forward returns what the rows' queries find, [rows][query heads of this rank · dimension]. qkv is
// what QKV's layer returned, and is changed.
func (y *TwoWayAttention) Forward(qkv *Tensor, b *compute.Batch) *Tensor {
	a := &y.args
	keys := a.Heads * a.HeadDim
	width := a.KVHeads * a.HeadDim
	q, k := qkv.Columns(0, keys), qkv.Columns(keys, width)
	if angles := y.rotary.turns(); angles != nil {
		y.dev.Heads(q, a.HeadDim, nil, 0, angles)
		y.dev.Heads(k, a.HeadDim, nil, 0, angles)
	}
	y.dev.Resize(&y.attended, qkv.Rows, keys)
	y.dev.AttentionAmong(b, y.args, &y.attended, q, k, qkv.Columns(keys+width, width))
	return &y.attended
}
