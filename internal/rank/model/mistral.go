package model

import (
	"cmp"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

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

// ministral3 is Ministral3ForCausalLM: Mistral's layers, with queries that grow with their position
// beyond the pre-training length. Defaults: configuration_ministral3.py.
func ministral3() *family {
	return &family{modelType: "ministral3", architecture: "Ministral3ForCausalLM",
		defaults: Config{VocabSize: 131072, HiddenSize: 4096, IntermediateSize: 14336, Layers: 34,
			Heads: 32, KVHeads: 8, MaxPositions: 262144, NormEps: 1e-5, Activation: "silu", BOS: 1,
			PAD: 11, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 128)
			readRope(f, c)
			readTemperature(f, c)
			readWindows(f, c, plainWindow(f, 0), everyLayer)
		},
		build: func(s *stage) (architecture, error) { return newDecoder(s, decoderOptions{}) }}
}

// readTemperature reads what queries beyond the pre-training length are multiplied by.
func readTemperature(f *checkpoint.Fields, c *Config) {
	r := f.Object("rope_scaling")
	if r == nil {
		r = f.Object("rope_parameters")
	}
	if r == nil {
		f.Fail(checkpoint.ErrMalformed, "rope_parameters", "is missing")
		return
	}
	c.Temperature = Temperature{Rise: r.Number("llama_4_scaling_beta", 0, -1),
		Step: cmp.Or(c.Rope.OriginalMaxPositions, c.MaxPositions)}
	f.Adopt(r)
}
