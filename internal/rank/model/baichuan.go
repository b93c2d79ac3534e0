package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// baichuan is BaiChuanForCausalLM, the first 7B: Llama's layers with fused projections. The larger
// models and the second ones have another class: biases by distance, or a normalised head.
// transformers has no class: defaults are those of the checkpoints' own.
func baichuan() *family {
	return &family{modelType: "baichuan", architecture: "BaiChuanForCausalLM",
		defaults: Config{VocabSize: 64000, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 4096, NormEps: 1e-6, Activation: "silu", BOS: 1, PAD: 0,
			EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{qkv: layers.QKVOptions{Fused: "W_pack"}})
		}}
}
