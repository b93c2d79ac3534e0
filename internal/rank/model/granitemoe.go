package model

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// graniteExperts is a mixture of experts between Granite's multipliers.
type graniteExperts struct {
	*experts
	*multipliers
}

// graniteMoE is GraniteMoeForCausalLM: Granite's layers with a mixture of experts. Defaults:
// configuration_granitemoe.py.
func graniteMoE() *family {
	return &family{modelType: "granitemoe", architecture: "GraniteMoeForCausalLM",
		defaults: llama().defaults, read: readGraniteMoE, build: buildGraniteMoE,
		widths: expertWidths}
}

// graniteMoEShared is GraniteMoeSharedForCausalLM: the same with an expert that all rows share.
// Defaults: configuration_granitemoeshared.py.
func graniteMoEShared() *family {
	return &family{modelType: "granitemoeshared", architecture: "GraniteMoeSharedForCausalLM",
		defaults: llama().defaults, build: buildGraniteMoE, widths: expertWidths,
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readGraniteMoE(f, c, d)
			e := c.Family.(*graniteExperts)
			e.Shared = f.Integer("shared_intermediate_size", 1024, 0, checkpoint.MaxDim)
		}}
}

func readGraniteMoE(f *checkpoint.Fields, c *Config, d Config) {
	m := readMultipliers(f, c, d)
	readWindows(f, c, 0, noLayer)
	c.Family = &graniteExperts{readLocalExperts(f, c, 8, 1, 2), m}
}

func buildGraniteMoE(s *stage) (architecture, error) {
	e := s.cfg.Family.(*graniteExperts)
	o := e.options()
	o.mlp = e.feedForward
	return newDecoder(s, o)
}

// feedForward is the mixture of a layer, the expert that all rows share, or both.
func (e *graniteExperts) feedForward(s *stage, _ int, prefix string) feedForward {
	hidden, multiplier := s.cfg.HiddenSize, float32(e.Residual)
	var shared feedForward
	if e.Shared > 0 {
		o := layers.GatedMLPOptions{Activation: compute.SiLU, Down: "output_linear",
			Multiplier: multiplier}
		if !s.Has(prefix + "shared_mlp.gate_proj.weight") {
			o.Fused = "input_linear"
		}
		shared = s.GatedMLP(prefix+"shared_mlp.", hidden, e.Shared, o)
	}
	if e.Count == 0 {
		return shared
	}
	routing := e.Routing
	routing.Factor = multiplier
	m := layers.MixtureOptions{Routing: routing, Experts: e.Count, Inner: e.Inner,
		Router: "router.layer"}
	if !s.Has(prefix + "block_sparse_moe.experts.0.gate_proj.weight") {
		m.Stacked = &layers.Stacked{GateUp: "input_linear.weight", Down: "output_linear.weight"}
	}
	routed := s.Mixture(prefix+"block_sparse_moe.", hidden, m)
	if shared == nil {
		return routed
	}
	return s.Together(routed, shared)
}
