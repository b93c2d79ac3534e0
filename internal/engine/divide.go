package engine

import (
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
)

// divide decides which share of the model each rank has.
func (b *opening) divide() error {
	if err := b.divideLayers(); err != nil {
		return err
	}
	b.info.Layout = b.cfg.Parallel.Layout()
	b.info.StageLayers = b.stages.Counts(b.model.Layers)
	return nil
}

func (b *opening) divideLayers() error {
	p := &b.cfg.Parallel
	b.ranks = p.Layout().World()
	if err := model.CheckLayout(b.model, p.Layout()); err != nil {
		return misfit(err)
	}
	all := b.model.Layers
	if split := p.PipelineLayerSplit; len(split) > 0 {
		sum := 0
		for _, n := range split {
			sum += n
		}
		if sum != all {
			return &config.UsageError{Err: fmt.Errorf("--pipeline-layer-split %s has %d layers, the "+
				"model has %d", config.Commas(split), sum, all)}
		}
		b.stages = layout.Split(split)
		return nil
	}
	bytes, err := model.StepBytes(b.model, p.TensorParallelSize)
	if err != nil {
		return fmt.Errorf("model %q: %w", b.info.Root, err)
	}
	b.stages = layout.Balance(bytes, p.PipelineParallelSize)
	return nil
}

// misfit names the flag that asks for a layout which the model cannot have.
func misfit(err error) error {
	var m *model.Misfit
	if !errors.As(err, &m) {
		return err
	}
	flag, size := "tensor-parallel-size", m.Layout.TP
	if m.Stages {
		flag, size = "pipeline-parallel-size", m.Layout.PP
	}
	return &config.UsageError{Err: fmt.Errorf("--%s %d: %w", flag, size, err)}
}
