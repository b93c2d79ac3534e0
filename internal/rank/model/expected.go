package model

import (
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Expected lists the tensors that a checkpoint has of a stage of the model of c, by name.
func Expected(c *Config, s Stage) ([]checkpoint.Spec, error) {
	var all listed
	m, err := build(c, layers.Group{Size: 1}, s, layers.Weigh(layers.Group{Size: 1}, &all,
		layers.NoDevice{}, 0))
	if err != nil {
		return nil, err
	}
	m.Close()
	slices.SortFunc(all.specs, func(a, b checkpoint.Spec) int {
		return strings.Compare(a.Name, b.Name)
	})
	return slices.CompactFunc(all.specs, func(a, b checkpoint.Spec) bool {
		return a.Name == b.Name // a tied head is the embedding
	}), nil
}

// listed is shapes that notes what it was asked for.
type listed struct {
	shapes
	specs []checkpoint.Spec
}

// Stored implements layers.Source.
func (l *listed) Stored(name string, dtype checkpoint.DType, shape ...int) (checkpoint.Tensor,
	error) {
	l.specs = append(l.specs, checkpoint.Spec{Name: name, Shape: shape})
	return l.shapes.Stored(name, dtype, shape...)
}

// Tensor implements layers.Source.
func (l *listed) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	l.specs = append(l.specs, checkpoint.Spec{Name: name, Shape: shape})
	return l.shapes.Tensor(name, shape...)
}
