package model

import (
	"slices"

	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// graniteSWA is GraniteSWAForCausalLM: Granite's layers with sinks, three of four with a window,
// each with a rotary base of its own or none. Defaults: configuration_granite_swa.py.
func graniteSWA() *family {
	return &family{modelType: "granite_swa", architecture: "GraniteSWAForCausalLM",
		defaults: Config{VocabSize: 100352, HiddenSize: 2560, IntermediateSize: 8192, Layers: 24,
			Heads: 20, KVHeads: 4, MaxPositions: 8192, NormEps: 1e-5, Activation: "silu",
			TieEmbeddings: true, BOS: 100257, PAD: -1, EOS: []int{100257}},
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			own := &graniteBases{multipliers: readMultipliers(f, c, d)}
			c.MLPBias = f.Flag("mlp_bias", false)
			readWindows(f, c, plainWindow(f, 128), func(i int) bool { return i%4 != 0 })
			own.Bases = slices.Repeat([]float64{c.RopeTheta}, c.Layers)
			if list := f.IDs("layer_rope_theta", nil); list != nil {
				if len(list) != c.Layers {
					f.Fail(checkpoint.ErrMalformed, "layer_rope_theta",
						"has %d entries for %d layers", len(list), c.Layers)
					return
				}
				for i, base := range list {
					own.Bases[i] = float64(base)
				}
			}
			c.Family = own
		},
		build: func(s *stage) (architecture, error) {
			own := s.cfg.Family.(*graniteBases)
			opt := own.options()
			scaled := opt.attn
			opt.attn = func(layer int, o *layers.AttentionOptions) {
				scaled(layer, o)
				o.Sinks = true
			}
			bases := own.distinct()
			opt.rotaries = func(s *stage) ([]*layers.Rotary, error) {
				var configs []*Config
				for _, base := range bases {
					c := *s.cfg
					c.RopeTheta = base
					configs = append(configs, &c)
				}
				return rotariesOf(s, configs...)
			}
			opt.rotaryOf = func(layer int) int { return slices.Index(bases, own.Bases[layer]) }
			return newDecoder(s, opt)
		}}
}

// graniteBases are Granite's multipliers, and each layer's rotary base, 0 for none.
type graniteBases struct {
	*multipliers
	Bases []float64
}

// distinct are the bases that there are.
func (g *graniteBases) distinct() []float64 {
	list := slices.Clone(g.Bases)
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(base float64) bool { return base == 0 })
}
