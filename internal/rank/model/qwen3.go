package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// qwen3 is Qwen3ForCausalLM: each query and key head is normalised before it is rotated. Defaults:
// configuration_qwen3.py.
func qwen3() *family {
	return &family{modelType: "qwen3", architecture: "Qwen3ForCausalLM", defaults: qwenDefaults(),
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 128)
			readRope(f, c)
			readWindows(f, c, qwenWindow(f), upperLayers(f))
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{attn: headNorms})
		}}
}

// headNorms has each query and key head normalised.
func headNorms(_ int, o *layers.AttentionOptions) { o.HeadNorms = true }
