package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// qwen2MoE is Qwen2MoeForCausalLM: Qwen2's attention, and beside a mixture of experts one that all
// rows share, as much as a gate lets through. Defaults: configuration_qwen2_moe.py.
func qwen2MoE() *family {
	return &family{modelType: "qwen2_moe", architecture: "Qwen2MoeForCausalLM",
		defaults: Config{VocabSize: 151936, HiddenSize: 2048, IntermediateSize: 5632, Layers: 24,
			Heads: 16, KVHeads: 16, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu", BOS: -1,
			PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.QKVBias = f.Flag("qkv_bias", true)
			e := readExperts(f, c, experts{Count: 60, Routing: perToken(4), Inner: 1408})
			e.Shared = f.Integer("shared_expert_intermediate_size", 5632, 1, checkpoint.MaxDim)
			c.Family = e
			readRope(f, c)
			readWindows(f, c, qwenWindow(f), lowerEvenLayers(f))
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{mlp: sharedMixture})
		},
		widths: expertWidths}
}

// sharedMixture is the feed-forward block of a layer of a family with experts: the mixture, and
// beside it an expert that all rows share, as much as a gate lets through.
func sharedMixture(s *stage, layer int, prefix string) feedForward {
	c, e := s.cfg, routed(s.cfg)
	if !e.sparse(layer) {
		return mixture(s, layer, prefix)
	}
	routed := sparse(s, prefix)
	shared := s.gated(prefix+"mlp.shared_expert.", e.Shared)
	return s.Together(routed, s.RowGate(prefix+"mlp.shared_expert_gate", c.HiddenSize, shared))
}
