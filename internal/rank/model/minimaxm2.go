package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// miniMaxM2 is MiniMaxM2ForCausalLM: attention with norms over all query and all key heads, of
// which a part is turned, and experts chosen by logistic scores with a correction. Defaults:
// configuration_minimax_m2.py.
func miniMaxM2() *family {
	return &family{modelType: "minimax_m2", architecture: "MiniMaxM2ForCausalLM",
		defaults: Config{VocabSize: 200064, HiddenSize: 3072, IntermediateSize: 1536, Layers: 62,
			Heads: 48, KVHeads: 8, MaxPositions: 196608, NormEps: 1e-6, Activation: "silu", BOS: -1,
			PAD: -1, RopeTheta: 5000000},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 128)
			e := readLocalExperts(f, c, 256, 1, 8)
			e.Sigmoid = true
			c.Family = e
			c.RotaryDim = f.Integer("rotary_dim", min(64, c.HeadDim), 2, c.HeadDim)
			if !f.Flag("use_qk_norm", true) {
				f.Fail(checkpoint.ErrUnsupported, "use_qk_norm", "is false")
			}
			if !f.Flag("use_routing_bias", true) {
				f.Fail(checkpoint.ErrUnsupported, "use_routing_bias", "is false")
			}
			f.Only("qk_norm_type", "per_layer")
			f.Only("scoring_func", "sigmoid")
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			c, e := s.cfg, s.cfg.Family.(*experts)
			return newDecoder(s, decoderOptions{
				attn: wholeNorms,
				mlp: func(s *stage, _ int, prefix string) feedForward {
					return s.Mixture(prefix+"block_sparse_moe.", c.HiddenSize,
						layers.MixtureOptions{Experts: e.Count, Inner: e.Inner,
							Routing: e.Routing, Correction: "e_score_correction_bias",
							Names: [3]string{"w1", "w3", "w2"}})
				}})
		},
		widths: expertWidths}
}
