package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// stableLM is StableLmForCausalLM (StableLM 3B, StableLM 2, Stable Code): Llama's layers with layer
// norms, one for each head in the largest, of which a part is turned. Defaults:
// configuration_stablelm.py.
func stableLM() *family {
	return &family{modelType: "stablelm", architecture: "StableLmForCausalLM",
		defaults: Config{VocabSize: 50304, HiddenSize: 2560, IntermediateSize: 6912, Layers: 32,
			Heads: 32, KVHeads: 32, MaxPositions: 4096, Activation: "silu", BOS: 0, PAD: -1,
			EOS: []int{0}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.NormEps = f.Number("layer_norm_eps", 1e-5, 0)
			c.QKVBias = f.Flag("use_qkv_bias", false)
			c.Family = &neoX{Parallel: f.Flag("use_parallel_residual", false),
				HeadNorms: f.Flag("qk_layernorm", false)}
			c.partialRotary(0.25)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			own := s.cfg.Family.(*neoX)
			opt := decoderOptions{newNorm: biasedNorm, attnNorm: "input_layernorm",
				parallel: own.Parallel, attn: func(_ int, o *layers.AttentionOptions) {
					o.LayerNorms, o.PerHead = own.HeadNorms, true
				}}
			if !own.Parallel {
				opt.mlpNorm = "post_attention_layernorm"
			}
			return newDecoder(s, opt)
		}}
}
