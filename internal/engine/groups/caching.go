package groups

import (
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/rank/model"
)

// Caching is a group of ranks and what their KV caches hold.
type Caching struct {
	*executor.Executor
	Shape kvtransfer.Shape
}

// CacheShape describes the KV caches of the engine's groups, whatever their layout and weights.
func (b *Launch) CacheShape() kvtransfer.Shape {
	return kvtransfer.Shape{DType: b.Info.DType, CacheDType: b.Info.CacheDType,
		BlockSize: b.Info.BlockSize,
		Cache:     model.GroupedLayers(b.Model, 0, b.Model.Layers, 1, b.Groups)}
}

// Caching describes a group that computes with a model and weights of a name.
func (b *Launch) Caching(group *executor.Executor, weights string) Caching {
	s := b.CacheShape()
	s.Layout, s.Stages = b.Config.Parallel.Layout(), b.Stages
	// What is said before the name: how weights were quantised, which members of config.json are
	// others, and which of two rotary embeddings a longest sequence has chosen.
	if q := b.Config.Model.Quantization; q != "" {
		s.Model = q + " of "
	}
	if o := b.Overridden(); o != "" {
		s.Model += o + " of "
	}
	if b.Model.Rope.Long {
		s.Model += "long "
	}
	s.Model += weights
	var sets []string
	for _, r := range group.Ranks() {
		if !slices.Contains(sets, r.ISA) {
			sets = append(sets, r.ISA)
		}
	}
	s.ISA = strings.Join(sets, ", ")
	return Caching{group, s}
}
