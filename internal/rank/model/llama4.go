package model

import (
	"slices"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// llama4Config is what only Llama 4 has.
type llama4Config struct {
	*experts
	turned    []int // has a 1 for each layer that turns its heads
	headNorms bool
}

// llama4 is Llama4ForCausalLM (Scout, Maverick): layers that turn their heads, in pairs of
// neighbours, see chunks of what was before, the others all of it, with queries that grow with
// their position. An expert reads what a row's score leaves of it, beside one that all rows share.
// Defaults: configuration_llama4.py.
func llama4() *family {
	return &family{modelType: "llama4_text", architecture: "Llama4ForCausalLM",
		defaults: Config{VocabSize: 202048, HiddenSize: 5120, IntermediateSize: 8192, Layers: 48,
			Heads: 40, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu", BOS: 1,
			PAD: -1, EOS: []int{2}, RopeTheta: 500000},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 128)
			l := &llama4Config{readInterleaved(f, c), readTurned(f, c),
				f.Flag("use_qk_norm", true)}
			c.Family = l
			c.IntermediateSize = f.Integer("intermediate_size_mlp", 16384, 1, checkpoint.MaxDim)
			readRope(f, c)
			c.Temperature = Temperature{Rise: f.Number("attn_scale", 0.1, -1), Ahead: 1,
				Step: f.Integer("floor_scale", 8192, 1, checkpoint.MaxDim)}
			const tuning = "attn_temperature_tuning" // in the first configurations 4 for true
			if !(f.Has(tuning) && f.Excerpt(tuning) == "4") && !f.Flag(tuning, true) {
				c.Temperature = Temperature{}
			}
			c.Chunked = true
			chunk := 8192
			if f.Has("attention_chunk_size") {
				chunk = f.Nullable("attention_chunk_size", 0, 1, checkpoint.MaxDim)
			}
			readWindows(f, c, chunk, func(i int) bool { return l.turned[i] == 1 })
		},
		build: func(s *stage) (architecture, error) {
			l := s.cfg.Family.(*llama4Config)
			return newDecoder(s, decoderOptions{mlp: llama4Mixture,
				qkv:      layers.QKVOptions{Interleaved: s.cfg.HeadDim},
				rotaryOf: func(layer int) int { return l.turned[layer] - 1 },
				attn: func(_ int, o *layers.AttentionOptions) {
					if o.Rotary == nil {
						return
					}
					// transformers normalises heads after they are turned, which is the same.
					o.HeadNorms, o.Unweighted, o.Temperature = l.headNorms, true, nil
				}})
		},
		widths: expertWidths}
}

// readInterleaved reads a mixture in some layers, of experts as wide as intermediate_size says.
func readInterleaved(f *checkpoint.Fields, c *Config) *experts {
	e := &experts{Count: f.Integer("num_local_experts", 16, 1, 1<<16), Step: 1,
		Inner: c.IntermediateSize, Shared: c.IntermediateSize}
	e.PerToken, e.Inward = f.Integer("num_experts_per_tok", 1, 1, 1<<16), true
	e.check(f)
	step := f.Integer("interleave_moe_layer_step", 1, 1, checkpoint.MaxDim)
	sparse := f.IDs("moe_layers", nil)
	for i := range c.Layers {
		if sparse == nil && (i+1)%step != 0 || sparse != nil && !slices.Contains(sparse, i) {
			e.Dense = append(e.Dense, i)
		}
	}
	return e
}

// llama4Mixture is the feed-forward block of a layer.
func llama4Mixture(s *stage, layer int, prefix string) feedForward {
	c, e := s.cfg, routed(s.cfg)
	prefix += "feed_forward."
	if !e.sparse(layer) {
		return s.gated(prefix, c.IntermediateSize)
	}
	o := layers.MixtureOptions{Experts: e.Count, Inner: e.Inner, Routing: e.Routing,
		Router: "router"}
	if !s.Has(prefix + "experts.0.gate_proj.weight") {
		o.Stacked = &layers.Stacked{GateUp: "experts.gate_up_proj", Down: "experts.down_proj",
			Transposed: true}
	}
	return s.Together(s.Mixture(prefix, c.HiddenSize, o), s.gated(prefix+"shared_expert.",
		e.Shared))
}
