package model

import (
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// lfm2 is Lfm2ForCausalLM: gated short convolutions, and in some layers Qwen3's attention in their
// place. Defaults: configuration_lfm2.py.
func lfm2() *family {
	return &family{modelType: "lfm2", architecture: "Lfm2ForCausalLM",
		defaults: Config{VocabSize: 65536, HiddenSize: 2560, IntermediateSize: 12288, Layers: 32,
			Heads: 32, KVHeads: 8, MaxPositions: 128000, NormEps: 1e-5, Activation: "silu",
			TieEmbeddings: true, BOS: 1, PAD: 0, EOS: []int{2}, RopeTheta: 1e6},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readConvolutions(f, c, d, &experts{})
			c.IntermediateSize = adjustedWidth(f, c.IntermediateSize)
		},
		build: buildLFM2, widths: expertWidths, cache: lfm2Cache}
}

// lfm2MoE is Lfm2MoeForCausalLM: LFM2 with a mixture of experts behind its first layers, chosen by
// logistic scores with a correction. Defaults: configuration_lfm2_moe.py.
func lfm2MoE() *family {
	fam := lfm2()
	fam.modelType, fam.architecture = "lfm2_moe", "Lfm2MoeForCausalLM"
	fam.defaults.HiddenSize, fam.defaults.IntermediateSize = 2048, 7168
	fam.read = func(f *checkpoint.Fields, c *Config, d Config) {
		e := &experts{Count: f.Integer("num_experts", 32, 1, 1<<16), Step: 1,
			Inner: f.Integer("moe_intermediate_size", 1792, 1, checkpoint.MaxDim)}
		e.PerToken = f.Integer("num_experts_per_tok", 4, 1, 1<<16)
		e.Sigmoid, e.Normalise = true, f.Flag("norm_topk_prob", true)
		e.Factor = float32(f.Number("routed_scaling_factor", 1, 0))
		e.check(f)
		for i := range min(f.Integer("num_dense_layers", 2, 0, 1<<16), c.Layers) {
			e.Dense = append(e.Dense, i)
		}
		readConvolutions(f, c, d, e)
		c.Family.(*convolutions).corrected = f.Flag("use_expert_bias", true)
	}
	return fam
}

// convolutions are gated short convolutions in the place of some layers' attention, beside experts
// that may be none.
type convolutions struct {
	*experts
	conv layers.ConvolutionOptions
	// short says which layers have one.
	short []bool
	// corrected says that the choice of experts is.
	corrected bool
}

// readConvolutions reads what is of both families.
func readConvolutions(f *checkpoint.Fields, c *Config, d Config, e *experts) {
	readAttention(f, c, d, 0)
	c.IntermediateSize = f.Integer("block_ff_dim", c.IntermediateSize, 1, checkpoint.MaxDim)
	c.NormEps = f.Number("norm_eps", d.NormEps, 0)
	c.TieEmbeddings = f.Flag("tie_embedding", c.TieEmbeddings)
	readRope(f, c)
	y := &convolutions{experts: e, conv: layers.ConvolutionOptions{Channels: c.HiddenSize,
		Kernel: f.Integer("conv_L_cache", 3, 2, 1<<8), Bias: f.Flag("conv_bias", false)}}
	c.Family = y
	if c.HiddenSize%layers.Chunks != 0 {
		f.Fail(checkpoint.ErrUnsupported, "hidden_size", "is %d, not a multiple of %d",
			c.HiddenSize, layers.Chunks)
	}
	some, attends := f.Set("full_attn_idxs"), f.IDs("full_attn_idxs", nil)
	y.short = readStates(f, c, "conv", func(i int) bool {
		return some && !slices.Contains(attends, i)
	})
	// What published files say of what is always so, or of how weights were made.
	for _, key := range []string{"block_norm_eps", "block_mlp_init_scale", "block_out_init_scale",
		"block_use_xavier_init", "conv_use_xavier_init"} {
		f.Has(key)
	}
	for _, key := range []string{"block_use_swiglu", "use_pos_enc"} {
		if !f.Flag(key, true) {
			f.Fail(checkpoint.ErrUnsupported, key, "is false")
		}
	}
	for key, n := range map[string]int{"block_dim": c.HiddenSize, "conv_dim": c.HiddenSize,
		"conv_dim_out": c.HiddenSize, "num_heads": c.Heads} {
		if got := f.Integer(key, n, 1, checkpoint.MaxDim); got != n {
			f.Fail(checkpoint.ErrUnsupported, key, "is %d, not %d", got, n)
		}
	}
}

// adjustedWidth is how wide feed-forward blocks are that a width stands for: two thirds of it,
// unless block_auto_adjust_ff_dim is false, in whole multiples.
func adjustedWidth(f *checkpoint.Fields, n int) int {
	by := f.Number("block_ffn_dim_multiplier", 1, 0)
	multiple := f.Integer("block_multiple_of", 256, 1, checkpoint.MaxDim)
	if !f.Flag("block_auto_adjust_ff_dim", true) {
		return n
	}
	n = int(min(max(by*float64(2*n/3), 1), checkpoint.MaxDim))
	return (n + multiple - 1) / multiple * multiple
}

func lfm2Cache(c *Config, layer int) []compute.CacheLayer {
	if y := c.Family.(*convolutions); y.short[layer] {
		return []compute.CacheLayer{y.conv.CacheLayer()}
	}
	return plainCache(c, layer)
}

func buildLFM2(s *stage) (architecture, error) {
	c, y := s.cfg, s.cfg.Family.(*convolutions)
	return newDecoder(s, decoderOptions{
		attnNorm: "operator_norm", mlpNorm: "ffn_norm", norm: "embedding_norm", output: "out_proj",
		attn: func(_ int, o *layers.AttentionOptions) {
			o.HeadNorms, o.Norms = true, [...]string{"q_layernorm", "k_layernorm"}
		},
		mixer: func(s *stage, layer int, prefix string, _ layers.AttentionOptions) mixer {
			if !y.short[layer] {
				return mixer{}
			}
			prefix += "conv."
			return mixer{attention: s.Convolution(prefix, s.cached(layer), c.HiddenSize, y.conv),
				output: prefix + "out_proj", width: c.HiddenSize, bias: y.conv.Bias}
		},
		mlp: func(s *stage, layer int, prefix string) feedForward {
			prefix += "feed_forward."
			names := [3]string{"w1", "w3", "w2"}
			if !y.sparse(layer) {
				return s.GatedMLP(prefix, c.HiddenSize, c.IntermediateSize,
					layers.GatedMLPOptions{Activation: compute.SiLU, Gate: names[0], Up: names[1],
						Down: names[2]})
			}
			o := layers.MixtureOptions{Experts: y.Count, Inner: y.Inner, Routing: y.Routing,
				Names: names, Stacked: stacked(s, prefix)}
			if y.corrected {
				o.Correction = "expert_bias"
			}
			return s.Mixture(prefix, c.HiddenSize, o)
		}})
}
