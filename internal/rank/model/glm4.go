package model

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// glm4 is Glm4ForCausalLM (GLM-4-0414): norms before and after both blocks, half of each head
// turned in pairs of neighbours. Defaults: configuration_glm4.py.
func glm4() *family {
	return &family{modelType: "glm4", architecture: "Glm4ForCausalLM",
		defaults: Config{VocabSize: 151552, HiddenSize: 4096, IntermediateSize: 13696, Layers: 40,
			Heads: 32, KVHeads: 2, MaxPositions: 131072, NormEps: 1.5625e-07, Activation: "silu",
			BOS: -1, PAD: 151329, EOS: []int{151329, 151336, 151338}},
		read: readGLM,
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{
				attnNorm: "input_layernorm", attnPost: "post_self_attn_layernorm",
				mlpNorm: "post_attention_layernorm", mlpPost: "post_mlp_layernorm",
				qkv:      layers.QKVOptions{Interleaved: s.cfg.RotaryDim},
				fusedMLP: "gate_up_proj"})
		}}
}

// glm is GlmForCausalLM (GLM-4, GLM-Edge): as glm4, with norms before the blocks alone. Defaults:
// configuration_glm.py.
func glm() *family {
	return &family{modelType: "glm", architecture: "GlmForCausalLM", defaults: glm4().defaults,
		read: readGLM,
		build: func(s *stage) (architecture, error) {
			opt := decoderOptions{qkv: layers.QKVOptions{Interleaved: s.cfg.RotaryDim},
				fusedMLP: "gate_up_proj"}
			if s.Has(fmt.Sprintf("model.layers.%d.self_attn.qkv_proj.weight", s.From)) {
				opt.qkv.Fused = "qkv_proj" // ChatGLM's in GGUF
			}
			return newDecoder(s, opt)
		}}
}

// readGLM reads what both have.
func readGLM(f *checkpoint.Fields, c *Config, d Config) {
	readAttention(f, c, d, 128)
	c.QKVBias = f.Flag("attention_bias", true)
	c.partialRotary(0.5)
	readRope(f, c)
	readWindows(f, c, 0, noLayer)
}
