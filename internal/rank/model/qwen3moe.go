package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// qwen3MoE is Qwen3MoeForCausalLM: Qwen3's attention with a mixture of experts as feed-forward
// block in all layers but those the config names. Defaults: configuration_qwen3_moe.py.
func qwen3MoE() *family {
	return &family{modelType: "qwen3_moe", architecture: "Qwen3MoeForCausalLM",
		defaults: Config{VocabSize: 151936, HiddenSize: 2048, IntermediateSize: 6144, Layers: 24,
			Heads: 32, KVHeads: 4, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu", BOS: -1,
			PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			c.Family = readExperts(f, c, experts{Count: 128, Routing: perToken(8), Inner: 768})
			readRope(f, c)
			readWindows(f, c, qwenWindow(f), everyLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{mlp: mixture, attn: headNorms})
		},
		widths: expertWidths}
}
