package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// olmoe is OlmoeForCausalLM: Llama's layers with a mixture of experts, queries and keys normalised
// over all of their heads together. Defaults: configuration_olmoe.py.
func olmoe() *family {
	return &family{modelType: "olmoe", architecture: "OlmoeForCausalLM",
		defaults: Config{VocabSize: 50304, HiddenSize: 2048, IntermediateSize: 2048, Layers: 16,
			Heads: 16, MaxPositions: 4096, NormEps: 1e-5, Activation: "silu", BOS: -1, PAD: 1,
			EOS: []int{50279}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			c.Family = readExperts(f, c, experts{Count: 64, Routing: perToken(8),
				Inner: c.IntermediateSize})
			if f.Set("clip_qkv") {
				f.Fail(checkpoint.ErrUnsupported, "clip_qkv", "is %s", f.Excerpt("clip_qkv"))
			}
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{mlp: mixture, attn: wholeNorms})
		},
		widths: expertWidths}
}

// flexOlmo is FlexOlmoForCausalLM: OLMo 2's layers with OLMoE's mixture of experts. Defaults:
// configuration_flex_olmo.py.
func flexOlmo() *family {
	return &family{modelType: "flex_olmo", architecture: "FlexOlmoForCausalLM",
		defaults: Config{VocabSize: 100352, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 4096, NormEps: 1e-6, Activation: "silu", BOS: -1, PAD: 100277,
			EOS: []int{100257}, RopeTheta: 500000},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			c.Family = readExperts(f, c, experts{Count: 7, Routing: perToken(5),
				Inner: c.IntermediateSize})
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			o := olmoOptions()
			o.mlp = mixture
			return newDecoder(s, o)
		},
		widths: expertWidths}
}
