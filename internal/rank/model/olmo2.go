package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// olmo2 is Olmo2ForCausalLM: norms after both blocks and none before, queries and keys normalised
// over all of their heads together. Defaults: configuration_olmo2.py.
func olmo2() *family {
	return &family{modelType: "olmo2", architecture: "Olmo2ForCausalLM",
		defaults: Config{VocabSize: 50304, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 2048, NormEps: 1e-5, Activation: "silu", BOS: -1, PAD: 1,
			EOS: []int{50279}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, olmoOptions())
		}}
}

func olmoOptions() decoderOptions {
	return decoderOptions{attnPost: "post_attention_layernorm",
		mlpPost: "post_feedforward_layernorm",
		attn:    wholeNorms}
}

func wholeNorms(_ int, o *layers.AttentionOptions) { o.WholeNorms = true }
