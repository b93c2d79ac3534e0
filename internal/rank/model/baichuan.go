package model

import (
	"slices"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// baichuan is BaiChuanForCausalLM, the first 7B: Llama's layers with fused projections. The larger
// models and the second ones have a class with other capitals: those of 7B have a head of which the
// rows are unit vectors, the others biases by distance. transformers has no class: defaults are
// those of the checkpoints' own.
func baichuan() *family {
	return &family{modelType: "baichuan", architecture: "BaiChuanForCausalLM",
		defaults: Config{VocabSize: 64000, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 4096, NormEps: 1e-6, Activation: "silu", BOS: 1, PAD: 0,
			EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			second := slices.Contains(c.Architectures, "BaichuanForCausalLM")
			if second && c.HiddenSize != d.HiddenSize {
				f.Fail(checkpoint.ErrUnsupported, "hidden_size", "is %d: BaichuanForCausalLM has "+
					"rotary embedding where it is %d, else biases by distance", c.HiddenSize,
					d.HiddenSize)
			}
			c.Family = &layers.HeadOptions{UnitRows: second}
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{qkv: layers.QKVOptions{Fused: "W_pack"},
				logits: *s.cfg.Family.(*layers.HeadOptions)})
		}}
}
