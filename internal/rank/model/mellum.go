package model

import (
	"slices"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// mellum is MellumForCausalLM (Mellum 2): Qwen3's mixture, with a rotary base of its own in layers
// that have a window. Defaults: configuration_mellum.py.
func mellum() *family {
	return &family{modelType: "mellum", architecture: "MellumForCausalLM",
		defaults: Config{VocabSize: 98304, HiddenSize: 2304, IntermediateSize: 7168, Layers: 28,
			Heads: 32, KVHeads: 4, MaxPositions: 131072, NormEps: 1e-6, Activation: "silu",
			BOS: -1, PAD: -1, RopeTheta: 500000},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			readBiasedAttention(f, c, d, 128)
			e := readExperts(f, c, experts{Count: 64, Routing: perToken(8), Inner: 896})
			e.Normalise = f.Flag("norm_topk_prob", true)
			for i, kind := range textOfLayers(f, c, "mlp_layer_types") {
				if kind == "dense" {
					e.Dense = append(e.Dense, i)
				}
			}
			c.Family = e
			c.LocalTheta = 10000
			if !readRopeOfLayers(f, c) {
				readRope(f, c)
			}
			readWindows(f, c, plainWindow(f, 1024), noLayer)
		},
		build: func(s *stage) (architecture, error) {
			c := s.cfg
			o := decoderOptions{mlp: mixture, attn: headNorms}
			if slices.ContainsFunc(c.Windows, func(w int) bool { return w > 0 }) {
				o.rotaries = globalAndLocal
				o.rotaryOf = func(layer int) int { return localLayer(c, layer) }
			}
			return newDecoder(s, o)
		}, widths: expertWidths}
}
