package layers

import (
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
)

// RMSNorm divides each row by its root mean square and multiplies it by a weight.
type RMSNorm struct {
	*rank
	weight compute.Memory
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
	l.widen(&l.normed, width)
	return &RMSNorm{rank: l.rank, weight: l.shifted(module+".weight", width), eps: eps}
}

// UnweightedRMSNorm is RMSNorm of width features without weights.
func (l *Loader) UnweightedRMSNorm(width int, eps float32) *RMSNorm {
	l.widen(&l.normed, width)
	return &RMSNorm{rank: l.rank, weight: l.constant(width, 1), eps: eps}
}

// shifted reads a tensor of n elements and adds 1 to each.
func (l *Loader) shifted(tensor string, n int) compute.Memory {
	v := l.floats(tensor, []int{n}, 0, n)
	for i := range v {
		v[i]++
	}
	return l.upload(v)
}

// ScaledRMSNorm is RMSNorm with a tensor's weights, each multiplied by a factor.
func (l *Loader) ScaledRMSNorm(tensor string, width int, eps, factor float32) *RMSNorm {
	l.widen(&l.normed, width)
	v := l.floats(tensor, []int{width}, 0, width)
	for i := range v {
		v[i] *= factor
	}
	return &RMSNorm{rank: l.rank, weight: l.upload(v), eps: eps}
}

// Scalar reads a tensor of one element, 0 when the layers are weighed only.
func (l *Loader) Scalar(tensor string) float32 {
	return l.number(tensor, []int{1}, 0)
}

// Forward returns x normalised.
func (y *RMSNorm) Forward(x *Tensor) *Tensor {
	y.dev.RMSNorm(&y.normed, x, y.weight, y.eps)
	return &y.normed
}

// LayerNorm takes the mean from each row, divides it by its standard deviation, multiplies it by a
// weight and adds a bias.
type LayerNorm struct {
	*rank
	weight, bias compute.Memory
	eps          float32
}

// Affine says which weights a LayerNorm has.
type Affine uint8

// What a checkpoint has of a LayerNorm.
const (
	NotAffine Affine = iota
	WeightOnly
	WeightAndBias
	// ShiftedAndBias is weights that the checkpoint has without the 1 that is added to each.
	ShiftedAndBias
)

// LayerNorm makes the layer of a module of width features.
func (l *Loader) LayerNorm(module string, width int, eps float32, affine Affine) *LayerNorm {
	l.widen(&l.normed, width)
	y := &LayerNorm{rank: l.rank, eps: eps}
	switch affine {
	case NotAffine:
		y.weight = l.constant(width, 1)
	case ShiftedAndBias:
		y.weight = l.shifted(module+".weight", width)
	default:
		y.weight = l.vector(module+".weight", width, 0, width)
	}
	switch affine {
	case WeightAndBias, ShiftedAndBias:
		y.bias = l.vector(module+".bias", width, 0, width)
	default:
		y.bias = l.constant(width, 0)
	}
	return y
}

// constant is n times v, unless the layers are weighed only.
func (l *Loader) constant(n int, v float32) compute.Memory {
	if l.scale != nil {
		return nil
	}
	return l.upload(slices.Repeat([]float32{v}, n))
}

// Forward returns x normalised.
func (y *LayerNorm) Forward(x *Tensor) *Tensor {
	y.dev.LayerNorm(&y.normed, x, y.weight, y.bias, y.eps)
	return &y.normed
}

// InPlace normalises x.
func (y *LayerNorm) InPlace(x *Tensor) {
	y.dev.LayerNorm(x, x, y.weight, y.bias, y.eps)
}
