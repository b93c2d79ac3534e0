package sentence

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// Dense is a layer that a pooled state passes in the driver: a linear one, then an activation, then
// a norm. It is as small as a few of the states.
type Dense struct {
	In, Out int
	// Weight is [Out][In], Bias nil for none.
	Weight, Bias []float32
	// Activation is tanh, gelu, gelu_tanh, relu, silu, sigmoid, or empty for none.
	Activation string
	// Norm is the weight of a LayerNorm, nil for none, NormBias its bias, nil for none.
	Norm, NormBias []float32
	NormEps        float64
}

// Of is what a vector becomes.
func (d *Dense) Of(v []float32) ([]float32, error) {
	if len(v) != d.In {
		return nil, fmt.Errorf("a vector has %d elements, the layer after it %d", len(v), d.In)
	}
	sums := make([]float64, d.Out)
	for i := range sums {
		for j, w := range d.Weight[i*d.In:][:d.In] {
			sums[i] += float64(v[j]) * float64(w)
		}
		if d.Bias != nil {
			sums[i] += float64(d.Bias[i])
		}
		sums[i] = activated(d.Activation, sums[i])
	}
	if d.Norm != nil {
		d.normalise(sums)
	}
	out := make([]float32, d.Out)
	for i, x := range sums {
		out[i] = float32(x)
	}
	return out, nil
}

// normalise is the LayerNorm.
func (d *Dense) normalise(x []float64) {
	var mean, variance float64
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		variance += (v - mean) * (v - mean) / float64(len(x))
	}
	scale := 1 / math.Sqrt(variance+d.NormEps)
	for i, v := range x {
		x[i] = (v - mean) * scale * float64(d.Norm[i])
		if d.NormBias != nil {
			x[i] += float64(d.NormBias[i])
		}
	}
}

func activated(name string, x float64) float64 {
	switch name {
	case "tanh":
		return math.Tanh(x)
	case "relu":
		return max(x, 0)
	case "sigmoid":
		return 1 / (1 + math.Exp(-x))
	case "silu":
		return x / (1 + math.Exp(-x))
	case "gelu":
		return x / 2 * (1 + math.Erf(x/math.Sqrt2))
	case "gelu_tanh":
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return x
}

// activations are PyTorch's modules.
var activations = map[string]string{"Tanh": "tanh", "ReLU": "relu", "Sigmoid": "sigmoid",
	"SiLU": "silu", "GELU": "gelu", "Identity": ""}

// readDense reads a Dense module.
func readDense(dir string, width int) (*Dense, error) {
	f, err := readFields(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	d := &Dense{In: f.Integer("in_features", width, 1, checkpoint.MaxDim),
		Out: f.Integer("out_features", width, 1, checkpoint.MaxDim)}
	bias := f.Flag("bias", true)
	function := f.Text("activation_function", "torch.nn.modules.activation.Tanh")
	name := function[strings.LastIndexByte(function, '.')+1:]
	if f.Flag("use_residual", false) {
		f.Fail(checkpoint.ErrUnsupported, "use_residual", "is true")
	}
	for _, key := range []string{"module_input_name", "module_output_name"} {
		if of := f.Text(key, "sentence_embedding"); of != "sentence_embedding" {
			f.Fail(checkpoint.ErrUnsupported, key, "is %s", checkpoint.Short(of))
		}
	}
	kind, known := activations[name]
	if d.Activation = kind; !known || !strings.HasPrefix(function, "torch.") {
		f.Fail(checkpoint.ErrUnsupported, "activation_function", "is %s",
			checkpoint.Short(function))
	}
	if f.Err() != nil {
		return nil, f.Err()
	}
	if d.In != width {
		return nil, fmt.Errorf("in_features is %d, what it reads has %d elements", d.In, width)
	}
	folder, err := checkpoint.Dir(dir)
	if err != nil {
		return nil, err
	}
	weights, err := checkpoint.Open(folder)
	if err != nil {
		return nil, err
	}
	d.Weight, err = Tensor(weights, "linear.weight", d.Out, d.In)
	if err == nil && bias {
		d.Bias, err = Tensor(weights, "linear.bias", d.Out)
	}
	return d, errors.Join(err, weights.Close())
}

// Tensor is a tensor of a shape, as float32.
func Tensor(c *checkpoint.Checkpoint, name string, shape ...int) ([]float32, error) {
	t, err := c.Tensor(name)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(t.Shape, shape) {
		return nil, fmt.Errorf("tensor %q has shape %v, but config.json asks for %v", name, t.Shape,
			shape)
	}
	list := make([]float32, t.Elements())
	switch t.DType {
	case checkpoint.BF16:
		half.DecodeBF16(list, t.Data)
	case checkpoint.F16:
		half.DecodeF16(list, t.Data)
	case checkpoint.F32:
		half.DecodeF32(list, t.Data)
	default:
		return nil, fmt.Errorf("tensor %q: dtype %s cannot be a weight", name, t.DType)
	}
	return list, nil
}
