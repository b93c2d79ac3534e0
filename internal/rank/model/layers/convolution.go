package layers

import "github.com/eagleray/eagleray/internal/compute"

// Convolution is a gated short convolution (LFM2): what a request has said so far is a state of one
// size, its last rows. The channels are divided among the ranks.
type Convolution struct {
	*rank
	layer int // in the cache
	args  compute.ConvolutionArgs
	in    *ColumnLinear
}

// ConvolutionOptions are the numbers of a Convolution, on all ranks.
type ConvolutionOptions struct {
	// Channels are a multiple of Chunks; Kernel, at least 2, is how many rows are summed.
	Channels, Kernel int
	// Bias says that the projection and the convolution have biases.
	Bias bool
}

// args is the numbers of one of size ranks.
func (o *ConvolutionOptions) args(size int) compute.ConvolutionArgs {
	return compute.ConvolutionArgs{Parts: Chunks / size, Channels: o.Channels / Chunks,
		Kernel: o.Kernel}
}

// CacheLayer is what the layer keeps of a request.
func (o *ConvolutionOptions) CacheLayer() compute.CacheLayer {
	a := o.args(1)
	return compute.CacheLayer{Kind: compute.State, Heads: a.Parts, Dim: a.Floats()}
}

// Convolution makes the layer under prefix, modules in_proj, of in input features, and conv; layer
// is its place in the cache.
func (l *Loader) Convolution(prefix string, layer, in int, o ConvolutionOptions) *Convolution {
	y := &Convolution{rank: l.rank, layer: layer, args: o.args(l.group.Size)}
	a, all := &y.args, 3*o.Channels
	own := l.columnPart(prefix+"in_proj", o.Channels, in)
	y.in = l.column(&l.qkv, o.Bias, own.within(own.module, 0, all),
		own.within(own.module, o.Channels, all), own.within(own.module, 2*o.Channels, all))
	l.widen(&l.attended, a.Out())
	a.Weights = l.convolution(prefix+"conv.weight", o.Channels, a.Parts, a.Kernel,
		channels{a.Channels, func(part int) int { return own.rowLo + part*a.Channels }, 1})
	if o.Bias {
		a.Bias = l.vector(prefix+"conv.bias", o.Channels, own.rowLo, own.rowHi)
	}
	return y
}

// Forward returns what the rows of x find, [rows][channels of this rank], and makes the states of
// their sequences those after them.
func (y *Convolution) Forward(x *Tensor, b *compute.Batch, cache compute.Cache) (*Tensor, error) {
	in := y.in.Forward(x)
	y.dev.Resize(&y.attended, x.Rows, y.args.Out())
	y.dev.Convolve(cache, y.layer, b, &y.args, &y.attended, in.All())
	return &y.attended, nil
}
