package model

import (
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Use says how a rank computes with a model.
type Use struct {
	// Planner says what the device takes, which runs the model in a type.
	Planner layers.Planner
	Layout  layout.Layout
	Stage   Stage
	// Rows is the most rows of a step, MaxLen the longest sequence.
	Rows, MaxLen int
	// Redundant and Moving are those of the experts: see layers.ExpertGroup.
	Redundant int
	Moving    bool
	// Adapters are how many stand beside the layers, AdapterRank is the largest rank that one may
	// have.
	Adapters, AdapterRank int
}

// Footprint is the memory that a rank takes for its share of a model, in bytes.
type Footprint struct {
	layers.Footprint
	// Activations are what a step of the most rows is computed in.
	Activations int64
	// PerThread is what each thread computes in beside.
	PerThread int64
}

// Weigh says what a rank with a share of the model of c takes that is loaded from src: none of the
// tensors is read. Of ranks that share layers it is the one with the largest share. A src of nil is
// tensors as the configuration has them, of 16 bits.
func Weigh(c *Config, src layers.Source, u Use) (Footprint, error) {
	if src == nil {
		src = shapes{}
	}
	l := u.Layout.Sizes()
	g := layers.Group{Size: l.TP}
	if l.EP {
		g.Experts = &layers.ExpertGroup{Redundant: u.Redundant, Moving: u.Moving}
		g.Experts.Share, g.Experts.Shares = l.Experts(0)
	}
	m, err := build(c, g, u.Stage, layers.Weigh(g, src, u.Planner, u.MaxLen, u.Rows))
	if err != nil {
		return Footprint{}, err
	}
	defer m.Close()
	if err := m.stage.WeighAdapters(u.Adapters, u.AdapterRank); err != nil {
		return Footprint{}, err
	}
	f := Footprint{Footprint: m.stage.Footprint()}
	// The hidden state and picked rows of it stand beside what the layers share.
	width := f.Width + 2*int64(c.HiddenSize) + 64
	if l.Rows() > 1 { // given and gathered, and rows of other ranks
		kept := 0
		for _, layer := range CacheLayers(c, 0, c.Layers, l.TP) {
			kept = max(kept, layer.Width())
		}
		width += 2*int64(kept) + int64(c.HiddenSize)
	}
	f.Activations = int64(u.Rows) * width * 4
	f.PerThread = u.Planner.ScratchPerThread()
	return f, nil
}
