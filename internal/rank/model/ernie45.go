package model

import (
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// ernie45 is Ernie4_5ForCausalLM: Llama's layers, whose heads are turned in pairs of neighbours.
// Defaults: configuration_ernie4_5.py.
func ernie45() *family {
	return &family{modelType: "ernie4_5", architecture: "Ernie4_5ForCausalLM",
		defaults: Config{VocabSize: 103424, HiddenSize: 1024, IntermediateSize: 3072, Layers: 18,
			Heads: 16, KVHeads: 2, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu",
			TieEmbeddings: true, BOS: 1, PAD: 0, EOS: []int{2}, RopeTheta: 500000},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 128)
			c.QKVBias = f.Flag("use_bias", false)
			c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
			readRope(f, c)
			readWindows(f, c, 0, noLayer)
		},
		build: func(s *stage) (architecture, error) {
			return newDecoder(s, decoderOptions{qkv: layers.QKVOptions{Interleaved: s.cfg.HeadDim}})
		}}
}

// ernie45MoE is Ernie4_5_MoeForCausalLM: the same attention, and experts chosen by the softmax of
// their scores with a correction, beside some that all rows share. Defaults:
// configuration_ernie4_5_moe.py.
func ernie45MoE() *family {
	fam := ernie45()
	fam.modelType, fam.architecture = "ernie4_5_moe", "Ernie4_5_MoeForCausalLM"
	fam.defaults = Config{VocabSize: 103424, HiddenSize: 2560, IntermediateSize: 12288, Layers: 28,
		Heads: 20, KVHeads: 4, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu",
		TieEmbeddings: true, BOS: 1, PAD: 0, EOS: []int{2}, RopeTheta: 500000}
	fam.widths = expertWidths
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		readAttention(f, c, d, 0)
		for key, want := range map[string]bool{"use_bias": false, "moe_use_aux_free": true} {
			if f.Flag(key, want) != want {
				f.Fail(checkpoint.ErrUnsupported, key, "is %v", !want)
			}
		}
		f.Only("moe_gate", "topk")
		for _, key := range []string{"moe_capacity", "moe_norm_min"} {
			f.Has(key) // of training, and against a division by zero
		}
		e := &experts{Count: f.Integer("moe_num_experts", 64, 1, 1<<16), Step: 1,
			Inner:      f.Integer("moe_intermediate_size", 1536, 1, checkpoint.MaxDim),
			Correction: "moe_statics.e_score_correction_bias"}
		e.PerToken, e.Normalise = f.Integer("moe_k", 6, 1, 1<<16), true
		e.Shared = e.Inner * f.Nullable("moe_num_shared_experts", 2, 0, 1<<10)
		e.check(f)
		from := f.Integer("moe_layer_start_index", 1, 0, 1<<16)
		to := f.Integer("moe_layer_end_index", -1, -1, 1<<16)
		each := f.Integer("moe_layer_interval", 1, 1, 1<<16)
		for i := range c.Layers {
			if f.Err() == nil && ((i+1)%each != 0 || i < from || to >= 0 && i > to) {
				e.Dense = append(e.Dense, i)
			}
		}
		c.Family = e
		readRope(f, c)
		readWindows(f, c, 0, noLayer)
	}
	fam.build = func(s *stage) (architecture, error) {
		return newDecoder(s, decoderOptions{mlp: deepSeekMixture,
			qkv: layers.QKVOptions{Interleaved: s.cfg.HeadDim}})
	}
	return fam
}
