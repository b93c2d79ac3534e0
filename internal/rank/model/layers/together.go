package layers

import "github.com/eagleray/eagleray/internal/compute"

// Block is a feed-forward block: it adds its output for x to the residual stream, or returns it.
type Block interface {
	Add(residual, x *Tensor) error
	Forward(x *Tensor) (*Tensor, error)
}

// Together is a mixture and the expert that all rows share: both read the same rows, and their
// outputs are added in this order.
type Together struct {
	*rank
	mixture *Mixture
	shared  Block
	total   Tensor
}

// beside is what the shared expert makes of rows that travel meanwhile: nil out is nothing, where
// they travel through memory.
type beside struct {
	read *Tensor
	out  *Tensor
	err  error
}

// Together makes the layer.
func (l *Loader) Together(mixture *Mixture, shared Block) *Together {
	y := &Together{rank: l.rank, mixture: mixture, shared: shared}
	if l.group.places() > 1 && l.group.visits() == nil {
		l.widen(&l.besides, mixture.hidden)
		mixture.meanwhile = y.share
	}
	return y
}

// share has the shared expert compute the rows that the mixture has sent away.
func (y *Together) share() {
	b := &y.mixture.beside
	if b.read.Rows == 0 {
		return
	}
	var out *Tensor
	if out, b.err = y.shared.Forward(b.read); b.err == nil {
		b.out = &y.besides
		y.dev.Resize(b.out, out.Rows, out.Width)
		y.dev.Copy(b.out.All(), out.All())
	}
}

// Add adds the outputs for x to the residual stream.
func (y *Together) Add(residual, x *Tensor) error {
	if err := y.mixture.Add(residual, x); err != nil {
		return err
	}
	if out := y.mixture.beside.out; out != nil {
		y.AddTo(residual, out)
		return nil
	}
	return y.shared.Add(residual, x)
}

// Forward returns the sum of the outputs for x.
func (y *Together) Forward(x *Tensor) (*Tensor, error) {
	y.dev.Resize(&y.total, x.Rows, x.Width)
	y.dev.Zero(&y.total)
	return &y.total, y.Add(&y.total, x)
}

// RowGate is a block whose output is multiplied, row by row, by the logistic function of a product
// with x.
type RowGate struct {
	*rank
	gate     compute.Weight
	adapters *adaptable
	block    Block
	open     Tensor
}

// RowGate makes the gate of a module of one by in features before a block.
func (l *Loader) RowGate(module string, in int, block Block) *RowGate {
	l.Own(1)
	p := whole(module, 1, in)
	return &RowGate{rank: l.rank, gate: l.weightIn(l.outside(), 1, p), adapters: l.adapts(1, p),
		block: block}
}

// Forward returns the block's output for x, as much as the gate lets through.
func (y *RowGate) Forward(x *Tensor) (*Tensor, error) {
	y.dev.Resize(&y.open, x.Rows, 1)
	y.gate.Product(y.open.All(), x.All(), nil)
	y.adapters.add(y.rank, y.open.All(), x.All())
	y.dev.Sigmoid(&y.open)
	out, err := y.block.Forward(x)
	if err == nil {
		y.dev.ScaleRows(out, &y.open)
	}
	return out, err
}

// Add adds Forward's result to the residual stream.
func (y *RowGate) Add(residual, x *Tensor) error {
	out, err := y.Forward(x)
	if err == nil {
		y.AddTo(residual, out)
	}
	return err
}
