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
	c.Family = &graniteExperts{readLocalExperts(f, c, 8, 2), m}
}

func buildGraniteMoE(s *stage) (architecture, error) {
	c, e := s.cfg, s.cfg.Family.(*graniteExperts)
	o := e.options()
	o.mlp = func(s *stage, _ int, prefix string) feedForward {
		routing := e.Routing
		routing.Factor = o.residualMultiplier
		m := layers.MixtureOptions{Routing: routing, Experts: e.Count, Inner: e.Inner,
			Router: "router.layer"}
		if !s.Has(prefix + "block_sparse_moe.experts.0.gate_proj.weight") {
			m.Stacked = &layers.Stacked{GateUp: "input_linear.weight",
				Down: "output_linear.weight"}
		}
		routed := s.Mixture(prefix+"block_sparse_moe.", c.HiddenSize, m)
		if e.Shared == 0 {
			return routed
		}
		shared := layers.GatedMLPOptions{Activation: compute.SiLU, Down: "output_linear",
			Multiplier: o.residualMultiplier}
		if !s.Has(prefix + "shared_mlp.gate_proj.weight") {
			shared.Fused = "input_linear"
		}
		return s.Together(routed, s.GatedMLP(prefix+"shared_mlp.", c.HiddenSize, e.Shared, shared))
	}
	return newDecoder(s, o)
}
