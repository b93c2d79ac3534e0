package model

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// clampedExperts is a mixture whose gates have a limit.
type clampedExperts struct {
	*experts
	limit float64
}

// gptOSS is GptOssForCausalLM: Llama's attention with biases, a sink for each head and a window in
// every other layer, and a mixture of experts with clamped gates. Defaults:
// configuration_gpt_oss.py.
func gptOSS() *family {
	return &family{modelType: "gpt_oss", architecture: "GptOssForCausalLM",
		defaults: Config{VocabSize: 201088, HiddenSize: 2880, IntermediateSize: 2880, Layers: 36,
			Heads: 64, KVHeads: 8, MaxPositions: 131072, NormEps: 1e-5, Activation: "silu", BOS: -1,
			PAD: -1, RopeTheta: 150000},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readAttention(f, c, d, 64)
			c.QKVBias = f.Flag("attention_bias", true)
			c.OutBias = c.QKVBias
			c.Family = &clampedExperts{readLocalExperts(f, c, 128, 1, 4),
				f.Number("swiglu_limit", 7, 0)}
			if a := f.Number("swiglu_alpha", 1.702, 0); a != 1.702 {
				f.Fail(checkpoint.ErrUnsupported, "swiglu_alpha", "is %v", a)
			}
			readRope(f, c)
			readWindows(f, c, plainWindow(f, 128), func(i int) bool { return i%2 == 0 })
		},
		build: func(s *stage) (architecture, error) {
			c, e := s.cfg, s.cfg.Family.(*clampedExperts)
			return newDecoder(s, decoderOptions{
				attn: func(_ int, o *layers.AttentionOptions) { o.Sinks = true },
				mlp: func(s *stage, _ int, prefix string) feedForward {
					o := layers.MixtureOptions{Routing: e.Routing,
						Gating:  compute.Gating{Limit: float32(e.limit)},
						Experts: e.Count, Inner: e.Inner, Router: "router", RouterBias: true,
						Bias: true}
					if !s.Has(prefix + "mlp.experts.0.gate_proj.weight") {
						o.Stacked = &layers.Stacked{GateUp: "experts.gate_up_proj",
							Down: "experts.down_proj", Transposed: true, Alternating: true,
							Bias: true}
					}
					return s.Mixture(prefix+"mlp.", c.HiddenSize, o)
				}})
		},
		widths: expertWidths}
}
