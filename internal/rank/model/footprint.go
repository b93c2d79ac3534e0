package model

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// Use says how a rank computes with a model.
type Use struct {
	DType  compute.DType
	Layout layout.Layout
	Stage  Stage
	// Rows is the most rows of a step, MaxLen the longest sequence.
	Rows, MaxLen int
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
func Weigh(c *checkpoint.Config, src layers.Source, u Use) (Footprint, error) {
	if src == nil {
		src = shapes{}
	}
	l := u.Layout.Sizes()
	g := layers.Group{Size: l.TP}
	m, err := build(c, g, u.Stage, layers.Weigh(g, src, u.DType))
	if err != nil {
		return Footprint{}, err
	}
	defer m.Close()
	f := Footprint{Footprint: m.stage.Footprint()}
	f.Activations = activations(c, m.stage, l, int64(u.Rows))
	f.PerThread = layers.ScratchPerThread(u.MaxLen)
	if c.FFNDim == 0 { // OPT has positions another way
		f.Vectors += layers.RotaryBytes(c.HeadDim, u.MaxLen)
	}
	return f, nil
}

// activations is the memory of a stage's tensors, in the largest step, and of the copy that a
// product makes of its input.
func activations(c *checkpoint.Config, s *stage, l layout.Layout, rows int64) int64 {
	tp := int64(l.TP)
	hidden, dim := int64(c.HiddenSize), int64(c.HeadDim)
	queries := int64(c.Heads) / tp * dim
	keys := int64(layers.LocalKVHeads(c.KVHeads, l.TP)) * dim
	// What the first products of an MLP make, and what its last one is given.
	inner, given := 2*int64(c.IntermediateSize)/tp, int64(c.IntermediateSize)/tp
	if c.FFNDim > 0 {
		inner, given = int64(c.FFNDim)/tp, int64(c.FFNDim)/tp
	}
	// The hidden state, picked rows of it, what a norm makes, the sum of a row-parallel product,
	// and embeddings of another width.
	width := 4*hidden + int64(c.WordEmbedProjDim)
	width += queries + 2*keys + queries + dim // qkv, attended, angles
	if l.PCP > 1 {
		width += 4*keys + hidden // given and gathered, and rows of other ranks
	}
	longest := max(hidden, queries, given, int64(c.WordEmbedProjDim))
	if c.Experts > 0 {
		inner = max(inner, 2*int64(c.MoEIntermediateSize)/tp)
		// The rows of an expert, its output and that of all, in chunks; the router's scores.
		width += hidden + 2*layers.Chunks/tp*hidden + int64(c.Experts+4*c.ExpertsPerToken)
		longest = max(longest, inner)
	}
	width += inner + given
	return rows * (width + longest + 64) * 4
}
