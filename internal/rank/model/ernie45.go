package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// ernie45 is Ernie4_5ForCausalLM: Llama's layers, whose heads are turned in pairs of neighbours.
// Defaults: configuration_ernie4_5.py.
func ernie45() *family {
	return &family{modelType: "ernie4_5", architecture: "Ernie4_5ForCausalLM",
		defaults: Config{VocabSize: 103424, HiddenSize: 1024, IntermediateSize: 3072, Layers: 18,
			Heads: 16, KVHeads: 2, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu",
			TieEmbeddings: true, BOS: 1, PAD: 0, EOS: []int{2}, RopeTheta: 500000},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 128)
			c.QKVBias = f.Flag("use_bias", false)
			c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{qkv: layers.QKVOptions{Interleaved: s.cfg.HeadDim}})
		}}
}
