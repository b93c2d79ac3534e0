package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// gptBigCode is GPTBigCodeForCausalLM (StarCoder, SantaCoder): GPT-2's layers, in which all query
// heads read one key head. Defaults: configuration_gpt_bigcode.py.
func gptBigCode() *family {
	return &family{modelType: "gpt_bigcode", architecture: "GPTBigCodeForCausalLM",
		activationKey: "activation_function", renamed: gptNames,
		defaults: func() Config {
			d := gpt2().defaults
			d.Activation = "gelu_pytorch_tanh"
			return d
		}(),
		read: func(f *checkpoint.Fields, c *Config, _ Config) {
			readGPT(f, c)
			c.Family = &gpt{Unscaled: !f.Flag("scale_attn_weights", true)}
			if f.Flag("multi_query", true) {
				c.KVHeads = 1
			}
		},
		build: func(s *stage) (architecture, error) {
			opt := gptOptions(s.cfg)
			opt.qkv.Grouped = true
			return newDecoder(s, opt)
		}, widths: gptWidths}
}
