package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// arcee is ArceeForCausalLM (AFM): Llama's layers with feed-forward blocks of two matrices.
// Defaults: configuration_arcee.py.
func arcee() *family {
	return &family{modelType: "arcee", architecture: "ArceeForCausalLM",
		defaults: Config{VocabSize: 32000, HiddenSize: 2560, IntermediateSize: 18432, Layers: 32,
			Heads: 32, MaxPositions: 4096, NormEps: 1e-5, Activation: "relu2", BOS: 128000,
			PAD: -1, EOS: []int{128001}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readPlain(f, c, d)
			readRope(f, c)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{plainMLP: upDown})
		}}
}

// jais2 is Jais2ForCausalLM: the same with layer norms. Defaults: configuration_jais2.py.
func jais2() *family {
	return &family{modelType: "jais2", architecture: "Jais2ForCausalLM",
		defaults: Config{VocabSize: 150272, HiddenSize: 3328, IntermediateSize: 26624, Layers: 32,
			Heads: 26, MaxPositions: 8192, Activation: "relu2", BOS: 0, PAD: -1,
			EOS: []int{150024}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readPlain(f, c, d)
			c.QKVBias, c.MLPBias = f.Flag("attention_bias", true), f.Flag("mlp_bias", true)
			c.OutBias = c.QKVBias
			c.NormEps = f.Number("layer_norm_eps", 1e-5, 0)
			readRope(f, c)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{plainMLP: upDown, newNorm: biasedNorm})
		}}
}
