package model

import (
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// hybrid is state space mixers (Mamba-2), in the place of attention in some layers.
type hybrid struct {
	mamba layers.MambaOptions
	scans []bool // of each layer
}

// readMamba reads a mixer as most families have it, of so many features; its options have the
// defaults.
func (h *hybrid) readMamba(f *checkpoint.Fields, c *Config, inner int) {
	o := &h.mamba
	o.Eps = float32(c.NormEps)
	o.Heads = f.Integer("mamba_n_heads", o.Heads, 1, checkpoint.MaxDim)
	o.Groups = f.Integer("mamba_n_groups", o.Groups, 1, checkpoint.MaxDim)
	o.State = f.Integer("mamba_d_state", o.State, 1, 1<<12)
	o.Kernel = f.Integer("mamba_d_conv", o.Kernel, 1, 1<<8)
	o.Bias, o.InBias = f.Flag("mamba_conv_bias", true), f.Flag("mamba_proj_bias", false)
	o.Dim = inner / o.Heads
	if f.Set("mamba_d_head") && f.Excerpt("mamba_d_head") != `"auto"` {
		o.Dim = f.Integer("mamba_d_head", 0, 1, 1<<12)
	}
	if f.Err() == nil && o.Dim*o.Heads != inner {
		f.Fail(checkpoint.ErrMalformed, "mamba_n_heads", "is %d, of %d, for %d features", o.Heads,
			o.Dim, inner)
	}
	h.readSteps(f, "mamba_n_heads")
}

// readSteps reads what steps are held between, and checks the groups of so many heads.
func (h *hybrid) readSteps(f *checkpoint.Fields, heads string) {
	o := &h.mamba
	least, most := f.Range("time_step_limit", 0, math.Inf(1))
	o.Least, o.Most = float32(least), float32(most)
	if f.Err() == nil && o.Heads%o.Groups != 0 {
		f.Fail(checkpoint.ErrMalformed, heads, "is %d, not a multiple of %d groups", o.Heads,
			o.Groups)
	}
}

// readTypes reads layer_types: which layers have a mixer, by default all.
func (h *hybrid) readTypes(f *checkpoint.Fields, c *Config) {
	types := textOfLayers(f, c, "layer_types")
	if types == nil {
		types = slices.Repeat([]string{"mamba"}, c.Layers)
	}
	for _, kind := range types {
		switch kind {
		case "mamba", "linear_attention":
			h.scans = append(h.scans, true)
		case "attention", "full_attention":
			h.scans = append(h.scans, false)
		default:
			f.Fail(checkpoint.ErrUnsupported, "layer_types", "has %s", checkpoint.Short(kind))
		}
	}
	h.attends(f, "layer_types")
}

// attends refuses a model without attention: such ones are other families.
func (h *hybrid) attends(f *checkpoint.Fields, key string) {
	if !slices.Contains(h.scans, false) {
		f.Fail(checkpoint.ErrUnsupported, key, "has no attention")
	}
}

// mixer makes the mixer of a layer that has one.
func (h *hybrid) mixer(s *stage, layer int, prefix string, _ layers.AttentionOptions) mixer {
	if !h.scans[layer] {
		return mixer{}
	}
	return h.mambaOf(s, s.cached(layer), prefix+"mamba.")
}

// mambaOf makes the mixer of a module, of a place in the cache.
func (h *hybrid) mambaOf(s *stage, place int, prefix string) mixer {
	o := h.mamba
	return mixer{attention: s.Mamba(prefix, place, s.cfg.HiddenSize, o),
		output: prefix + "out_proj", width: o.Heads * o.Dim, bias: o.InBias}
}

// cache is what a layer keeps.
func (h *hybrid) cache(c *Config, layer int) []compute.CacheLayer {
	if h.scans[layer] {
		return []compute.CacheLayer{h.mamba.CacheLayer()}
	}
	return plainCache(c, layer)
}

// widths are those that ranks divide, of mixers: with more ranks than groups, neighbours have the
// same one.
func (h *hybrid) widths() []width {
	if !slices.Contains(h.scans, true) {
		return nil
	}
	list := []width{{"mamba_n_heads", h.mamba.Heads}}
	if layers.Chunks%h.mamba.Groups != 0 {
		list = append(list, width{"mamba_n_groups", h.mamba.Groups})
	}
	return list
}
