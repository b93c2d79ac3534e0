package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// gptJ is GPTJForCausalLM: both blocks of a layer read one layer norm, and a part of each head is
// turned in pairs of neighbours. Defaults: configuration_gptj.py.
func gptJ() *family {
	return &family{modelType: "gptj", architecture: "GPTJForCausalLM",
		activationKey: "activation_function", renamed: gptNames,
		defaults: Config{VocabSize: 50400, HiddenSize: 4096, Layers: 28, Heads: 16,
			MaxPositions: 2048, Activation: "gelu_new", BOS: 50256, PAD: -1, EOS: []int{50256}},
		read: func(f *checkpoint.Fields, c *Config, _ Config) {
			readGPT(f, c)
			c.QKVBias, c.OutBias = false, false
			f.Flag("scale_attn_weights", true) // they are, whatever it says
			if !f.Flag("rotary", true) {
				f.Fail(checkpoint.ErrUnsupported, "rotary", "is false")
			}
			readRope(f, c)
			c.RotaryDim = f.Nullable("rotary_dim", 64, 2, c.HeadDim)
			if c.RotaryDim%2 != 0 {
				f.Fail(checkpoint.ErrMalformed, "rotary_dim", "is %d, which is odd", c.RotaryDim)
			}
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{prefix: "transformer.", embedding: "wte",
				layers: "h", norm: "ln_f", newNorm: biasedNorm, attnNorm: "ln_1", parallel: true,
				attention: "attn", output: "out_proj",
				qkv:      layers.QKVOptions{Interleaved: s.cfg.RotaryDim},
				plainMLP: [...]string{"mlp.fc_in", "mlp.fc_out"},
				logits:   layers.HeadOptions{Bias: "lm_head"}})
		}, widths: gptWidths}
}
