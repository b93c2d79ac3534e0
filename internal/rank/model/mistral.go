package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// mistral is MistralForCausalLM: Llama's layers without biases, each attending to a sliding window
// when the config has one. Defaults: configuration_mistral.py.
func mistral() *family {
	return &family{modelType: "mistral", architecture: "MistralForCausalLM",
		defaults: Config{VocabSize: 32000, HiddenSize: 4096, IntermediateSize: 14336, Layers: 32,
			Heads: 32, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-6, Activation: "silu", BOS: 1,
			PAD: -1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			readRope(f, c)
			readWindows(f, c, plainWindow(f, 4096), everyLayer)
		},
		build: func(s *stage) (architecture, error) { return newDecoder(s, decoderOptions{}) }}
}
