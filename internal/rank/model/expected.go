package model

import (
	"errors"
	"slices"
	"sort"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Expected lists the tensors that a checkpoint has of a stage of the model of c, by name.
func Expected(c *Config, s Stage) ([]checkpoint.Spec, error) {
	return expected(c, s, nil)
}

// Further lists the tensors that the layer behind the model's last one has for itself
// (PredictorStage), and copies of the model's that a checkpoint may have for it: nil where there is
// no such layer.
func Further(c *Config) (own, copies []checkpoint.Spec, err error) {
	fam, err := c.family()
	if err != nil || fam.predict == nil {
		return nil, nil, err
	}
	known := map[string]bool{}
	list := func(s Stage, has func(string) bool) (more []checkpoint.Spec) {
		all, failed := expected(c, s, has)
		err = errors.Join(err, failed)
		for _, spec := range all {
			if !known[spec.Name] {
				known[spec.Name], more = true, append(more, spec)
			}
		}
		return more
	}
	list(Stage{}, nil)
	own = list(PredictorStage(c), nil)
	copies = list(PredictorStage(c), func(name string) bool { return isCopy(c, name) })
	return own, copies, err
}

// expected is Expected of a checkpoint that has, of what is optional, what has says.
func expected(c *Config, s Stage, has func(name string) bool) ([]checkpoint.Spec, error) {
	all := listed{has: has}
	m, err := build(c, layers.Group{Size: 1}, s, layers.Weigh(layers.Group{Size: 1}, &all,
		layers.NoDevice{}, 0, 0))
	if err != nil {
		return nil, err
	}
	m.Close()
	sort.Slice(all.specs, func(i, j int) bool { return all.specs[i].Name < all.specs[j].Name })
	return slices.CompactFunc(all.specs, func(a, b checkpoint.Spec) bool {
		return a.Name == b.Name // a tied head is the embedding
	}), nil
}

// listed is shapes that notes what it was asked for.
type listed struct {
	shapes
	specs []checkpoint.Spec
	has   func(name string) bool // nil for none
}

// Has implements layers.Source.
func (l *listed) Has(name string) bool { return l.has != nil && l.has(name) }

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
