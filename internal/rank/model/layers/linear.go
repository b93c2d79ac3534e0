package layers

import (
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
)

// Linear is y = x·Wᵀ + b for a module that every rank holds whole.
type Linear struct {
	*rank
	weight   compute.Weight
	bias     compute.Memory // nil for none
	adapters *adaptable
}

// Linear makes the layer of a module of out by in features, without a bias.
func (l *Loader) Linear(module string, out, in int) *Linear {
	return l.linear(whole(module, out, in))
}

// PickedLinear is Linear for rows that were picked out of a step's. No adapter stands beside it:
// which requests those rows are of is not known here.
func (l *Loader) PickedLinear(module string, out, in int) *Linear {
	return &Linear{rank: l.rank, weight: l.weight(1, whole(module, out, in)),
		adapters: new(adaptable)}
}

// Outside is PickedLinear for a module that is stored plainly where those of layers are quantised.
func (l *Loader) Outside(module string, out, in int) *Linear {
	return &Linear{rank: l.rank, weight: l.weightIn(l.outside(), 1, whole(module, out, in)),
		adapters: new(adaptable)}
}

func (l *Loader) linear(parts ...part) *Linear {
	return &Linear{rank: l.rank, weight: l.weight(1, parts...), adapters: l.adapts(1, parts...)}
}

// Forward computes dst from x.
func (y *Linear) Forward(dst, x *Tensor) {
	y.dev.Resize(dst, x.Rows, y.weight.Out())
	y.into(dst.All(), x)
}

// into computes dst, which has its shape, from x.
func (y *Linear) into(dst compute.View, x *Tensor) {
	y.weight.Product(dst, x.All(), y.bias)
	y.adapters.add(y.rank, dst, x.All())
}

// ColumnLinear is y = x·Wᵀ + b with the output features divided among the ranks: each computes its
// own whole. It may be several modules of the same input, whose outputs then lie side by side.
type ColumnLinear struct {
	*rank
	weight   compute.Weight
	bias     compute.Memory // nil for none
	adapters *adaptable
	result   *Tensor
}

// QKVOptions are the points in which projections to queries, keys and values differ.
type QKVOptions struct {
	Bias bool
	// Modules are those of queries, keys and values; none is q_proj, k_proj and v_proj.
	Modules [3]string
	// Fused is the module in which queries, keys and values stand one after the other; "" is
	// Modules. Grouped says that they do so by key head: the query heads that read it, it, and its
	// value head.
	Fused   string
	Grouped bool
	// Interleaved is how many dimensions of each query and key head are turned in pairs of
	// neighbours. They are reordered when they are read, the first of each pair before the second
	// ones: so every head is turned in halves, and what a query finds is the same.
	Interleaved int
	// Gated says that each head of q_proj has a gate after its query (AttentionOptions.Gated), Gate
	// is the module of gates that have one.
	Gated bool
	Gate  string
	// QueryAlone says that there are queries only (AttentionOptions.Shared).
	QueryAlone bool
}

// QKV makes the projections to queries, keys and values of the attention under prefix, of in input
// features; gates follow the values.
func (l *Loader) QKV(prefix string, h Heads, in int, opt QKVOptions) *ColumnLinear {
	modules := opt.Modules
	if modules == [3]string{} {
		modules = [...]string{"q_proj", "k_proj", "v_proj"}
	}
	q, k, v := l.columnPart(prefix+modules[0], h.Query*h.Dim, in),
		l.kvPart(prefix+modules[1], h, in), l.kvPart(prefix+modules[2], h, in)
	queries, keys, values := []part{q}, []part{k}, []part{v}
	var gates []part
	switch total := (h.Query + 2*h.KV) * h.Dim; {
	case opt.Grouped:
		of := h.Query / h.KV
		queries, keys, values = q.spread(prefix+opt.Fused, of*h.Dim, (of+2)*h.Dim, 0),
			k.spread(prefix+opt.Fused, h.Dim, (of+2)*h.Dim, of*h.Dim),
			v.spread(prefix+opt.Fused, h.Dim, (of+2)*h.Dim, (of+1)*h.Dim)
	case opt.Fused != "":
		queries[0] = q.within(prefix+opt.Fused, 0, total)
		keys[0] = k.within(prefix+opt.Fused, q.rows, total)
		values[0] = v.within(prefix+opt.Fused, q.rows+k.rows, total)
	case opt.Gated:
		queries, gates = q.spread(prefix+modules[0], h.Dim, 2*h.Dim, 0),
			q.spread(prefix+modules[0], h.Dim, 2*h.Dim, h.Dim)
	}
	if opt.Interleaved > 0 {
		queries, keys = deinterleaved(queries, h.Dim, opt.Interleaved),
			deinterleaved(keys, h.Dim, opt.Interleaved)
	}
	if opt.QueryAlone {
		keys, values = nil, nil
	}
	if opt.Gate != "" {
		gates = []part{l.columnPart(prefix+opt.Gate, h.Query*h.Dim, in)}
	}
	return l.column(&l.qkv, opt.Bias, slices.Concat(queries, keys, values, gates)...)
}

