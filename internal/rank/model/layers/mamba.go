package layers

import "github.com/eagleray/eagleray/internal/compute"

// Mamba is a state space mixer (Mamba-2, https://arxiv.org/abs/2405.21060): what a request has said
// so far is a state of one size, which each row changes and reads. The heads are divided among the
// ranks; with more ranks than groups, neighbours have the same one.
type Mamba struct {
	*rank
	layer int // in the cache
	args  compute.ScanArgs
	in    *ColumnLinear
	norm  *groupNorm // nil for none
}

// MambaOptions are the numbers of a Mamba, on all ranks.
type MambaOptions struct {
	// Heads is the number of heads, each of Dim, Groups that of B and C, each of State.
	Heads, Dim, Groups, State int
	// Kernel is how many rows the convolution sums; Bias says that it has a bias, InBias that the
	// projection before it has one.
	Kernel       int
	Bias, InBias bool
	// Normed says that what is found is normalised, the heads of a group together, with Eps.
	Normed bool
	Eps    float32
	// Least and Most are what a step is held between.
	Least, Most float32
	// Multipliers are those of z, x, B, C and dt as they are projected; all 0 are 1.
	Multipliers [5]float32
}

// mostTogether is how many heads at most keep the inputs of B and C together: fewer can be computed
// on more threads, and more take less memory.
const mostTogether = 4

// parts is in how many parts the heads keep those inputs: as many ranks as divide the heads divide
// them.
func (o *MambaOptions) parts() int {
	ranks := min(o.Heads&-o.Heads, Chunks)
	for n := mostTogether; n > 1; n-- {
		if o.Heads/o.Groups%n == 0 && o.Heads/n%ranks == 0 {
			return o.Heads / n
		}
	}
	return o.Heads
}

// args is the numbers of one of size ranks.
func (o *MambaOptions) args(size int) compute.ScanArgs {
	return compute.ScanArgs{Groups: LocalKVHeads(o.Groups, size), Least: o.Least, Most: o.Most,
		Recurrence: compute.Recurrence{KeyHeads: o.parts() / size, ValueHeads: o.Heads / size,
			KeyDim: o.State, ValueDim: o.Dim, Kernel: o.Kernel}}
}

// CacheLayer is what the layer keeps of a request.
func (o *MambaOptions) CacheLayer() compute.CacheLayer {
	a := o.args(1)
	return compute.CacheLayer{Kind: compute.State, Heads: a.KeyHeads, Dim: a.Floats()}
}

// Mamba makes the layer under prefix, modules in_proj, in which z, x, B, C and dt stand one after
// the other, conv1d and norm, and tensors A_log, D and dt_bias, of in input features; layer is its
// place in the cache.
func (l *Loader) Mamba(prefix string, layer, in int, o MambaOptions) *Mamba {
	y := &Mamba{rank: l.rank, layer: layer, args: o.args(l.group.Size)}
	a, m := &y.args, o.Multipliers
	if m == [5]float32{} {
		m = [...]float32{1, 1, 1, 1, 1}
	}
	a.GateScale, a.StepScale = m[0], m[4]
	width := o.Heads * o.Dim
	groups := Heads{Query: o.Heads, KV: o.Groups, Dim: o.State}
	values, keys := l.columnPart("", width, in), l.kvPart("", groups, in)
	module, each := prefix+"in_proj", o.Groups*o.State
	total := 2*width + 2*each + o.Heads
	y.in = l.column(&l.qkv, o.InBias, values.within(module, 0, total),
		values.within(module, width, total), keys.within(module, 2*width, total),
		keys.within(module, 2*width+each, total),
		l.columnPart("", o.Heads, in).within(module, total-o.Heads, total))
	l.widen(&l.attended, a.ValueHeads*a.ValueDim)
	// Rows of the convolution are x, then B, then C.
	group := func(h int) int { return keys.rowLo + h*a.Groups/a.KeyHeads*o.State }
	own := a.Group() * o.Dim
	list := []channels{
		{o.State, func(h int) int { return width + each + group(h) }, m[3]},
		{o.State, func(h int) int { return width + group(h) }, m[2]},
		{own, func(h int) int { return values.rowLo + h*own }, m[1]}}
	a.Convolution = l.convolution(prefix+"conv1d.weight", width+2*each, a.KeyHeads, a.Kernel,
		list...)
	if o.Bias {
		a.Bias = l.channelBias(prefix+"conv1d.bias", width+2*each, &a.Recurrence, list...)
	}
	l.decays(prefix, o.Heads, &a.Recurrence)
	first := l.group.Rank * a.ValueHeads
	a.Skip = l.vector(prefix+"D", o.Heads, first, first+a.ValueHeads)
	if o.Normed {
		y.norm = l.groupNorm(prefix+"norm.weight", &o)
	}
	return y
}

