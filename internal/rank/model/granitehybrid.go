package model

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// graniteHybrid is Granite's layers with a state space mixer in the place of attention in some.
type graniteHybrid struct {
	*graniteExperts
	hybrid
}

// graniteMoEHybrid is GraniteMoeHybridForCausalLM (Granite 4): Granite's layers, most of them with
// a state space mixer, and a mixture of experts beside one that all rows share, or that alone.
// Defaults: configuration_granitemoehybrid.py.
func graniteMoEHybrid() *family {
	return &family{modelType: "granitemoehybrid", architecture: "GraniteMoeHybridForCausalLM",
		defaults: llama().defaults,
		read: func(f *checkpoint.Fields, c *Config, d Config) {
			m := readMultipliers(f, c, d)
			switch kind := f.Text("position_embedding_type", "nope"); kind {
			case "rope":
			case "nope":
				c.Rope.Type = ""
			default:
				f.Fail(checkpoint.ErrUnsupported, "position_embedding_type", "is %s",
					checkpoint.Short(kind))
			}
			f.Only("normalization_function", "rmsnorm")
			e := &graniteExperts{readLocalExperts(f, c, 8, 0, 2), m}
			e.Shared = f.Integer("shared_intermediate_size", 1024, 1, checkpoint.MaxDim)
			y := &graniteHybrid{graniteExperts: e, hybrid: hybrid{mamba: layers.MambaOptions{
				Heads: 128, Groups: 1, State: 256, Kernel: 4, Normed: true}}}
			y.readMamba(f, c, f.Integer("mamba_expand", 2, 1, 1<<16)*c.HiddenSize)
			y.readTypes(f, c)
			c.Family = y
		},
		build: func(s *stage) (architecture, error) {
			y := s.cfg.Family.(*graniteHybrid)
			o := y.options()
			o.mlp, o.mixer = y.feedForward, y.mixer
			return newDecoder(s, o)
		},
		widths: func(c *Config) []width {
			y := c.Family.(*graniteHybrid)
			list := y.widths()
			if y.Count > 0 {
				list = append(list, width{expertWidth, y.Inner})
			}
			return append(list, width{"shared_intermediate_size", y.Shared})
		},
		cache: func(c *Config, layer int) []compute.CacheLayer {
			return c.Family.(*graniteHybrid).cache(c, layer)
		}}
}