// spread is the same rows of a part in another module, where every so many of them stand together,
// behind from rows of their stretch, which is as long as each says.
func (p part) spread(module string, together, each, from int) (list []part) {
	total := p.rows / together * each
	for lo := p.rowLo; lo < p.rowHi; {
		one := p
		hi := min((lo/together+1)*together, p.rowHi)
		one.module, one.rows = module, total
		one.rowLo = lo/together*each + from + lo%together
		one.rowHi = one.rowLo + hi - lo
		list, lo = append(list, one), hi
	}
	return list
}

// within is the same rows of a part in another module of total rows, where they begin at from.
func (p part) within(module string, from, total int) part {
	p.module, p.rows = module, total
	p.rowLo, p.rowHi = p.rowLo+from, p.rowHi+from
	return p
}

// deinterleaved is that of several parts.
func deinterleaved(parts []part, dim, turned int) (list []part) {
	for _, p := range parts {
		list = append(list, p.deinterleaved(dim, turned)...)
	}
	return list
}

// deinterleaved is the part's rows, of heads of dim, with the even ones of the first turned rows of
// each head before the odd ones.
func (p part) deinterleaved(dim, turned int) (list []part) {
	row := func(lo, hi int) {
		one := p
		one.rowLo, one.rowHi = lo, hi
		list = append(list, one)
	}
	for head := p.rowLo; head < p.rowHi; head += dim {
		for first := range 2 {
			for i := first; i < turned; i += 2 {
				row(head+i, head+i+1)
			}
		}
		if turned < dim {
			row(head+turned, head+dim)
		}
	}
	return list
}

func (l *Loader) column(result *Tensor, bias bool, parts ...part) *ColumnLinear {
	y := &ColumnLinear{rank: l.rank, weight: l.weight(1, parts...), result: result,
		adapters: l.adapts(1, parts...)}
	width := 0
	for _, p := range parts {
		width += p.rowHi - p.rowLo
	}
	l.widen(result, width)
	if bias {
		y.bias = l.bias(parts...)
	}
	return y
}

// Forward returns [rows][output features of this rank].
func (y *ColumnLinear) Forward(x *Tensor) *Tensor {
	y.dev.Resize(y.result, x.Rows, y.weight.Out())
	y.weight.Product(y.result.All(), x.All(), y.bias)
	y.adapters.add(y.rank, y.result.All(), x.All())
	return y.result
}

// RowLinear adds x·Wᵀ + b to the residual stream, with the input features divided among the ranks:
// each has a part of every sum. The input features are cut in Chunks pieces, of which each rank
// sums its own; chunks, then ranks, are summed as one balanced tree before anything is added. So
// the bits do not depend on the number of ranks.
type RowLinear struct {
	*rank
	weight   compute.Weight
	bias     compute.Memory // nil for none
	adapters *adaptable
	// multiplier is what the sum is multiplied by before it is added; 0 is 1.
	multiplier float32
}

// Row makes the layer of a module of out by in features.
func (l *Loader) Row(module string, out, in int, bias bool) *RowLinear {
	p := l.rowPart(module, out, in)
	l.widen(&l.rank.sum, out)
	chunks := Chunks / l.group.Size
	y := &RowLinear{rank: l.rank, weight: l.weight(chunks, p), adapters: l.adapts(chunks, p)}
	if bias {
		y.bias = l.bias(p)
	}
	return y
}

// Scaled has the layer multiply its sums by a number before they are added.
func (y *RowLinear) Scaled(by float32) *RowLinear {
	y.multiplier = by
	return y
}

// Add adds the product of x, which is [rows][input features of this rank], to residual.
func (y *RowLinear) Add(residual, x *Tensor) error {
	if y.group.Size == 1 && y.bias == nil && y.multiplier == 0 && !y.adapters.concerns() {
		y.weight.ProductAdded(residual.All(), x.All())
		return nil
	}
	sum, err := y.Forward(x)
	if err != nil {
		return err
	}
	y.AddTo(residual, sum)
	return nil
}

// Forward returns the product of x.
func (y *RowLinear) Forward(x *Tensor) (*Tensor, error) {
	if err := y.total(x); err != nil {
		return nil, err
	}
	if y.bias != nil {
		y.dev.AddBias(&y.sum, y.bias)
	}
	if y.multiplier != 0 {
		y.dev.Scale(&y.sum, y.multiplier)
	}
	return &y.sum, nil
}

// total makes sum the product of x, of all ranks.
func (y *RowLinear) total(x *Tensor) error {
	if y.group.Size > 1 && y.adapters.concerns() {
		return y.adapters.summed(y.rank, y.weight, &y.sum, x)
	}
	y.dev.Resize(&y.sum, x.Rows, y.weight.Out())
	y.weight.Product(y.sum.All(), x.All(), nil)
	if err := y.allReduce(&y.sum); err != nil {
		return err
	}
	y.adapters.add(y.rank, y.sum.All(), x.All())
	return nil
}
