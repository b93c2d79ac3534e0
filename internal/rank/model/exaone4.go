package model

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// exaone4 is Exaone4ForCausalLM: norms after both blocks, normalised heads, and, where some layers
// have a window, heads that are turned in those alone. Defaults: configuration_exaone4.py.
func exaone4() *family {
	return &family{modelType: "exaone4", architecture: "Exaone4ForCausalLM",
		defaults: Config{VocabSize: 102400, HiddenSize: 4096, IntermediateSize: 16384, Layers: 32,
			Heads: 32, KVHeads: 32, MaxPositions: 2048, NormEps: 1e-5, Activation: "silu", BOS: 0,
			PAD: -1, EOS: []int{2}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 0)
			readRope(f, c)
			pattern, window := 4, plainWindow(f, 4096)
			if !f.Set("layer_types") && window > 0 {
				pattern = f.Integer("sliding_window_pattern", 4, 1, checkpoint.MaxDim)
			}
			readWindows(f, c, window, func(i int) bool { return (i+1)%pattern != 0 })
		},
		build: func(s *stage) (architecture, error) {
			o := olmoOptions()
			o.attn = headNorms
			if s.cfg.SlidingWindow > 0 {
				o.rotaryOf = func(layer int) int { return localLayer(s.cfg, layer) - 1 }
			}
			return newDecoder(s, o)
		}}
}

// exaoneMoE is ExaoneMoeForCausalLM (K-EXAONE): the same attention, norms before both blocks, and
// DeepSeek's mixture of experts. Defaults: configuration_exaone_moe.py.
func exaoneMoE() *family {
	fam := exaone4()
	fam.modelType, fam.architecture = "exaone_moe", "ExaoneMoeForCausalLM"
	fam.defaults.BOS, fam.defaults.PAD, fam.defaults.EOS = 1, 0, []int{53}
	dense := fam.read
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		dense(f, c, d)
		e := readDeepSeekExperts(f, c, experts{Count: 64, Inner: 1024,
			Routing: compute.Routing{PerToken: 8, Factor: 2.5}}, 1)
		f.Only("scoring_func", "sigmoid")
		f.Only("topk_method", "noaux_tc")
		for _, key := range []string{"is_moe_layer", "first_last_k_dense_replace"} {
			f.Has(key) // mlp_layer_types or first_k_dense_replace say so
		}
		c.Family = e
	}
	fam.widths = expertWidths
	fam.build = func(s *stage) (architecture, error) {
		o := decoderOptions{attn: headNorms, mlp: deepSeekMixture}
		if s.cfg.SlidingWindow > 0 {
			o.rotaryOf = func(layer int) int { return localLayer(s.cfg, layer) - 1 }
		}
		return newDecoder(s, o)
	}
	return fam
}
