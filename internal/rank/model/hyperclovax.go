package model

import (
	"math"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// hyperCLOVAX is HyperCLOVAXForCausalLM (SEED Think): Granite's layers, the outputs of whose blocks
// may be normalised. Defaults: configuration_hyperclovax.py.
func hyperCLOVAX() *family {
	return &family{modelType: "hyperclovax", architecture: "HyperCLOVAXForCausalLM",
		defaults: llama().defaults,
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			m := readMultipliers(f, c, d)
			readWindows(f, c, 0, noLayer)
			c.MLPBias = f.Flag("mlp_bias", false)
			m.Attention = f.Number("attention_multiplier", math.Pow(float64(c.HeadDim), -0.5), 0)
			c.Family = &clova{m, f.Flag("use_post_norm", true)}
		},
		build: func(s *stage) (architecture, error) {
			own := s.cfg.Family.(*clova)
			opt := own.options()
			opt.logits.Multiplier = float32(own.Logits) // not divided, as Granite's
			if own.Normed {
				opt.attnNorm, opt.attnPost = "input_layernorm", "post_norm1"
				opt.mlpNorm, opt.mlpPost = "post_attention_layernorm", "post_norm2"
			}
			return newDecoder(s, opt)
		}}
}

// clova is what HyperCLOVA X has: multipliers, and whether what blocks add is normalised.
type clova struct {
	*multipliers
	Normed bool
}
