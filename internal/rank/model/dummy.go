package model

import (
	"sync"
	"unsafe"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Dummy is a source of random weights of whatever shape is asked for (--load-format dummy), so that
// a model's speed can be measured without its checkpoint. Equal seeds give equal weights on every
// rank.
func Dummy(seed uint64) layers.Source {
	return &dummySource{seed: seed, open: map[*byte]*checkpoint.Checkpoint{}}
}

// dummySource makes a one-tensor checkpoint per tensor in use.
type dummySource struct {
	seed uint64
	mu   sync.Mutex
	open map[*byte]*checkpoint.Checkpoint
}

// Tensor implements layers.Source.
func (d *dummySource) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
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
	d.mu.Lock()
	d.open[unsafe.SliceData(t.Data)] = c
	d.mu.Unlock()
	return t, nil
}

// Has implements layers.Source: every optional tensor is left out.
func (d *dummySource) Has(string) bool { return false }

// Release implements layers.Source.
func (d *dummySource) Release(t checkpoint.Tensor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := unsafe.SliceData(t.Data)
	if c := d.open[p]; c != nil {
		c.Close()
		delete(d.open, p)
	}
}

// Rest implements layers.Source: the values are nowhere else.
func (d *dummySource) Rest(checkpoint.Tensor) {}

// Written implements layers.Source.
func (d *dummySource) Written(checkpoint.Tensor) bool { return false }
