package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// ReadBytes is how many bytes Load reads of src for a rank's shard of a stage: the last number that
// its Progress is called with.
func ReadBytes(c *Config, src layers.Source, g layers.Group, s Stage) (int64, error) {
	read, _, err := weigh(c, src, g, s)
	return read, err
}

// StepBytes is the weights of each layer of the model of c that a step reads, in bytes of one of
// size tensor parallel ranks, if its tensors are of a 16-bit type. Embeddings are looked up, and
// count nothing. The output head counts with the last layer, and a third: of a prompt it is
// computed for the last row only.
func StepBytes(c *Config, size int) ([]int64, error) {
	bytes := make([]int64, c.Layers)
	for i := range bytes {
		read, head, err := weigh(c, shapes{}, layers.Group{Size: size}, Stage{i, i + 1})
		if err != nil {
			return nil, err
		}
		bytes[i] = read - head + head/3
	}
	return bytes, nil
}

// weigh counts the bytes of the checkpoint that a rank's shard of a stage reads, and those of them
// that are the output head's.
func weigh(c *Config, src layers.Source, g layers.Group, s Stage) (read, head int64,
	err error) {
	m, err := build(c, g, s, layers.Weigh(g, src, layers.NoDevice{}, 0, 0))
	if err != nil {
		return 0, 0, err
	}
	defer m.Close()
	read, head = m.stage.Bytes()
	return read, head, nil
}

// CheckWeights finds what is wrong with the tensors of src for a stage of the model of c, and notes
// in it what only they say of its layout: an order of groups. No code of a quantised matrix is
// looked at, and scales that lie among codes, which takes reading all of src, if blocks says so.
func CheckWeights(c *Config, src layers.Source, s Stage, blocks bool) error {
	l := layers.Inspect(src, blocks)
	m, err := build(c, layers.Group{Size: 1}, s, l)
	if err != nil {
		return err
	}
	defer m.Close()
	if q := c.Quantization; q != nil {
		q.ActOrder = q.ActOrder || l.Ordered()
	}
	return nil
}

// CheckTaps tells whether the model of c can give the hidden states before layers (Options.Taps).
func CheckTaps(c *Config, taps []int) error {
	one := layers.Group{Size: 1}
	m, err := build(c, one, Stage{}, layers.Weigh(one, shapes{}, layers.NoDevice{}, 0, 0))
	if err != nil {
		return err
	}
	defer m.Close()
	return m.tap(taps)
}

// Shapes is a source of tensors that are not there, to weigh a model by.
func Shapes() layers.Source { return shapes{} }

// shapes is a source of tensors that are not there: of whatever shape is asked for, of a 16-bit
// type.
type shapes struct{}

// Tensor implements layers.Source.
func (shapes) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	return checkpoint.Tensor{Name: name, DType: checkpoint.BF16, Shape: shape}, nil
}

// Stored implements layers.Source.
func (shapes) Stored(name string, dtype checkpoint.DType, shape ...int) (checkpoint.Tensor,
	error) {
	return checkpoint.Tensor{Name: name, DType: dtype, Shape: shape}, nil
}

// Has implements layers.Source: every optional tensor is left out.
func (shapes) Has(string) bool { return false }

// Header implements layers.Source: it is not known which tensors there are.
func (shapes) Header(string) (t checkpoint.Tensor, ok bool) { return t, false }

// Release implements layers.Source.
func (shapes) Release(checkpoint.Tensor) {}

// Rest implements layers.Source.
func (shapes) Rest(checkpoint.Tensor) {}

// Watch implements layers.Source.
func (shapes) Watch(checkpoint.Tensor) func() bool { return nil }
