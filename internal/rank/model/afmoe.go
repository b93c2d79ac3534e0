package model

import (
	"math"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// afmoe is AfmoeForCausalLM (Trinity): norms before and after both blocks, normalised heads, turned
// in the layers with a window alone, gated attention, and DeepSeek's mixture of experts. Defaults:
// configuration_afmoe.py.
func afmoe() *family {
	return &family{modelType: "afmoe", architecture: "AfmoeForCausalLM",
		defaults: Config{VocabSize: 200192, HiddenSize: 2048, IntermediateSize: 6144, Layers: 32,
			Heads: 16, MaxPositions: 16384, NormEps: 1e-5, Activation: "silu", BOS: -1, PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 128)
			refuseBias(f)
			e := readMixture(f, c, experts{Count: 64, Routing: perToken(6), Inner: 1408, Shared: 2},
				f.Integer("num_dense_layers", 1, 0, 1<<16))
			readGroups(f, e, 2, f.Number("route_scale", 1, 0))
			e.Sigmoid, e.Normalise = true, f.Flag("route_norm", true)
			e.Router, e.Correction = "router.gate", "expert_bias"
			f.Only("score_func", "sigmoid")
			for _, key := range []string{"num_expert_groups", "num_limited_groups"} {
				if n := f.Nullable(key, 1, 1, 1<<16); n != 1 {
					f.Fail(checkpoint.ErrUnsupported, key, "is %d", n)
				}
			}
			for _, key := range []string{"load_balance_coeff", "use_grouped_mm"} {
				f.Has(key) // of training, and of how others compute
			}
			own := &afmoeConfig{experts: e}
			if f.Flag("mup_enabled", false) {
				own.embedding = float32(math.Sqrt(float64(c.HiddenSize)))
			}
			c.Family = own
			readRope(f, c)
			each := f.Integer("global_attn_every_n_layers", 4, 1, checkpoint.MaxDim)
			readWindows(f, c, plainWindow(f, 1024), func(i int) bool { return (i+1)%each != 0 })
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{
				attnNorm: "input_layernorm", attnPost: "post_attention_layernorm",
				mlpNorm: "pre_mlp_layernorm", mlpPost: "post_mlp_layernorm",
				qkv: layers.QKVOptions{Gate: "gate_proj"},
				attn: func(_ int, o *layers.AttentionOptions) {
					o.HeadNorms, o.Gated = true, true
				},
				rotaryOf:            func(layer int) int { return localLayer(s.cfg, layer) - 1 },
				mlp:                 deepSeekMixture,
				embeddingMultiplier: s.cfg.Family.(*afmoeConfig).embedding})
		},
		widths: expertWidths}
}

// afmoeConfig is what only AFMoE has.
type afmoeConfig struct {
	*experts
	embedding float32 // what embeddings are multiplied by, 0 is 1
}
