package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// persimmon is PersimmonForCausalLM (Persimmon 8B): GPT-NeoX's layers, one block after the other,
// with layer norms of heads and a squared ReLU. Defaults: configuration_persimmon.py.
func persimmon() *family {
	return &family{modelType: "persimmon", architecture: "PersimmonForCausalLM",
		defaults: Config{VocabSize: 262144, HiddenSize: 4096, IntermediateSize: 16384, Layers: 36,
			Heads: 64, MaxPositions: 16384, Activation: "relu2", BOS: 1, PAD: -1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.NormEps = f.Number("layer_norm_eps", 1e-5, 0)
			c.QKVBias, c.OutBias, c.MLPBias = true, true, true
			c.Family = &neoX{HeadNorms: f.Flag("qk_layernorm", true)}
			c.partialRotary(0.5)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{norm: "final_layernorm", newNorm: biasedNorm,
				output: "dense", qkv: layers.QKVOptions{Fused: "query_key_value", Grouped: true},
				plainMLP: [...]string{"mlp.dense_h_to_4h", "mlp.dense_4h_to_h"},
				attn:     s.cfg.Family.(*neoX).attention})
		}}
}
