package model

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// cohereExperts is a mixture of experts in Cohere's layers.
type cohereExperts struct {
	*experts
	*cohere
	turned []int // has a 1 for each layer that turns its heads
	rms    bool  // whether norms are by the root mean square
}

// cohere2MoE is Cohere2MoeForCausalLM (Command A+): as cohere2, with a mixture of experts behind
// some dense layers, which turn their heads without a window, too. Defaults:
// configuration_cohere2_moe.py.
func cohere2MoE() *family {
	return &family{modelType: "cohere2_moe", architecture: "Cohere2MoeForCausalLM",
		defaults: cohereDefaults(),
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readCohere2(f, c, d, 128)
			own := &cohereExperts{cohere: c.Family.(*cohere), rms: f.Set("rms_norm_eps")}
			if own.rms {
				c.NormEps = f.Number("rms_norm_eps", 0, 0)
			}
			e := readMixture(f, c, experts{Count: 8, Routing: perToken(2),
				Inner: c.IntermediateSize}, 0)
			own.experts = e
			c.IntermediateSize = f.Nullable("prefix_dense_intermediate_size", c.IntermediateSize,
				1, checkpoint.MaxDim)
			e.Normalise = f.Flag("norm_topk_prob", true)
			if f.Text("expert_selection_fn", "softmax") == "softmax" {
				e.Normalise = true // a softmax of the chosen ones' products
			} else {
				f.Only("expert_selection_fn", "sigmoid")
				e.Sigmoid = true
			}
			if f.Text("shared_expert_combination_strategy", "average") != "average" {
				f.Only("shared_expert_combination_strategy", "sum")
			} else if e.Shared > 0 {
				e.Factor = 0.5
			}
			first := f.Integer("first_k_dense_replace", 0, 0, 1<<16)
			dense := f.Integer("prefix_dense_sliding_window_pattern", 1, 1, checkpoint.MaxDim)
			pattern := f.Integer("sliding_window_pattern", 4, 1, checkpoint.MaxDim)
			readWindows(f, c, plainWindow(f, 4096), func(i int) bool {
				if i < first {
					return (i+1)%dense != 0
				}
				return (i-first+1)%pattern != 0
			})
			if f.Err() != nil {
				return
			}
			for i := range c.Layers {
				turned := localLayer(c, i)
				if dense == 1 && !e.sparse(i) {
					turned = 1
				}
				own.turned = append(own.turned, turned)
			}
			c.Family = own
		},
		build: func(s *stage) (architecture, error) {
			own := s.cfg.Family.(*cohereExperts)
			o := own.options(s.cfg)
			if own.rms {
				o.newNorm = nil
			}
			o.rotaryOf = func(layer int) int { return own.turned[layer] - 1 }
			o.mlp = own.feedForward
			return newDecoder(s, o)
		},
		widths: expertWidths}
}

// feedForward is the feed-forward block of a layer.
func (e *cohereExperts) feedForward(s *stage, layer int, prefix string) feedForward {
	prefix += "mlp."
	if !e.sparse(layer) {
		return s.gated(prefix, s.cfg.IntermediateSize)
	}
	routed := s.Mixture(prefix, s.cfg.HiddenSize, layers.MixtureOptions{Experts: e.Count,
		Inner: e.Inner, Routing: e.Routing, Stacked: stacked(s, prefix)})
	if e.Shared == 0 {
		return routed
	}
	return s.Together(routed, s.GatedMLP(prefix+"shared_experts.", s.cfg.HiddenSize, e.Shared,
		layers.GatedMLPOptions{Activation: compute.SiLU, Multiplier: e.Factor}))
}
