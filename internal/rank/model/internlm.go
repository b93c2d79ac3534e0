package model

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// internLM2 is InternLM2ForCausalLM (InternLM 2 and 2.5): Llama's layers, with projections fused by
// key head. transformers has no class: defaults are those of the checkpoints' own.
func internLM2() *family {
	return &family{modelType: "internlm2", architecture: "InternLM2ForCausalLM",
		defaults: Config{VocabSize: 103168, HiddenSize: 4096, IntermediateSize: 11008, Layers: 32,
			Heads: 32, MaxPositions: 2048, NormEps: 1e-6, Activation: "silu", BOS: 1, PAD: 0,
			EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.QKVBias = f.Flag("bias", true)
			c.OutBias = c.QKVBias
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{embedding: "tok_embeddings", head: "output",
				attention: "attention", output: "wo", attnNorm: "attention_norm",
				mlpNorm: "ffn_norm", qkv: layers.QKVOptions{Fused: "wqkv", Grouped: true},
				mlp: func(s *stage, _ int, prefix string) feedForward {
					return s.GatedMLP(prefix+"feed_forward.", s.cfg.HiddenSize,
						s.cfg.IntermediateSize, layers.GatedMLPOptions{Activation: compute.SiLU,
							Gate: "w1", Up: "w3", Down: "w2"})
				}})
		}}
}

// internLM3 is InternLM3ForCausalLM: Llama's layers. Defaults: configuration_internlm3.py.
func internLM3() *family {
	return &family{modelType: "internlm3", architecture: "InternLM3ForCausalLM",
		renamed: map[string]string{"qkv_bias": "attention_bias", "bias": "mlp_bias"},
		defaults: Config{VocabSize: 128512, HiddenSize: 4096, IntermediateSize: 10240, Layers: 48,
			Heads: 32, KVHeads: 2, MaxPositions: 32768, NormEps: 1e-5, Activation: "silu", BOS: 1,
			PAD: 2, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 128)
			c.MLPBias = f.Flag("mlp_bias", false)
			if c.MLPBias != c.QKVBias {
				f.Fail(checkpoint.ErrUnsupported, "mlp_bias", "is %v, but qkv_bias is %v",
					c.MLPBias, c.QKVBias)
			}
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) { return newDecoder(s, decoderOptions{}) }}
}

// iQuestCoder is IQuestCoderForCausalLM: Llama's layers. Defaults: configuration_iquestcoder.py.
func iQuestCoder() *family {
	fam := llama()
	fam.modelType, fam.architecture = "iquestcoder", "IQuestCoderForCausalLM"
	fam.defaults = Config{VocabSize: 76800, HiddenSize: 5120, IntermediateSize: 27648, Layers: 80,
		Heads: 40, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu", BOS: 1,
		PAD: -1, EOS: []int{2}}
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		readBiasedAttention(f, c, d, 128)
		c.MLPBias = f.Flag("mlp_bias", false)
		refuseFlag(f, "use_sliding_window", false)
		readRope(f, c)
		readWindows(f, c, 0, noLayer)
	}
	return fam
}
