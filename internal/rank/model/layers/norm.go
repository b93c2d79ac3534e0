package layers

import "slices"

// RMSNorm divides each row by its root mean square and multiplies it by a weight.
type RMSNorm struct {
	*rank
	weight []float32
	eps    float32
}

// RMSNorm makes the layer of a module of width features.
func (l *Loader) RMSNorm(module string, width int, eps float32) *RMSNorm {
	l.widen(&l.normed, width)
	return &RMSNorm{rank: l.rank, weight: l.vector(module+".weight", width, 0, width), eps: eps}
}

// ShiftedRMSNorm is RMSNorm with weights that the checkpoint has without the 1 that is added to
// each.
func (l *Loader) ShiftedRMSNorm(module string, width int, eps float32) *RMSNorm {
	y := l.RMSNorm(module, width, eps)
	shift(y.weight)
	return y
}

// shift adds 1 to each weight.
func shift(weight []float32) {
	for i := range weight {
		weight[i]++
	}
}

// Forward returns x normalised.
func (y *RMSNorm) Forward(x *Tensor) *Tensor {
	y.normed.Resize(x.rows, x.width)
	y.dev.RMSNorm(y.normed.data, x.data, y.weight, x.rows, y.eps)
	return &y.normed
}

// LayerNorm takes the mean from each row, divides it by its standard deviation, multiplies it by a
// weight and adds a bias.
type LayerNorm struct {
	*rank
	weight, bias []float32
	eps          float32
}

// Affine says which weights a LayerNorm has.
type Affine uint8

// What a checkpoint has of a LayerNorm.
const (
	NotAffine Affine = iota
	WeightOnly
	WeightAndBias
)

// LayerNorm makes the layer of a module of width features.
func (l *Loader) LayerNorm(module string, width int, eps float32, affine Affine) *LayerNorm {
	l.widen(&l.normed, width)
	y := &LayerNorm{rank: l.rank, eps: eps}
	y.weight, y.bias = slices.Repeat([]float32{1}, width), make([]float32, width)
	if affine >= WeightOnly {
		y.weight = l.vector(module+".weight", width, 0, width)
	}
	if affine == WeightAndBias {
		y.bias = l.vector(module+".bias", width, 0, width)
	}
	return y
}

// Forward returns x normalised.
func (y *LayerNorm) Forward(x *Tensor) *Tensor {
	y.normed.Resize(x.rows, x.width)
	y.dev.LayerNorm(y.normed.data, x.data, y.weight, y.bias, x.rows, y.eps)
	return &y.normed
}

// InPlace normalises x.
func (y *LayerNorm) InPlace(x *Tensor) {
	y.dev.LayerNorm(x.data, x.data, y.weight, y.bias, x.rows, y.eps)
}
