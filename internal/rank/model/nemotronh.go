package model

import (
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// nemotronLayer is the one block that a layer of Nemotron-H has, as hybrid_override_pattern has it.
type nemotronLayer byte

const (
	nemotronMamba     nemotronLayer = 'M'
	nemotronAttention nemotronLayer = '*'
	nemotronMLP       nemotronLayer = '-'
	nemotronExperts   nemotronLayer = 'E'
)

// hybridNemotron is layers of one block each.
type hybridNemotron struct {
	*experts
	hybrid
	blocks []nemotronLayer
	latent int
}

// nemotronH is NemotronHForCausalLM (Nemotron-H, Nano 2, Nemotron 3): layers that have one block
// each, a state space mixer, attention without positions, a feed-forward block of squared ReLU, or
// a mixture of such ones beside one that all rows share. Defaults: configuration_nemotron_h.py.
func nemotronH() *family {
	return &family{modelType: "nemotron_h", architecture: "NemotronHForCausalLM",
		activationKey: "mlp_hidden_act",
		defaults: Config{VocabSize: 131072, HiddenSize: 4096, IntermediateSize: 21504, Layers: 4,
			Heads: 32, KVHeads: 8, HeadDim: 128, MaxPositions: 4096, Activation: "relu2", BOS: 1,
			EOS: []int{2}},
		read: readNemotronH,
		build: func(s *stage) (architecture, error) {
			return s.cfg.Family.(*hybridNemotron).build(s)
		},
		widths: func(c *Config) []width { return c.Family.(*hybridNemotron).widths(c) },
		cache: func(c *Config, layer int) []compute.CacheLayer {
			switch y := c.Family.(*hybridNemotron); y.blocks[layer] {
			case nemotronMamba, nemotronAttention:
				return y.cache(c, layer)
			}
			return nil
		}}
}

func readNemotronH(f *checkpoint.Fields, c *Config, d Config) {
	y := &hybridNemotron{experts: &experts{}, hybrid: hybrid{}}
	c.Family = y
	c.IntermediateSize = f.Integer("intermediate_size", d.IntermediateSize, 1, checkpoint.MaxDim)
	c.NormEps = f.Number("layer_norm_epsilon", 1e-5, 0)
	c.KVHeads = f.Nullable("num_key_value_heads", d.KVHeads, 1, checkpoint.MaxDim)
	c.HeadDim = f.Integer("attention_head_dim", d.HeadDim, 1, checkpoint.MaxDim)
	c.HeadDim = f.Integer("head_dim", c.HeadDim, 1, checkpoint.MaxDim)
	c.MLPBias = f.Flag("mlp_bias", false)
	refuseBias(f)
	y.readBlocks(f, c)
	o := &y.mamba
	*o = layers.MambaOptions{Heads: f.Integer("mamba_num_heads", 128, 1, checkpoint.MaxDim),
		Dim: f.Integer("mamba_head_dim", 64, 1, 1<<12), Normed: true, Eps: float32(c.NormEps),
		Groups: f.Integer("n_groups", 8, 1, checkpoint.MaxDim),
		State:  f.Integer("ssm_state_size", 128, 1, 1<<12),
		Kernel: f.Integer("conv_kernel", 4, 1, 1<<8),
		Bias:   f.Flag("use_conv_bias", true), InBias: f.Flag("use_bias", false)}
	f.Only("mamba_hidden_act", "silu")
	y.readSteps(f, "mamba_num_heads")
	if !slices.Contains(y.blocks, nemotronExperts) {
		for _, key := range []string{"n_routed_experts", "num_experts_per_tok", "n_shared_experts",
			"moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size",
			"n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"} {
			f.Has(key) // of no block
		}
	} else {
		e := readMixture(f, c, experts{Count: 8, Routing: perToken(2), Inner: 7688, Shared: 1}, 0)
		readGroups(f, e, 2, 1)
		e.Normalise, e.Sigmoid = f.Flag("norm_topk_prob", true), true
		e.Shared = e.Shared / e.Inner *
			f.Integer("moe_shared_expert_intermediate_size", 7688, 1, checkpoint.MaxDim)
		y.experts, y.latent = e, f.Nullable("moe_latent_size", 0, 1, checkpoint.MaxDim)
	}
	if y.latent > 0 && c.MLPBias {
		f.Fail(checkpoint.ErrUnsupported, "mlp_bias", "is true, with a moe_latent_size of %d",
			y.latent)
	}
	if plainWindow(f, 0) > 0 {
		f.Fail(checkpoint.ErrUnsupported, "sliding_window", "is %s", f.Excerpt("sliding_window"))
	}
}

// readBlocks reads which block each layer has: the list, else the pattern.
func (y *hybridNemotron) readBlocks(f *checkpoint.Fields, c *Config) {
	key := "layers_block_type"
	types := f.Texts(key)
	if types == nil {
		types = f.Texts("layer_types")
	}
	if types == nil {
		key = "hybrid_override_pattern"
		types = strings.Split(f.Text(key, "ME*-"), "")
	}
	if f.Err() == nil && f.Set("num_hidden_layers") && c.Layers != len(types) {
		f.Fail(checkpoint.ErrMalformed, key, "has %d entries for %d layers", len(types), c.Layers)
	}
	c.Layers = len(types)
	for _, name := range types {
		kind := nemotronLayer(0)
		switch name {
		case "M", "mamba", "linear_attention":
			kind = nemotronMamba
		case "*", "attention", "full_attention":
			kind = nemotronAttention
		case "-", "mlp":
			kind = nemotronMLP
		case "E", "moe":
			kind = nemotronExperts
		default:
			f.Fail(checkpoint.ErrUnsupported, key, "has %s", checkpoint.Short(name))
		}
		y.blocks = append(y.blocks, kind)
		y.scans = append(y.scans, kind == nemotronMamba)
	}
	for _, kind := range []nemotronLayer{nemotronMamba, nemotronAttention} {
		if !slices.Contains(y.blocks, kind) {
			f.Fail(checkpoint.ErrUnsupported, key, "has no %c", kind)
		}
	}
}

func (y *hybridNemotron) build(s *stage) (architecture, error) {
	activation, err := plainActivation(s.cfg)
	if err != nil {
		return nil, err
	}
	return newDecoder(s, decoderOptions{embedding: "embeddings", norm: "norm_f",
		attention: "mixer", attnNorm: "norm", mlpNorm: "norm", ungated: true,
		has: func(layer int) (attends, feeds bool) {
			kind := y.blocks[layer]
			attends = kind == nemotronMamba || kind == nemotronAttention
			return attends, !attends
		},
		mixer: func(s *stage, layer int, prefix string, _ layers.AttentionOptions) mixer {
			if !y.scans[layer] {
				return mixer{}
			}
			return y.mambaOf(s, s.cached(layer), prefix+"mixer.")
		},
		mlp: func(s *stage, layer int, prefix string) feedForward {
			return y.feedForward(s, layer, prefix+"mixer.", activation)
		}})
}

// feedForward is a block of squared ReLU, or a mixture of some beside one that all rows share.
func (y *hybridNemotron) feedForward(s *stage, layer int, prefix string,
	a compute.Activation) feedForward {
	c := s.cfg
	plain := func(prefix string, width int) feedForward {
		return s.MLP(prefix+"up_proj", prefix+"down_proj", c.HiddenSize, width, a, c.MLPBias)
	}
	if y.blocks[layer] == nemotronMLP {
		return plain(prefix, c.IntermediateSize)
	}
	o := layers.MixtureOptions{Experts: y.Count, Inner: y.Inner, Routing: y.Routing,
		Gating:     compute.Gating{Activation: a, Ungated: true},
		Correction: "gate.e_score_correction_bias", Latent: y.latent}
	routed := s.Mixture(prefix, c.HiddenSize, o)
	if y.Shared == 0 {
		return routed
	}
	return s.Together(routed, plain(prefix+"shared_experts.", y.Shared))
}

// widths are those of the blocks that there are.
func (y *hybridNemotron) widths(c *Config) []width {
	list := y.hybrid.widths()
	if slices.Contains(y.blocks, nemotronMLP) {
		list = append(list, width{"intermediate_size", c.IntermediateSize})
	}
	if slices.Contains(y.blocks, nemotronExperts) {
		list = append(list, width{expertWidth, y.Inner},
			width{"moe_shared_expert_intermediate_size", y.Shared})
	}
	return list
}
