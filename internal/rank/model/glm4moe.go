package model

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// glm4MoE is Glm4MoeForCausalLM (GLM-4.5, 4.6, 4.7): Llama's attention, of which a part of each
// head is turned, and DeepSeek's mixture of experts beside one that all rows share. Defaults:
// configuration_glm4_moe.py.
func glm4MoE() *family {
	return &family{modelType: "glm4_moe", architecture: "Glm4MoeForCausalLM",
		defaults: Config{VocabSize: 151552, HiddenSize: 4096, IntermediateSize: 10944, Layers: 46,
			Heads: 96, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu", BOS: -1,
			PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.QKVBias = f.Flag("attention_bias", false)
			e := readDeepSeekExperts(f, c, experts{Count: 128, PerToken: 8, Inner: 1408})
			e.HeadNorms = f.Flag("use_qk_norm", false)
			c.Family = e
			c.partialRotary(0.5)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			e := s.cfg.Family.(*experts)
			return newDecoder(s, decoderOptions{mlp: deepSeekMixture,
				attn: func(_ int, o *layers.AttentionOptions) { o.HeadNorms = e.HeadNorms }})
		},
		widths: expertWidths}
}

// readDeepSeekExperts reads a mixture as DeepSeek V3 has it: logistic scores with a correction, in
// groups, behind layers that have none.
func readDeepSeekExperts(f *checkpoint.Fields, c *Config, d experts) *experts {
	e := &experts{Count: f.Integer("n_routed_experts", d.Count, 1, 1<<16),
		PerToken:  f.Integer("num_experts_per_tok", d.PerToken, 1, 1<<16),
		Inner:     f.Integer("moe_intermediate_size", d.Inner, 1, checkpoint.MaxDim),
		Normalise: f.Flag("norm_topk_prob", true), Step: 1,
		Groups: f.Integer("n_group", 1, 1, 1<<16), TopGroups: f.Integer("topk_group", 1, 1, 1<<16),
		Factor: f.Number("routed_scaling_factor", 1, 0)}
	e.Shared = e.Inner * f.Integer("n_shared_experts", 1, 0, 1<<10)
	for i := range min(f.Integer("first_k_dense_replace", 1, 0, 1<<16), c.Layers) {
		e.Dense = append(e.Dense, i)
	}
	e.check(f)
	switch {
	case e.Count%e.Groups != 0 || e.Count/e.Groups < 2 && e.Groups > 1:
		f.Fail(checkpoint.ErrMalformed, "n_group", "is %d for %d experts", e.Groups, e.Count)
	case e.TopGroups > e.Groups || e.PerToken > e.Count/e.Groups*e.TopGroups:
		f.Fail(checkpoint.ErrMalformed, "topk_group", "is %d of %d groups, for %d experts of a row",
			e.TopGroups, e.Groups, e.PerToken)
	}
	return e
}

// deepSeekMixture is the feed-forward block of a layer.
func deepSeekMixture(s *stage, layer int, prefix string) feedForward {
	c, e := s.cfg, s.cfg.Family.(*experts)
	if !e.sparse(layer) {
		return s.gated(prefix+"mlp.", c.IntermediateSize)
	}
	routed := s.Mixture(prefix+"mlp.", c.HiddenSize, layers.MixtureOptions{Experts: e.Count,
		Inner: e.Inner, Correction: "e_score_correction_bias", Routing: compute.Routing{PerToken: e.PerToken,
			Normalise: e.Normalise, Sigmoid: true, Groups: e.Groups, TopGroups: e.TopGroups,
			Factor: float32(e.Factor)}})
	if e.Shared == 0 {
		return routed
	}
	return s.Together(routed, s.gated(prefix+"mlp.shared_experts.", e.Shared))
}
