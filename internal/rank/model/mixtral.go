package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// mixtral is MixtralForCausalLM: Mistral's layers with a mixture of experts as feed-forward block.
// Defaults: configuration_mixtral.py.
func mixtral() *family {
	return &family{modelType: "mixtral", architecture: "MixtralForCausalLM",
		defaults: Config{VocabSize: 32000, HiddenSize: 4096, IntermediateSize: 14336, Layers: 32,
			Heads: 32, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu", BOS: 1,
			PAD: -1, EOS: []int{2}, RopeTheta: 1e6},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.Family = readLocalExperts(f, c, 8, 1, 2)
			readRope(f, c)
			readWindows(f, c, plainWindow(f, 0), everyLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{mlp: localMixture})
		}}
}

// localMixture is the feed-forward block of a layer.
func localMixture(s *stage, _ int, prefix string) feedForward {
	e := routed(s.cfg)
	return s.Mixture(prefix+"block_sparse_moe.", s.cfg.HiddenSize, layers.MixtureOptions{
		Experts: e.Count, Inner: e.Inner, Names: [3]string{"w1", "w3", "w2"}, Routing: e.Routing})
}
