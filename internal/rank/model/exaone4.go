package model

import (
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
