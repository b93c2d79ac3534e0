package open

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/model"
)

// llama is a small model of n layers.
func llama(n int) *model.Config {
	return &model.Config{
		Architecture: "LlamaForCausalLM", Activation: "silu", Layers: n, HiddenSize: 64, Heads: 4,
		KVHeads: 4, HeadDim: 16, IntermediateSize: 128, VocabSize: 256, MaxPositions: 64,
		RopeTheta: 10000, Rope: model.Rope{Type: "default"},
		Windows: make([]int, n),
	}
}

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		layers, stages int
		split          []int
		want           []int // the first layers of the stages but the first
		err            string
	}{
		{layers: 12, stages: 1},
		{layers: 12, stages: 2, want: []int{6}},
		{layers: 12, stages: 4, want: []int{3, 6, 9}},
		{layers: 12, stages: 2, split: []int{5, 7}, want: []int{5}},
		{layers: 4, stages: 4, want: []int{1, 2, 3}},
		{layers: 4, stages: 5, err: "--pipeline-parallel-size 5: each of 5 pipeline stages " +
			"needs a layer, and the model has 4: no layout of 5 ranks works, the nearest ones " +
			"that do are PP 4, TP 2 × PP 2, TP 4"},
		{layers: 12, stages: 2, split: []int{6, 7},
			err: "--pipeline-layer-split 6,7 has 13 layers, the model has 12"},
	} {
		cfg := config.Default()
		cfg.Parallel.PipelineParallelSize = c.stages
		cfg.Parallel.PipelineLayerSplit = c.split
		b := Spec{Config: &cfg, Model: llama(c.layers)}
		err := b.divide()
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%d layers, %d stages %v: %v, want %q", c.layers, c.stages, c.split, err,
					c.err)
			}
			continue
		}
		if err != nil || !slices.Equal([]int(b.Stages), c.want) || b.Ranks != c.stages {
			t.Errorf("%d layers, %d stages %v: %v of %d ranks, %v; want %v", c.layers, c.stages,
				c.split, b.Stages, b.Ranks, err, c.want)
		}
	}
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "testdata", "variants", "nemotron-h",
		"config.json"))
	if err != nil {
		t.Fatal(err)
	}
	nemotron, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.Parallel.PipelineParallelSize, cfg.Parallel.PipelineLayerSplit = 2, []int{3, 1}
	b := Spec{Config: &cfg, Model: nemotron}
	if err := b.divide(); err == nil || !strings.Contains(err.Error(),
		"--pipeline-parallel-size 2: layers 3 to 3, of a stage, have no attention") {
		t.Errorf("a stage of a mixture alone: %v", err)
	}
	cfg = config.Default()
	cfg.Parallel.TensorParallelSize = 3
	b = Spec{Config: &cfg, Model: llama(2)}
	err = b.divide()
	var mistake *config.UsageError
	if !errors.As(err, &mistake) ||
		!strings.HasPrefix(err.Error(),
			"--tensor-parallel-size 3: tensor parallel size 3 does not") {
		t.Errorf("3 ranks per layer: %v", err)
	}
}

// TestSmaller follows the layouts with fewer ranks to the smallest.
func TestSmaller(t *testing.T) {
	for _, c := range []struct {
		args func(p *config.Parallel)
		room int
		want Sizes
	}{
		{func(p *config.Parallel) { p.TensorParallelSize = 4 }, 3, Sizes{TP: 2}},
		{func(p *config.Parallel) { p.TensorParallelSize = 4 }, 2, Sizes{TP: 2}},
		{func(p *config.Parallel) { p.TensorParallelSize = 4 }, 1, Sizes{TP: 1}},
		{func(p *config.Parallel) { p.TensorParallelSize = 4 }, 0, Sizes{TP: 1}},
		// A layout is smaller than the one that there is, whatever there is room for.
		{func(p *config.Parallel) { p.TensorParallelSize = 4 }, 9, Sizes{TP: 2}},
		{func(*config.Parallel) {}, 0, Sizes{}},
		{func(p *config.Parallel) { p.TensorParallelSize, p.PipelineParallelSize = 2, 2 }, 3,
			Sizes{TP: 1}},
		{func(p *config.Parallel) { p.PipelineParallelSize = 2 }, 1, Sizes{}},
		// Engines that share nothing shrink alone.
		{func(p *config.Parallel) { p.DataParallelSize, p.TensorParallelSize = 3, 2 }, 1,
			Sizes{TP: 1}},
		{func(p *config.Parallel) { p.DataParallelSize = 3 }, 1, Sizes{}},
	} {
		cfg := config.Default()
		c.args(&cfg.Parallel)
		s := Spec{Config: &cfg, Model: llama(4)}
		if got := s.Smaller(c.room); got != c.want {
			t.Errorf("%v with room for %d ranks: %+v, want %+v", cfg.Parallel.Layout(), c.room, got,
				c.want)
		}
	}
	raw, err := os.ReadFile("../../../testdata/models/qwen3moe-tiny/config.json")
	if err != nil {
		t.Fatal(err)
	}
	mixture, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		places, tp, room int
		want             Sizes
	}{
		{3, 2, 5, Sizes{TP: 2, Places: 2}},
		{3, 2, 3, Sizes{TP: 2, Places: 1}},
		{3, 2, 1, Sizes{TP: 1, Places: 1}},
		{3, 2, 0, Sizes{TP: 1, Places: 1}},
		{1, 2, 2, Sizes{TP: 1, Places: 1}},
		{1, 1, 0, Sizes{}},
	} {
		cfg := config.Default()
		p := &cfg.Parallel
		p.ExpertParallel, p.DataParallelSize, p.TensorParallelSize = true, c.places, c.tp
		s := Spec{Config: &cfg, Model: mixture}
		if got := s.Smaller(c.room); got != c.want {
			t.Errorf("%v with room for %d ranks: %+v, want %+v", p.Layout(), c.room, got, c.want)
		}
	}
}
