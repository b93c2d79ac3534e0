package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
)

// Adaptable lists the modules of the model of c that adapters may stand beside, of all its layers.
func Adaptable(c *Config) ([]lora.Shape, error) { return adaptable(c, Stage{}) }

// adaptable is Adaptable of a stage.
func adaptable(c *Config, s Stage) ([]lora.Shape, error) {
	one := layers.Group{Size: 1}
	m, err := build(c, one, s, layers.Weigh(one, shapes{}, layers.NoDevice{}, 0, 0))
	if err != nil {
		return nil, err
	}
	defer m.Close()
	return m.stage.Adaptable(), nil
}

// Adapt begins to make the rank's share of an adapter that fits the model, whose tensors src has:
// once that is done the rows of a batch that have its id are computed with it
// (compute.Batch.Adapters). An id that is there is left as it is.
func (m *Model) Adapt(id uint32, a *lora.Adapter, src layers.Source) *layers.Adaptation {
	return m.stage.Adapt(id, a, m.modules, src)
}

// Unadapt frees an adapter. No row may have it any more.
func (m *Model) Unadapt(id uint32) { m.stage.Unadapt(id) }

// Adapted says whether the adapter of an id is there.
func (m *Model) Adapted(id uint32) bool { return m.stage.Adapted(id) }
