package model

import "github.com/eagleray/eagleray/internal/rank/model/layers"

// newQwen3Moe builds Qwen3MoeForCausalLM: Qwen3's attention with a mixture of experts as
// feed-forward block in all layers but those the config names.
func newQwen3Moe(s *stage) (architecture, error) {
	c := s.cfg
	mlp := func(s *stage, layer int, prefix string) feedForward {
		if !c.SparseLayer(layer) {
			return s.GatedMLP(prefix, c.HiddenSize, c.IntermediateSize, false)
		}
		return s.Mixture(prefix, c.HiddenSize, layers.MixtureOptions{Experts: c.Experts,
			PerToken: c.ExpertsPerToken, Inner: c.MoEIntermediateSize, Normalise: c.NormTopK})
	}
	return newDecoder(s, decoderOptions{qkvBias: c.QKVBias, outBias: c.OutBias, headNorms: true,
		mlp: mlp})
}
