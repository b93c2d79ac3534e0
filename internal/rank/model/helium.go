package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// helium is HeliumForCausalLM: Llama's layers, whose heads are turned in pairs of neighbours.
// Defaults: configuration_helium.py.
func helium() *family {
	return &family{modelType: "helium", architecture: "HeliumForCausalLM",
		defaults: Config{VocabSize: 48000, HiddenSize: 2560, IntermediateSize: 7040, Layers: 24,
			Heads: 20, KVHeads: 20, MaxPositions: 4096, NormEps: 1e-8, Activation: "silu", BOS: 1,
			PAD: 3, EOS: []int{2}, RopeTheta: 100000},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 128)
			c.QKVBias, c.MLPBias = f.Flag("attention_bias", false), f.Flag("mlp_bias", false)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{qkv: layers.QKVOptions{Interleaved: s.cfg.HeadDim}})
		}}
}
