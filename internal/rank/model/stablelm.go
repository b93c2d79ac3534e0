package model

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// stableLM is StableLmForCausalLM (StableLM 3B, StableLM 2 1.6B, Stable Code): Llama's layers with
// layer norms, of which a part of each head is turned. Defaults: configuration_stablelm.py.
func stableLM() *family {
	return &family{modelType: "stablelm", architecture: "StableLmForCausalLM",
		defaults: Config{VocabSize: 50304, HiddenSize: 2560, IntermediateSize: 6912, Layers: 32,
			Heads: 32, KVHeads: 32, MaxPositions: 4096, Activation: "silu", BOS: 0, PAD: -1,
			EOS: []int{0}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.NormEps = f.Number("layer_norm_eps", 1e-5, 0)
			c.QKVBias = f.Flag("use_qkv_bias", false)
			refuseFlag(f, "qk_layernorm", false)
			c.Family = &neoX{Parallel: f.Flag("use_parallel_residual", false)}
			c.partialRotary(0.25)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			opt := decoderOptions{newNorm: biasedNorm, attnNorm: "input_layernorm"}
			if opt.parallel = s.cfg.Family.(*neoX).Parallel; !opt.parallel {
				opt.mlpNorm = "post_attention_layernorm"
			}
			return newDecoder(s, opt)
		}}
}
