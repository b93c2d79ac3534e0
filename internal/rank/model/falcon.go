package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// falcon is FalconForCausalLM (Falcon 7B, 40B and 180B, Falcon 2): projections fused by key head,
// and both blocks of a layer reading the residual stream before it, by one layer norm or by two.
// Defaults: configuration_falcon.py.
func falcon() *family {
	return &family{modelType: "falcon", architecture: "FalconForCausalLM",
		activationKey: "activation",
		renamed: map[string]string{"ffn_hidden_size": "intermediate_size",
			"n_embed": "hidden_size"},
		defaults: Config{VocabSize: 65024, HiddenSize: 4544, Layers: 32, Heads: 71,
			MaxPositions: 2048, Activation: "gelu", TieEmbeddings: true, BOS: 11, PAD: -1,
			EOS: []int{11}},
		read: readFalcon, build: newFalcon,
		widths: func(c *Config) []width { return []width{{"ffn_hidden_size", c.IntermediateSize}} }}
}

// falconConfig is what only Falcon has. Norms are how many read the residual stream before both
// blocks, 0 where these follow each other.
type falconConfig struct{ Norms int }

func readFalcon(f *checkpoint.Fields, c *Config, _ Config) {
	refuseFlag(f, "alibi", false)
	refuseFlag(f, "apply_residual_connection_post_layernorm", false)
	readHeadDim(f, c)
	c.IntermediateSize = f.Nullable("intermediate_size", 4*c.HiddenSize, 1, checkpoint.MaxDim)
	if by := f.Integer("ff_factor", c.IntermediateSize/c.HiddenSize, 1,
		checkpoint.MaxDim); by*c.HiddenSize != c.IntermediateSize {
		f.Fail(checkpoint.ErrMalformed, "ff_factor", "is %d, but ffn_hidden_size is %d", by,
			c.IntermediateSize)
	}
	c.NormEps = f.Number("layer_norm_epsilon", 1e-5, 0)
	c.QKVBias = f.Flag("bias", false)
	c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
	own, grouped := &falconConfig{Norms: 1}, f.Flag("new_decoder_architecture", false)
	parallel, one := f.Flag("parallel_attn", true), f.Flag("multi_query", true)
	heads := f.Nullable("num_kv_heads", c.Heads, 1, checkpoint.MaxDim)
	norms := f.Nullable("num_ln_in_parallel_attn", 2, 1, 2)
	switch {
	case grouped:
		c.KVHeads, own.Norms = heads, norms
	case one:
		c.KVHeads = 1
	default:
		c.KVHeads = c.Heads
	}
	if !grouped && !parallel {
		own.Norms = 0
	}
	c.Family = own
	readRope(f, c)
	readWindows(f, c, 0, noLayer)
}

func newFalcon(s *stage) (architecture, error) {
	opt := decoderOptions{prefix: "transformer.", embedding: "word_embeddings", layers: "h",
		norm: "ln_f", newNorm: biasedNorm, attention: "self_attention", output: "dense",
		qkv:      layers.QKVOptions{Fused: "query_key_value", Grouped: true},
		plainMLP: [...]string{"mlp.dense_h_to_4h", "mlp.dense_4h_to_h"}}
	second := "ln_mlp"
	if s.Has("transformer.h.0.self_attention.qkv_proj.weight") {
		// llama.cpp's converter puts all queries first, and gives one name to both kinds of norms.
		opt.qkv, second = layers.QKVOptions{Fused: "qkv_proj"}, "input_layernorm"
	}
	norms := s.cfg.Family.(*falconConfig).Norms
	opt.parallel = norms > 0
	switch norms {
	case 1:
		opt.attnNorm = "input_layernorm"
	case 2:
		opt.attnNorm, opt.mlpNorm = "ln_attn", second
	}
	return newDecoder(s, opt)
}
