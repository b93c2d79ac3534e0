package model

import (
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// bamba is BambaForCausalLM: Llama's layers with a state space mixer in the place of attention in
// most, and half of each head turned. Defaults: configuration_bamba.py.
func bamba() *family {
	return &family{modelType: "bamba", architecture: "BambaForCausalLM",
		defaults: Config{VocabSize: 128000, HiddenSize: 4096, IntermediateSize: 14336, Layers: 32,
			Heads: 32, KVHeads: 8, MaxPositions: 262144, NormEps: 1e-5, Activation: "silu", BOS: 1,
			EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			c.MLPBias = f.Flag("mlp_bias", false)
			c.partialRotary(0.5)
			readRope(f, c)
			half := c.HeadDim / 2
			c.RotaryDim = half // whatever partial_rotary_factor is
			if n := f.Nullable("attn_rotary_emb", half, 1, checkpoint.MaxDim); n != half {
				f.Fail(checkpoint.ErrUnsupported, "attn_rotary_emb", "is %d of %d dimensions", n,
					c.HeadDim)
			}
			y := &hybrid{mamba: layers.MambaOptions{Heads: 128, Groups: 1, State: 256, Kernel: 4,
				Normed: true}}
			y.readMamba(f, c, f.Integer("mamba_expand", 2, 1, 1<<16)*c.HiddenSize)
			attends := f.IDs("attn_layer_indices", nil)
			for i := range c.Layers {
				y.scans = append(y.scans, !slices.Contains(attends, i))
			}
			y.attends(f, "attn_layer_indices")
			c.Family = y
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{norm: "final_layernorm",
				attnNorm: "input_layernorm", mlpNorm: "pre_ff_layernorm",
				mixer: s.cfg.Family.(*hybrid).mixer, mlp: blockOf("feed_forward.", 0)})
		},
		widths: func(c *Config) []width {
			return append(c.Family.(*hybrid).widths(), width{"intermediate_size",
				c.IntermediateSize})
		},
		cache: func(c *Config, layer int) []compute.CacheLayer {
			return c.Family.(*hybrid).cache(c, layer)
		}}
}

// blockOf makes gated blocks of a module, whose output is multiplied by a number; 0 is 1.
func blockOf(module string, multiplier float32) func(s *stage, layer int,
	prefix string) feedForward {
	return func(s *stage, _ int, prefix string) feedForward {
		return s.GatedMLP(prefix+module, s.cfg.HiddenSize, s.cfg.IntermediateSize,
			layers.GatedMLPOptions{Activation: compute.SiLU, Bias: s.cfg.MLPBias,
				Multiplier: multiplier})
	}
}
