package model

import (
	"slices"
	"sync"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Dummy is a source of random weights of whatever shape is asked for (--load-format dummy), so that
// a model's speed can be measured without its checkpoint. Equal seeds give equal weights on every
// rank.
func Dummy(seed uint64) layers.Source {
	return &dummySource{seed: seed, open: map[string]*dummyTensor{}}
}

// dummySource makes a one-tensor checkpoint per tensor in use.
type dummySource struct {
	seed uint64
	mu   sync.Mutex
	open map[string]*dummyTensor
}

type dummyTensor struct {
	*checkpoint.Checkpoint
	checkpoint.Tensor
	users int
}

// Tensor implements layers.Source.
func (d *dummySource) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.open[name]; x != nil && slices.Equal(x.Shape, shape) {
		x.users++
		return x.Tensor, nil
	}
	spec := []checkpoint.Spec{{Name: name, Shape: shape}}
	c, err := checkpoint.Dummy(spec, d.seed, checkpoint.BF16)
	if err != nil {
		return checkpoint.Tensor{}, err
	}
	t, err := c.Tensor(name)
	if err != nil {
		c.Close()
		return checkpoint.Tensor{}, err
	}
	d.open[name] = &dummyTensor{c, t, 1}
	return t, nil
}

// Stored implements layers.Source: the bytes are those of smaller weights, of which no number that
// they stand for is large, or none.
func (d *dummySource) Stored(name string, dtype checkpoint.DType, shape ...int) (
	checkpoint.Tensor, error) {
	n := dtype.Size()
	for _, dim := range shape {
		n *= dim
	}
	t, err := d.Tensor(name, (n+1)/2)
	if err != nil {
		return t, err
	}
	defer d.Release(t)
	data := make([]byte, n)
	for i := range data {
		data[i] = t.Data[i] & 0xb7
	}
	return checkpoint.Tensor{Name: name, DType: dtype, Shape: shape, Data: data}, nil
}

// Has implements layers.Source: every optional tensor is left out.
func (d *dummySource) Has(string) bool { return false }

// Header implements layers.Source: any tensor that is asked for is there.
func (d *dummySource) Header(string) (t checkpoint.Tensor, ok bool) { return t, false }

// Release implements layers.Source.
func (d *dummySource) Release(t checkpoint.Tensor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.open[t.Name]
	if x == nil {
		return
	}
	if x.users--; x.users == 0 {
		x.Close()
		delete(d.open, t.Name)
	}
}

// Rest implements layers.Source: the values are nowhere else.
func (d *dummySource) Rest(checkpoint.Tensor) {}

// Watch implements layers.Source.
func (d *dummySource) Watch(checkpoint.Tensor) func() bool { return nil }
