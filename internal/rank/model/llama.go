package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// llama is LlamaForCausalLM: Llama 2 and 3 and the many models of their shape. Defaults are those
// of transformers' configuration_llama.py, as those of all families in releases 4.57 and 5.23,
// which agree.
func llama() *family {
	return &family{modelType: "llama", architecture: "LlamaForCausalLM",
		defaults: Config{VocabSize: 32000, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 2048, NormEps: 1e-6, Activation: "silu", BOS: 1, PAD: -1,
			EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			c.MLPBias = f.Flag("mlp_bias", false)
			readRope(f, c)
			readWindows(f, c, plainWindow(f, 0), noLayer)
		},
		build: func(s *stage) (architecture, error) { return newDecoder(s, decoderOptions{}) }}
}
