package engine

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/config"
	"github.com/eagleray/eagleray/internal/layout"
	"github.com/eagleray/eagleray/internal/model"
)

// divide decides which share of the model each rank has.
func (b *opening) divide() error {
	p := &b.cfg.Parallel
	b.ranks = p.Layout().World()
	if err := model.CheckShard(b.model, p.TensorParallelSize); err != nil {
		return fmt.Errorf("--tensor-parallel-size: %w", err)
	}
	all := b.model.Layers
	if p.PipelineParallelSize > all {
		return fmt.Errorf("--pipeline-parallel-size %d: each stage needs a layer, and the model "+
			"has %d: the sizes that work are 1 to %d", p.PipelineParallelSize, all, all)
	}
	if split := p.PipelineLayerSplit; len(split) > 0 {
		sum := 0
		for _, n := range split {
			sum += n
		}
		if sum != all {
			return fmt.Errorf("--pipeline-layer-split %s has %d layers, the model has %d",
				config.Commas(split), sum, all)
		}
		b.stages = layout.Split(split)
		return nil
	}
	bytes, err := model.LayerBytes(b.model, p.TensorParallelSize)
	if err != nil {
		return fmt.Errorf("model %q: %w", b.info.Root, err)
	}
	b.stages = layout.Balance(bytes, p.PipelineParallelSize)
	return nil
}
