package model

import (
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// experts are the numbers of a mixture of experts: what Family is of the families that have one, or
// a part of it.
type experts struct {
	// Routing is how a row's experts are chosen, without a correction.
	compute.Routing
	Count int
	// Inner is the width of each expert.
	Inner int
	// Shared is the width of the expert that all rows share, 0 for none.
	Shared int
	// Step and Dense say which layers have one: each Step-th that is not among Dense.
	Step  int
	Dense []int
	// Router and Correction are the module and the tensor, where they are not DeepSeek's.
	Router, Correction string
}

// routed returns itself: of a family's own type it is the part that is a mixture.
func (e *experts) routed() *experts { return e }

// routed is the mixture of a family that has one.
func routed(c *Config) *experts { return c.Family.(interface{ routed() *experts }).routed() }

// Experts is how many experts the mixtures of a model have among which each row has some, 0 for a
// model without any.
func (c *Config) Experts() int {
	if f, ok := c.Family.(interface{ routed() *experts }); ok {
		return f.routed().Count
	}
	return 0
}

// perToken is a default: so many experts for each row.
func perToken(n int) compute.Routing { return compute.Routing{PerToken: n} }

// sparse reports whether the feed-forward network of a layer is a mixture.
func (e *experts) sparse(layer int) bool {
	return e.Count > 0 && (layer+1)%e.Step == 0 && !slices.Contains(e.Dense, layer)
}

// readExperts reads Qwen's fields; d has the defaults.
func readExperts(f *checkpoint.Fields, c *Config, d experts) *experts {
	e := &experts{Count: f.Integer("num_experts", d.Count, 0, 1<<16)}
	if f.Has("num_local_experts") {
		local := f.Integer("num_local_experts", 0, 0, 1<<16)
		if f.Has("num_experts") && e.Count != local {
			f.Fail(checkpoint.ErrMalformed, "num_local_experts", "is %d, but num_experts is %d",
				local, e.Count)
		}
		e.Count = local
	}
	e.PerToken = f.Integer("num_experts_per_tok", d.PerToken, 1, 1<<16)
	e.Inner = f.Integer("moe_intermediate_size", d.Inner, 1, checkpoint.MaxDim)
	e.Step = f.Integer("decoder_sparse_step", 1, 1, checkpoint.MaxDim)
	e.Dense = f.IDs("mlp_only_layers", nil)
	e.Normalise = f.Flag("norm_topk_prob", false)
	e.check(f)
	for _, i := range e.Dense {
		if i >= c.Layers {
			f.Fail(checkpoint.ErrMalformed, "mlp_only_layers", "names layer %d of %d", i, c.Layers)
		}
	}
	return e
}

// readLocalExperts reads a mixture in every layer, of experts as wide as intermediate_size says,
// whose weights are divided by their sum; there are count by default, and at least least.
func readLocalExperts(f *checkpoint.Fields, c *Config, count, least, perToken int) *experts {
	e := &experts{Count: f.Integer("num_local_experts", count, least, 1<<16), Step: 1,
		Inner: c.IntermediateSize}
	e.PerToken = f.Integer("num_experts_per_tok", perToken, least, 1<<16)
	e.Normalise = true
	e.check(f)
	return e
}

// check refuses more experts for a row than there are, or none of some.
func (e *experts) check(f *checkpoint.Fields) {
	if e.Count > 0 && (e.PerToken > e.Count || e.PerToken == 0) {
		f.Fail(checkpoint.ErrMalformed, "num_experts_per_tok", "is %d of %d experts", e.PerToken,
			e.Count)
	}
}

// mixture is the feed-forward block of a layer of a family with experts.
func mixture(s *stage, layer int, prefix string) feedForward {
	c, e := s.cfg, routed(s.cfg)
	if !e.sparse(layer) {
		return s.gated(prefix+"mlp.", c.IntermediateSize)
	}
	return sparse(s, prefix)
}

// sparse is the mixture of a layer that has one.
func sparse(s *stage, prefix string) *layers.Mixture {
	e := routed(s.cfg)
	return s.Mixture(prefix+"mlp.", s.cfg.HiddenSize, layers.MixtureOptions{Experts: e.Count,
		Inner: e.Inner, Routing: e.Routing, Stacked: stacked(s, prefix+"mlp.")})
}

// stacked says how the experts under a prefix are stored together, nil for apart.
func stacked(s *stage, prefix string) *layers.Stacked {
	shape, inner := s.Shape(prefix+"experts.gate_up_proj"), routed(s.cfg).Inner
	if len(shape) != 3 {
		return nil
	}
	// As transformers 5 computes them, or, of Qwen3-VL, as 4 did.
	return &layers.Stacked{GateUp: "experts.gate_up_proj", Down: "experts.down_proj",
		Transposed: shape[1] == s.cfg.HiddenSize &&
			(shape[2] == 2*inner && shape[1] != shape[2] || s.cfg.Around == "qwen3_vl_moe")}
}

// expertWidth names the width of an expert.
const expertWidth = "moe_intermediate_size"

// expertWidths are the widths of the layers that there are, in their order.
func expertWidths(c *Config) (list []width) {
	e := routed(c)
	for i := range c.Layers {
		w := width{"intermediate_size", c.IntermediateSize}
		if e.sparse(i) {
			w = width{expertWidth, e.Inner}
		}
		if !slices.Contains(list, w) {
			list = append(list, w)
		}
	}
	if e.Shared > 0 {
		list = append(list, width{"shared_expert_intermediate_size", e.Shared})
	}
	return list
}
