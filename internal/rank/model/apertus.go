package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// apertus is ApertusForCausalLM: normalised heads, and feed-forward blocks of two matrices with an
// activation whose numbers each layer has learned. Defaults: configuration_apertus.py.
func apertus() *family {
	return &family{modelType: "apertus", architecture: "ApertusForCausalLM",
		defaults: Config{VocabSize: 131072, HiddenSize: 4096, IntermediateSize: 14336, Layers: 32,
			Heads: 32, MaxPositions: 65536, NormEps: 1e-5, Activation: "xielu", BOS: 1, PAD: 3,
			EOS: []int{2}, RopeTheta: 12e6},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			for _, key := range []string{"qk_norm", "post_norm"} { // of transformers 4
				f.Has(key)
			}
			readRope(f, c)
			if !f.Set("rope_scaling") && !f.Set("rope_parameters") {
				c.Rope = Rope{Type: "llama3", Factor: 8, OriginalMaxPositions: 8192,
					LowFreqFactor: 1, HighFreqFactor: 4}
			}
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{attnNorm: "attention_layernorm",
				mlpNorm: "feedforward_layernorm", attn: headNorms, plainMLP: upDown,
				xielu: "mlp.act_fn"})
		}}
}
