package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// glm4MoE is Glm4MoeForCausalLM (GLM-4.5, 4.6, 4.7): Llama's attention, of which a part of each
// head is turned, and DeepSeek's mixture of experts beside one that all rows share. Defaults:
// configuration_glm4_moe.py.
func glm4MoE() *family {
	return &family{modelType: "glm4_moe", architecture: "Glm4MoeForCausalLM",
		defaults: Config{VocabSize: 151552, HiddenSize: 4096, IntermediateSize: 10944, Layers: 46,
			Heads: 96, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu", BOS: -1,
			PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			c.QKVBias = f.Flag("attention_bias", false)
			e := readDeepSeekExperts(f, c, experts{Count: 128, Routing: perToken(8), Inner: 1408},
				1)
			c.Family = &glmExperts{e, f.Flag("use_qk_norm", false)}
			c.partialRotary(0.5)
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, glmOptions(s.cfg))
		},
		widths: expertWidths,
		predict: func(s *stage) (architecture, error) {
			return newPredictor(s, glmOptions(s.cfg), nextModules(s))
		}}
}

func glmOptions(c *Config) decoderOptions {
	e := c.Family.(*glmExperts)
	return decoderOptions{mlp: deepSeekMixture,
		attn: func(_ int, o *layers.AttentionOptions) { o.HeadNorms = e.headNorms }}
}

// glmExperts is a mixture beside attention that may normalise its heads.
type glmExperts struct {
	*experts
	headNorms bool
}

// dots1 is Dots1ForCausalLM: Qwen3's attention with DeepSeek's mixture of experts. Defaults:
// configuration_dots1.py.
func dots1() *family {
	return &family{modelType: "dots1", architecture: "Dots1ForCausalLM",
		defaults: Config{VocabSize: 152064, HiddenSize: 4608, IntermediateSize: 10944, Layers: 62,
			Heads: 32, KVHeads: 32, MaxPositions: 2048, NormEps: 1e-6, Activation: "silu", BOS: -1,
			PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 0)
			e := readMixture(f, c, experts{Count: 1, Routing: perToken(1), Inner: 1408}, 0)
			readGroups(f, e, 2, 1)
			e.Normalise, e.Sigmoid = f.Flag("norm_topk_prob", false), true
			f.Only("scoring_func", "sigmoid")
			f.Only("topk_method", "noaux_tc")
			c.Family = &glmExperts{e, true}
			readRope(f, c)
			window := plainWindow(f, 4096)
			if f.Set("use_sliding_window") {
				window = qwenWindow(f)
			}
			readWindows(f, c, window, upperLayers(f))
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, glmOptions(s.cfg))
		},
		widths: expertWidths}
}

// solarOpen is SolarOpenForCausalLM: Llama's attention with DeepSeek's mixture of experts.
// Defaults: configuration_solar_open.py.
func solarOpen() *family {
	return &family{modelType: "solar_open", architecture: "SolarOpenForCausalLM",
		defaults: Config{VocabSize: 196608, HiddenSize: 4096, IntermediateSize: 10240, Layers: 48,
			Heads: 64, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu", BOS: -1,
			PAD: -1, RopeTheta: 1e6},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 128)
			c.QKVBias = f.Flag("attention_bias", false)
			e := readMixture(f, c, experts{Count: 128, Routing: perToken(8), Inner: 1280,
				Shared: 1}, 0)
			readGroups(f, e, 2, 1)
			e.Normalise, e.Sigmoid = f.Flag("norm_topk_prob", true), true
			c.Family = &glmExperts{e, false}
			if f.Flag("use_qk_norm", false) {
				f.Fail(checkpoint.ErrUnsupported, "use_qk_norm", "is true")
			}
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, glmOptions(s.cfg))
		},
		widths: expertWidths}
}
