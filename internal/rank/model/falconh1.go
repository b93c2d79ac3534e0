package model

import (
	"math"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// hybridFalcon is a state space mixer beside the attention of every layer, and the multipliers of
// both.
type hybridFalcon struct {
	hybrid
	outBias bool
	// embedding and logits multiply what they name, in and out what attention reads and what it
	// adds, key its keys, mixed what the mixer adds, gate and down what a gated block has.
	embedding, logits, in, out, key, mixed, gate, down float64
}

// falconH1 is FalconH1ForCausalLM: Llama's layers with a state space mixer beside attention, both
// of which read the same norm, and multipliers of all that is projected. Defaults:
// configuration_falcon_h1.py.
func falconH1() *family {
	return &family{modelType: "falcon_h1", architecture: "FalconH1ForCausalLM",
		defaults: Config{VocabSize: 128000, HiddenSize: 4096, IntermediateSize: 14336, Layers: 32,
			Heads: 32, KVHeads: 8, MaxPositions: 8192, NormEps: 1e-5, Activation: "silu", BOS: 1,
			EOS: []int{2}},
		read: readFalconH1, build: buildFalconH1,
		widths: func(c *Config) []width {
			return append(c.Family.(*hybridFalcon).widths(), width{"intermediate_size",
				c.IntermediateSize})
		},
		cache: func(c *Config, layer int) []compute.CacheLayer {
			return append(plainCache(c, layer), c.Family.(*hybridFalcon).mamba.CacheLayer())
		}}
}

func readFalconH1(f *checkpoint.Fields, c *Config, d Config) {
	readBiasedAttention(f, c, d, 0)
	c.MLPBias = f.Flag("mlp_bias", false)
	readRope(f, c)
	mlp := readMultiplierList(f, "mlp_multipliers", 2)
	ssm := readMultiplierList(f, "ssm_multipliers", 5)
	if f.Err() != nil {
		return
	}
	number := func(key string) float64 { return f.Number(key, 1, 0) }
	y := &hybridFalcon{hybrid: hybrid{mamba: layers.MambaOptions{Heads: 128, Groups: 1, State: 256,
		Kernel: 4, Normed: f.Flag("mamba_rms_norm", false)},
		scans: slices.Repeat([]bool{true}, c.Layers)},
		outBias:   f.Flag("projectors_bias", false),
		embedding: number("embedding_multiplier"), logits: number("lm_head_multiplier"),
		in: number("attention_in_multiplier"), out: number("attention_out_multiplier"),
		key: number("key_multiplier"), mixed: number("ssm_out_multiplier"), gate: mlp[0],
		down: mlp[1]}
	inner := f.Integer("mamba_expand", 2, 1, 1<<16) * c.HiddenSize
	if !f.Has("mamba_d_ssm") || f.Set("mamba_d_ssm") {
		inner = f.Integer("mamba_d_ssm", 1024, 1, checkpoint.MaxDim)
	}
	y.readMamba(f, c, inner)
	in := number("ssm_in_multiplier")
	for i := range y.mamba.Multipliers {
		y.mamba.Multipliers[i] = float32(in * ssm[i])
	}
	c.Family = y
	before := f.Flag("mamba_norm_before_gate", true)
	// A bias is added to what a multiplier before it has multiplied, which is folded into others.
	for _, x := range []struct {
		key  string
		fail bool
	}{
		{"mamba_norm_before_gate", before && y.mamba.Normed},
		{"mamba_proj_bias", y.mamba.InBias && in != 1},
		{"attention_bias", c.QKVBias && y.in != 1},
		{"mlp_bias", c.MLPBias && y.gate != 1},
		{"mamba_use_mlp", !f.Flag("mamba_use_mlp", true)},
	} {
		if x.fail {
			f.Fail(checkpoint.ErrUnsupported, x.key, "is %s here", f.Excerpt(x.key))
		}
	}
}

// readMultiplierList reads so many numbers, each 1 by default.
func readMultiplierList(f *checkpoint.Fields, key string, n int) []float64 {
	list := f.Numbers(key)
	if list == nil {
		list = slices.Repeat([]float64{1}, n)
	}
	if len(list) != n {
		f.Fail(checkpoint.ErrMalformed, key, "has %d entries, not %d", len(list), n)
	}
	return list
}

// buildFalconH1 makes the layers. What multiplies the input of attention multiplies its scores
// twice, and what it adds; what multiplies a gate multiplies the norm that gate and up read, and
// divides what the block adds.
func buildFalconH1(s *stage) (architecture, error) {
	y := s.cfg.Family.(*hybridFalcon)
	return newDecoder(s, decoderOptions{norm: "final_layernorm", attnNorm: "input_layernorm",
		mlpNorm: "pre_ff_layernorm", embeddingMultiplier: float32(y.embedding),
		residualMultiplier: float32(y.in * y.out),
		logits:             layers.HeadOptions{Multiplier: float32(y.logits)},
		newNorm: func(s *stage, module string) norm {
			factor := float32(1)
			if strings.HasSuffix(module, "pre_ff_layernorm") {
				factor = float32(y.gate)
			}
			return s.ScaledRMSNorm(module+".weight", s.cfg.HiddenSize, float32(s.cfg.NormEps),
				factor)
		},
		attn: func(_ int, o *layers.AttentionOptions) {
			o.Scale = float32(y.in * y.in * y.key / math.Sqrt(float64(s.cfg.HeadDim)))
		},
		beside: func(s *stage, layer int, prefix string) mixer {
			m := y.mambaOf(s, s.cached(layer)+1, prefix+"mamba.")
			m.multiplier, m.bias = float32(y.mixed), y.outBias
			return m
		},
		mlp: blockOf("feed_forward.", float32(y.down/y.gate))})
}
