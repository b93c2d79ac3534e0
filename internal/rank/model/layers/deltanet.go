package layers

import (
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
)

// DeltaNet is linear attention by a gated delta rule (Gated Delta Networks,
// https://arxiv.org/abs/2412.06464, as Qwen3-Next has it): what a request has said so far is a
// state of one size, which each row changes and reads. The key heads, with the value heads of each,
// are divided among the ranks.
type DeltaNet struct {
	*rank
	layer int // in the cache
	args  compute.DeltaArgs
	in    *ColumnLinear
}

// DeltaOptions are the numbers of a DeltaNet, on all ranks.
type DeltaOptions struct {
	// KeyHeads and ValueHeads are numbers of heads, KeyDim and ValueDim their dimensions.
	KeyHeads, ValueHeads, KeyDim, ValueDim int
	// Kernel is how many rows the convolution sums.
	Kernel int
	Eps    float32
	// Apart says that queries, keys and values of all heads stand one after the other in a module
	// in_proj_qkv, and that in_proj_z, in_proj_b and in_proj_a are modules. In GGUF the first two
	// are so in any case.
	Apart bool
}

// args is the numbers of one of size ranks.
func (o *DeltaOptions) args(size int) compute.DeltaArgs {
	return compute.DeltaArgs{Eps: o.Eps, Recurrence: compute.Recurrence{KeyHeads: o.KeyHeads / size,
		ValueHeads: o.ValueHeads / size, KeyDim: o.KeyDim, ValueDim: o.ValueDim, Kernel: o.Kernel}}
}

// CacheLayer is what the layer keeps of a request.
func (o *DeltaOptions) CacheLayer() compute.CacheLayer {
	a := o.args(1)
	return compute.CacheLayer{Kind: compute.State, Heads: o.KeyHeads, Dim: a.Floats()}
}

// DeltaNet makes the layer under prefix, modules in_proj_qkvz and in_proj_ba, in which each key
// head has its query, key, values and gates, and its β and decays, side by side, unless they are
// apart, and conv1d, norm, A_log and dt_bias, of in input features; layer is its place in the
// cache.
func (l *Loader) DeltaNet(prefix string, layer, in int, o DeltaOptions) *DeltaNet {
	y := &DeltaNet{rank: l.rank, layer: layer, args: o.args(l.group.Size)}
	a, first := &y.args, l.group.Rank*y.args.KeyHeads
	y.in = l.column(&l.qkv, false, l.deltaParts(prefix, in, &o)...)
	l.widen(&l.attended, a.ValueHeads*a.ValueDim)
	keys, values := o.KeyHeads*a.KeyDim, a.Group()*a.ValueDim
	a.Convolution = l.convolution(prefix+"conv1d.weight", o.KeyHeads*a.Channels(), a.KeyHeads,
		a.Kernel,
		channels{a.KeyDim, func(h int) int { return (first + h) * a.KeyDim }, 1},
		channels{a.KeyDim, func(h int) int { return keys + (first+h)*a.KeyDim }, 1},
		channels{values, func(h int) int { return 2*keys + (first+h)*values }, 1})
	l.decays(prefix, o.ValueHeads, &a.Recurrence)
	a.Norm = l.vector(prefix+"norm.weight", a.ValueDim, 0, a.ValueDim)
	return y
}

// decays reads the decays of the rank's value heads, of so many on all ranks: tensors A_log and
// dt_bias.
func (l *Loader) decays(prefix string, heads int, a *compute.Recurrence) {
	first := l.group.Rank * a.ValueHeads
	a.Shift = l.vector(prefix+"dt_bias", heads, first, first+a.ValueHeads)
	decay := l.floats(prefix+"A_log", []int{heads}, first, first+a.ValueHeads)
	for i, v := range decay {
		decay[i] = float32(-math.Exp(float64(v)))
	}
	a.Decay = l.upload(decay)
}

// deltaParts are the rank's rows of what is projected: queries, keys, values, gates, β and decays.
func (l *Loader) deltaParts(prefix string, in int, o *DeltaOptions) []part {
	a := o.args(l.group.Size)
	keys, values, group := o.KeyHeads*o.KeyDim, o.ValueHeads*o.ValueDim, a.Group()
	k, v := l.columnPart("", keys, in), l.columnPart("", values, in)
	b := l.columnPart("", o.ValueHeads, in)
	both := prefix + "in_proj_ba"
	ba := slices.Concat(b.spread(both, group, 2*group, 0), b.spread(both, group, 2*group, group))
	if all := prefix + "in_proj_qkvz"; !o.Apart && !l.Has(prefix+"in_proj_qkv.weight") {
		key, own := o.KeyDim, group*o.ValueDim // of a key head
		each := 2 * (key + own)
		return slices.Concat(k.spread(all, key, each, 0), k.spread(all, key, each, key),
			v.spread(all, own, each, 2*key), v.spread(all, own, each, 2*key+own), ba)
	}
	qkv, total := prefix+"in_proj_qkv", 2*keys+values
	if o.Apart {
		ba = []part{l.columnPart(prefix+"in_proj_b", o.ValueHeads, in),
			l.columnPart(prefix+"in_proj_a", o.ValueHeads, in)}
	}
	return append([]part{k.within(qkv, 0, total), k.within(qkv, keys, total),
		v.within(qkv, 2*keys, total), l.columnPart(prefix+"in_proj_z", values, in)}, ba...)
}

// channels are n channels of each key head of a recurrence; row is where those of a key head of
// this rank begin among the rows of a tensor, and factor is what their inputs are multiplied by.
type channels struct {
	n      int
	row    func(head int) int
	factor float32
}

// convolution reads the weights of the channels of so many key heads of the rank: of each the
// channels side by side, where the tensor has rows of kernel weights.
func (l *Loader) convolution(tensor string, rows, heads, kernel int,
	list ...channels) compute.Memory {
	width := 0 // of a key head
	for _, c := range list {
		width += c.n
	}
	all := make([]float32, heads*kernel*width)
	for h := range heads {
		at := h * kernel * width
		for _, c := range list {
			lo := c.row(h) * kernel
			v := l.floats(tensor, []int{rows, 1, kernel}, lo, lo+c.n*kernel)
			for i, w := range v {
				all[at+i%kernel*width+i/kernel] = w * c.factor
			}
			at += c.n
		}
	}
	if l.scale != nil {
		return nil
	}
	return l.upload(all)
}

// Forward returns what the rows of x find, [rows][value heads of this rank · ValueDim], and makes
// the states of their sequences those after them.
func (y *DeltaNet) Forward(x *Tensor, b *compute.Batch, cache compute.Cache) (*Tensor, error) {
	in := y.in.Forward(x)
	y.dev.Resize(&y.attended, x.Rows, y.args.ValueHeads*y.args.ValueDim)
	y.dev.Delta(cache, y.layer, b, &y.args, &y.attended, in.All())
	return &y.attended, nil
}
