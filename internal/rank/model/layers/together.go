package layers

// Block is a feed-forward block: it adds its output for x to the residual stream, or returns it.
type Block interface {
	Add(residual, x *Tensor) error
	Forward(x *Tensor) (*Tensor, error)
}

// Together is blocks that read the same rows, and whose outputs are added in their order.
type Together struct {
	*rank
	blocks []Block
	total  Tensor
}

// Together makes the layer.
func (l *Loader) Together(blocks ...Block) *Together {
	return &Together{rank: l.rank, blocks: blocks}
}

// Add adds the outputs for x to the residual stream.
func (y *Together) Add(residual, x *Tensor) error {
	for _, b := range y.blocks {
		if err := b.Add(residual, x); err != nil {
			return err
		}
	}
	return nil
}

// Forward returns the sum of the outputs for x.
func (y *Together) Forward(x *Tensor) (*Tensor, error) {
	y.total.Resize(x.rows, x.width)
	clear(y.total.data)
	return &y.total, y.Add(&y.total, x)
}

// RowGate is a block whose output is multiplied, row by row, by the logistic function of a product
// with x.
type RowGate struct {
	*rank
	gate  weight
	block Block
	open  []float32
}

// RowGate makes the gate of a module of one by in features before a block.
func (l *Loader) RowGate(module string, in int, block Block) *RowGate {
	return &RowGate{rank: l.rank, gate: l.weight(1, whole(module, 1, in)), block: block}
}

// Forward returns the block's output for x, as much as the gate lets through.
func (y *RowGate) Forward(x *Tensor) (*Tensor, error) {
	y.open = grow(y.open, x.rows)
	y.gate.mul(y.dev, y.open, x.data, x.rows, nil)
	y.dev.Vec().Sigmoid(y.open)
	out, err := y.block.Forward(x)
	if err == nil {
		y.dev.ScaleRows(out.data, y.open, out.rows, out.width)
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
