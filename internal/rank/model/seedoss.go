package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// seedOSS is SeedOssForCausalLM: Llama's layers with biases of queries, keys and values. Defaults:
// configuration_seed_oss.py.
func seedOSS() *family {
	return &family{modelType: "seed_oss", architecture: "SeedOssForCausalLM",
		defaults: Config{VocabSize: 155136, HiddenSize: 4096, IntermediateSize: 27648, Layers: 64,
			Heads: 80, KVHeads: 8, MaxPositions: 524288, NormEps: 1e-6, Activation: "silu", BOS: 0,
			PAD: 1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 128)
			c.QKVBias = f.Flag("attention_bias", true)
			c.OutBias = f.Flag("attention_out_bias", false)
			c.MLPBias = f.Flag("mlp_bias", false)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) { return newDecoder(s, decoderOptions{}) }}
}
