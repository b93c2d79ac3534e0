package model

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/model/checkpoint"
	"github.com/eagleray/eagleray/internal/model/layers"
)

// checkpointSource adapts a checkpoint to layers.Source, holding each tensor to the shape the
// architecture expects.
type checkpointSource struct{ *checkpoint.Checkpoint }

// FromCheckpoint is the source of the tensors of c.
func FromCheckpoint(c *checkpoint.Checkpoint) layers.Source { return checkpointSource{c} }

// Tensor implements layers.Source.
func (s checkpointSource) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	t, err := s.Checkpoint.Tensor(name)
	if err != nil {
		return t, err
	}
	if !slices.Equal(t.Shape, shape) {
		s.Release(t)
		return checkpoint.Tensor{}, fmt.Errorf(
			"tensor %q has shape %v, but config.json asks for %v", name, t.Shape, shape)
	}
	return t, nil
}
