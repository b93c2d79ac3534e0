package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// phiMoE is PhimoeForCausalLM (Phi-3.5-MoE): Mixtral's layers with layer norms, and two experts of
// a row, each with a weight of its own. Defaults: configuration_phimoe.py.
func phiMoE() *family {
	return &family{modelType: "phimoe", architecture: "PhimoeForCausalLM",
		defaults: Config{VocabSize: 32064, HiddenSize: 4096, IntermediateSize: 6400, Layers: 32,
			Heads: 32, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu", BOS: 1,
			PAD: -1, EOS: []int{2}, RopeTheta: 1e6},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			e := readLocalExperts(f, c, 16, 2, 2)
			if e.PerToken != 2 {
				f.Fail(checkpoint.ErrUnsupported, "num_experts_per_tok", "is %d", e.PerToken)
			}
			e.Near = 2 * float32(f.Number("router_jitter_noise", 0.01, 0))
			own := &phiExperts{experts: e}
			if f.Flag("lm_head_bias", false) {
				own.head.Bias = "lm_head"
			}
			c.Family = own
			readRope(f, c)
			readWindows(f, c, plainWindow(f, 0), everyLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{newNorm: biasedNorm, mlp: localMixture,
				logits: s.cfg.Family.(*phiExperts).head})
		}}
}

// phiExperts is a mixture of experts, and what is done to logits.
type phiExperts struct {
	*experts
	head layers.HeadOptions
}
