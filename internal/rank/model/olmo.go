package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// olmo is OlmoForCausalLM (OLMo 1B and 7B): Llama's layers, with layer norms that have no weights.
// Defaults: configuration_olmo.py.
func olmo() *family {
	return &family{modelType: "olmo", architecture: "OlmoForCausalLM",
		defaults: Config{VocabSize: 50304, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 2048, Activation: "silu", BOS: -1, PAD: 1,
			EOS: []int{50279}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			c.NormEps = 1e-5
			c.Family = &olmoConfig{clip: float32(f.Number("clip_qkv", 0, 0))}
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{newNorm: func(s *stage, module string) norm {
				return s.LayerNorm(module, s.cfg.HiddenSize, float32(s.cfg.NormEps),
					layers.NotAffine)
			}, attn: func(_ int, o *layers.AttentionOptions) {
				o.Clip = s.cfg.Family.(*olmoConfig).clip
			}})
		}}
}

// olmoConfig is what only OLMo has.
type olmoConfig struct{ clip float32 }
