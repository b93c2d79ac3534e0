package model

import (
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// qwen3Next is Qwen3NextForCausalLM: linear attention by a gated delta rule in three layers of
// four, gated attention in the others, and Qwen2's mixture of experts beside a shared one.
// Defaults: configuration_qwen3_next.py.
func qwen3Next() *family {
	return &family{modelType: "qwen3_next", architecture: "Qwen3NextForCausalLM",
		defaults: Config{VocabSize: 151936, HiddenSize: 2048, IntermediateSize: 5632, Layers: 48,
			Heads: 16, KVHeads: 2, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu", BOS: -1,
			PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 256)
			e := readExperts(f, c, experts{Count: 512, Routing: perToken(10), Inner: 512})
			e.Normalise = f.Flag("norm_topk_prob", true)
			e.Shared = f.Integer("shared_expert_intermediate_size", 512, 1, checkpoint.MaxDim)
			readNext(f, c, &next{experts: e})
		},
		build: buildNext, predict: predictNext, widths: nextWidths, cache: nextCache}
}

// qwen35 is Qwen3_5ForCausalLM: Qwen3-Next's attention, of which the linear one has its projections
// apart, and a gated block in the place of experts. Defaults: configuration_qwen3_5.py.
func qwen35() *family {
	return &family{modelType: "qwen3_5_text", architecture: "Qwen3_5ForCausalLM",
		defaults: Config{VocabSize: 248320, HiddenSize: 4096, IntermediateSize: 12288, Layers: 32,
			Heads: 16, KVHeads: 4, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu", BOS: -1,
			PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 256)
			readNext(f, c, &next{experts: &experts{}, delta: layers.DeltaOptions{Apart: true}})
		},
		build: buildNext, predict: predictNext, widths: nextWidths, cache: nextCache}
}

// qwen35MoE is Qwen3_5MoeForCausalLM: Qwen3.5's attention, and Qwen3-Next's mixture of experts.
// Defaults: configuration_qwen3_5_moe.py.
func qwen35MoE() *family {
	return &family{modelType: "qwen3_5_moe_text", architecture: "Qwen3_5MoeForCausalLM",
		defaults: Config{VocabSize: 248320, HiddenSize: 2048, IntermediateSize: 5632, Layers: 40,
			Heads: 16, KVHeads: 2, MaxPositions: 32768, NormEps: 1e-6, Activation: "silu", BOS: -1,
			PAD: -1},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 256)
			e := readExperts(f, c, experts{Count: 256, Routing: perToken(8), Inner: 512})
			e.Normalise = true
			e.Shared = f.Integer("shared_expert_intermediate_size", 512, 1, checkpoint.MaxDim)
			readNext(f, c, &next{experts: e, delta: layers.DeltaOptions{Apart: true}})
		},
		build: buildNext, predict: predictNext, widths: nextWidths, cache: nextCache}
}

// readNext reads what is of both kinds of attention.
func readNext(f *checkpoint.Fields, c *Config, n *next) {
	c.Family = n
	c.partialRotary(0.25)
	readRope(f, c)
	n.readDelta(f, c)
	interval := f.Integer("full_attention_interval", 4, 1, checkpoint.MaxDim)
	n.linear = readStates(f, c, "linear_attention", func(i int) bool { return (i+1)%interval != 0 })
	if f.Flag("use_sliding_window", false) {
		f.Fail(checkpoint.ErrUnsupported, "use_sliding_window", "is true")
	}
	if !f.Flag("attn_output_gate", true) {
		f.Fail(checkpoint.ErrUnsupported, "attn_output_gate", "is false")
	}
}

func nextWidths(c *Config) []width {
	return append(expertWidths(c), width{"linear_num_key_heads", c.Family.(*next).delta.KeyHeads})
}

func nextCache(c *Config, layer int) []compute.CacheLayer {
	if n := c.Family.(*next); n.isLinear(layer) {
		return []compute.CacheLayer{n.delta.CacheLayer()}
	}
	return plainCache(c, layer)
}

// next is a mixture of experts beside attention that is linear in some layers.
type next struct {
	*experts
	delta  layers.DeltaOptions
	linear []bool // of each layer
}

// isLinear says whether a layer has linear attention: the one that predicts a token more has not.
func (n *next) isLinear(layer int) bool { return layer < len(n.linear) && n.linear[layer] }

// readDelta reads the numbers of linear attention.
func (n *next) readDelta(f *checkpoint.Fields, c *Config) {
	o := &n.delta
	o.Eps = float32(c.NormEps)
	o.KeyHeads = f.Integer("linear_num_key_heads", 16, 1, checkpoint.MaxDim)
	o.ValueHeads = f.Integer("linear_num_value_heads", 32, 1, checkpoint.MaxDim)
	o.KeyDim = f.Integer("linear_key_head_dim", 128, 1, 1<<12)
	o.ValueDim = f.Integer("linear_value_head_dim", 128, 1, 1<<12)
	o.Kernel = f.Integer("linear_conv_kernel_dim", 4, 1, 1<<8)
	if f.Err() == nil && o.ValueHeads%o.KeyHeads != 0 {
		f.Fail(checkpoint.ErrMalformed, "linear_num_value_heads",
			"is %d, not a multiple of %d key heads", o.ValueHeads, o.KeyHeads)
	}
}

// readStates reads which layers keep a state in the place of keys and values: those that
// layer_types calls by a name, else those that a rule says.
func readStates(f *checkpoint.Fields, c *Config, name string, rule func(i int) bool) []bool {
	types := textOfLayers(f, c, "layer_types")
	if f.Err() != nil {
		return nil
	}
	keep := make([]bool, c.Layers)
	for i := range keep {
		keep[i] = rule(i)
		if types == nil {
			continue
		}
		switch types[i] {
		case name, "full_attention":
			keep[i] = types[i] == name
		default:
			f.Fail(checkpoint.ErrUnsupported, "layer_types", "has %s", checkpoint.Short(types[i]))
			return nil
		}
	}
	if !slices.Contains(keep, false) {
		f.Fail(checkpoint.ErrUnsupported, "layer_types", "has no full_attention")
	}
	return keep
}

func buildNext(s *stage) (architecture, error) { return newDecoder(s, nextOptions(s.cfg)) }

// predictNext makes the layer that predicts a token more, which has attention and shares the
// model's embedding and head. Further tokens follow from its hidden state after the norm.
func predictNext(s *stage) (architecture, error) {
	return newPredictor(s, nextOptions(s.cfg), predictorModules{embedding: "model.embed_tokens",
		head: "lm_head", norm: "mtp.norm", block: "mtp.layers.0.",
		tokenNorm: "mtp.pre_fc_norm_embedding", hiddenNorm: "mtp.pre_fc_norm_hidden",
		join: "mtp.fc", normed: true})
}

func nextOptions(c *Config) decoderOptions {
	n := c.Family.(*next)
	return decoderOptions{
		newNorm: shiftedNorm,
		qkv:     layers.QKVOptions{Gated: true},
		attn: func(_ int, o *layers.AttentionOptions) {
			o.HeadNorms, o.Shifted, o.Gated = true, true, true
		},
		mixer: func(s *stage, layer int, prefix string, _ layers.AttentionOptions) mixer {
			if !n.isLinear(layer) {
				return mixer{}
			}
			prefix += "linear_attn."
			return mixer{attention: s.DeltaNet(prefix, s.cached(layer), s.cfg.HiddenSize, n.delta),
				output: prefix + "out_proj", width: n.delta.ValueHeads * n.delta.ValueDim}
		},
		mlp: sharedMixture,
	}
}