// channelBias reads a number for each channel of the rank's key heads.
func (l *Loader) channelBias(tensor string, rows int, a *compute.Recurrence,
	list ...channels) compute.Memory {
	var all []float32
	for h := range a.KeyHeads {
		for _, c := range list {
			all = append(all, l.floats(tensor, []int{rows}, c.row(h), c.row(h)+c.n)...)
		}
	}
	return l.upload(all)
}

// Forward returns what the rows of x find, [rows][heads of this rank · Dim], and makes the states
// of their sequences those after them.
func (y *Mamba) Forward(x *Tensor, b *compute.Batch, cache compute.Cache) (*Tensor, error) {
	in := y.in.Forward(x)
	y.dev.Resize(&y.attended, x.Rows, y.args.ValueHeads*y.args.ValueDim)
	y.dev.Scan(cache, y.layer, b, &y.args, &y.attended, in.All())
	if y.norm == nil {
		return &y.attended, nil
	}
	return &y.attended, y.norm.normalise(&y.attended)
}

// groupNorm divides heads by the root mean square of those of their group, which may be on several
// ranks, and multiplies them by a weight.
type groupNorm struct {
	*rank
	heads, each, dim int // on all ranks, of a group, of a head
	weights          []compute.Memory
	eps              float32
	squares          Tensor
}

// groupNorm makes the norm of a tensor of weights.
func (l *Loader) groupNorm(tensor string, o *MambaOptions) *groupNorm {
	y := &groupNorm{rank: l.rank, heads: o.Heads, each: o.Heads / o.Groups, dim: o.Dim,
		eps: o.Eps}
	p := l.columnPart("", o.Heads*o.Dim, 0)
	width := min(y.each*o.Dim, p.rowHi-p.rowLo)
	for at := p.rowLo; at < p.rowHi; at += width {
		y.weights = append(y.weights, l.vector(tensor, p.rows, at, at+width))
	}
	l.Own(o.Heads)
	return y
}

// normalise normalises x. The sum of squares of a head that other ranks need is exact in its place
// on the rank that has it and zero on others, so that their sum over ranks is the same for any
// number of them; heads are summed in their order.
func (y *groupNorm) normalise(x *Tensor) error {
	own := y.heads / y.group.Size
	first, among := y.group.Rank*own, y.heads
	if own >= y.each {
		first, among = 0, own
	}
	y.dev.Resize(&y.squares, x.Rows, among)
	if among > own {
		y.dev.Zero(&y.squares)
	}
	y.dev.Squares(y.squares.Columns(first, own), x.All(), y.dim)
	if among > own {
		if err := y.allReduce(&y.squares); err != nil {
			return err
		}
	}
	width := min(own, y.each) * y.dim
	for i, weight := range y.weights {
		of := (first/y.each + i) * y.each
		y.dev.NormAcross(x.Columns(i*width, width), weight, y.squares.Columns(of, y.each), y.dim,
			y.eps)
	}
	return nil
}
