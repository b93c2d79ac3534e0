package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// checkpointSource adapts a checkpoint to layers.Source, holding each tensor to the shape the
// architecture expects.
type checkpointSource struct{ *checkpoint.Checkpoint }

// FromCheckpoint is the source of the tensors of c.
func FromCheckpoint(c *checkpoint.Checkpoint) layers.Source { return checkpointSource{c} }

// name is what the checkpoint calls a tensor. Where the model stands for itself, without a head, as
// embedding models are published, its tensors have no prefix; Nemotron-H's have another one. Norms
// of the first BERTs have TensorFlow's names for weight and bias.
func (s checkpointSource) name(tensor string) string {
	for now, old := range oldNames {
		if base, ok := strings.CutSuffix(tensor, now); ok && !s.Checkpoint.Has(tensor) &&
			s.Checkpoint.Has(base+old) {
			return base + old
		}
	}
	for _, prefix := range []string{"model.", "transformer."} {
		bare, ok := strings.CutPrefix(tensor, prefix)
		if !ok || s.Checkpoint.Has(tensor) {
			continue
		}
		for _, name := range []string{bare, "backbone." + bare} {
			if s.Checkpoint.Has(name) {
				return name
			}
		}
	}
	return tensor
}

// WithEmbedding is a head's source, whose embedding is the model's where it has none.
func WithEmbedding(head, of layers.Source) layers.Source {
	if head.Has(headEmbedding + ".weight") {
		return head
	}
	return &embedded{head, of}
}

// embedded is a source with the embedding of another one.
type embedded struct {
	layers.Source
	of layers.Source
}

// from is the source of a tensor, and what it is called there.
func (s *embedded) from(name string) (layers.Source, string) {
	if strings.HasSuffix(name, headEmbedding+".weight") {
		return s.of, "model." + headEmbedding + ".weight"
	}
	return s.Source, name
}

// Tensor implements layers.Source.
func (s *embedded) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	of, name := s.from(name)
	return of.Tensor(name, shape...)
}

// Release implements layers.Source.
func (s *embedded) Release(t checkpoint.Tensor) {
	of, _ := s.from(t.Name)
	of.Release(t)
}

// Rest implements layers.Source.
func (s *embedded) Rest(t checkpoint.Tensor) {
	of, _ := s.from(t.Name)
	of.Rest(t)
}

// Watch implements layers.Source.
func (s *embedded) Watch(t checkpoint.Tensor) func() bool {
	of, _ := s.from(t.Name)
	return of.Watch(t)
}

// WithFurther is the source of the layer that predicts a token more where the tensors that it has
// for itself may be missing: those are another source's.
func WithFurther(src, rest layers.Source, own []checkpoint.Spec) layers.Source {
	s := &completed{src, rest, map[string]bool{}}
	for i := range own {
		s.lent[own[i].Name] = !src.Has(own[i].Name)
	}
	return s
}

// completed is a source with some tensors of another one.
type completed struct {
	layers.Source
	rest layers.Source
	lent map[string]bool
}

// of is the source that has a tensor.
func (s *completed) of(name string) layers.Source {
	if s.lent[name] {
		return s.rest
	}
	return s.Source
}

// Has implements layers.Source.
func (s *completed) Has(name string) bool { return s.of(name).Has(name) }

// Header implements layers.Source.
func (s *completed) Header(name string) (checkpoint.Tensor, bool) { return s.of(name).Header(name) }

// Tensor implements layers.Source.
func (s *completed) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	return s.of(name).Tensor(name, shape...)
}

// Stored implements layers.Source.
func (s *completed) Stored(name string, dtype checkpoint.DType,
	shape ...int) (checkpoint.Tensor, error) {
	return s.of(name).Stored(name, dtype, shape...)
}

// Release implements layers.Source.
func (s *completed) Release(t checkpoint.Tensor) { s.of(t.Name).Release(t) }

// Rest implements layers.Source.
func (s *completed) Rest(t checkpoint.Tensor) { s.of(t.Name).Rest(t) }

// Watch implements layers.Source.
func (s *completed) Watch(t checkpoint.Tensor) func() bool { return s.of(t.Name).Watch(t) }

var oldNames = map[string]string{"LayerNorm.weight": "LayerNorm.gamma",
	"LayerNorm.bias": "LayerNorm.beta"}

// Has implements layers.Source.
func (s checkpointSource) Has(name string) bool { return s.Checkpoint.Has(s.name(name)) }

// Header implements layers.Source.
func (s checkpointSource) Header(name string) (checkpoint.Tensor, bool) {
	t, ok := s.Checkpoint.Header(s.name(name))
	t.Name = name
	return t, ok
}

// Tensor implements layers.Source.
func (s checkpointSource) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	t, err := s.Checkpoint.Tensor(s.name(name))
	if err != nil {
		return t, err
	}
	return s.shaped(t, name, shape)
}

// Stored implements layers.Source.
func (s checkpointSource) Stored(name string, dtype checkpoint.DType,
	shape ...int) (checkpoint.Tensor, error) {
	t, err := s.Checkpoint.Stored(s.name(name), dtype)
	if err != nil {
		return t, err
	}
	return s.shaped(t, name, shape)
}

func (s checkpointSource) shaped(t checkpoint.Tensor, name string,
	shape []int) (checkpoint.Tensor, error) {
	if !slices.Equal(t.Shape, shape) {
		s.Release(t)
		return checkpoint.Tensor{}, fmt.Errorf(
			"tensor %q has shape %v, but %s asks for %v", name, t.Shape, s.Description(), shape)
	}
	return t, nil
}
