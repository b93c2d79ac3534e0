package layers

import "github.com/eagleray/eagleray/internal/compute"

// GatedMLP is down(silu(gate(x))·up(x)). Its inner features are divided among the ranks.
type GatedMLP struct {
	*rank
	gateUp *ColumnLinear
	down   *RowLinear
}

// GatedMLP makes the block under prefix, modules gate_proj, up_proj and down_proj, of hidden outer
// and inner inner features.
func (l *Loader) GatedMLP(prefix string, hidden, inner int, bias bool) *GatedMLP {
	l.widen(&l.gated, inner/l.group.Size)
	return &GatedMLP{rank: l.rank,
		gateUp: l.column(&l.inner, bias, l.columnPart(prefix+"gate_proj", inner, hidden),
			l.columnPart(prefix+"up_proj", inner, hidden)),
		down: l.Row(prefix+"down_proj", hidden, inner, bias)}
}

// Add adds the block's output for x to the residual stream.
func (y *GatedMLP) Add(residual, x *Tensor) error {
	return y.down.Add(residual, y.gate(y.gateUp.Forward(x)))
}

// gate returns silu(gate)·up of rows in which gate and up lie side by side.
func (r *rank) gate(both *Tensor) *Tensor {
	r.gated.Resize(both.rows, both.width/2)
	r.dev.SiluMul(r.gated.data, both.data, both.rows, r.gated.width)
	return &r.gated
}

// MLP is second(activation(first(x))). Its inner features are divided among the ranks.
type MLP struct {
	*rank
	first      *ColumnLinear
	activation compute.Activation
	second     *RowLinear
}

// MLP makes the block of the modules first and second, of hidden outer and inner inner features.
func (l *Loader) MLP(first, second string, hidden, inner int, a compute.Activation,
	bias bool) *MLP {
	return &MLP{rank: l.rank, activation: a,
		first:  l.column(&l.inner, bias, l.columnPart(first, inner, hidden)),
		second: l.Row(second, hidden, inner, bias)}
}

// Add adds the block's output for x to the residual stream.
func (y *MLP) Add(residual, x *Tensor) error {
	inner := y.first.Forward(x)
	y.dev.Activate(y.activation, inner.data, inner.rows, inner.width)
	return y.second.Add(residual, inner)
}
