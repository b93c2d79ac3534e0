package runner_test

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/compute/cuda/double"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// onCUDA gives the only rank of a group a CUDA device, the kernels of which a machine executes.
func (g *group) onCUDA(t *testing.T, dir string) *cuda.Device {
	t.Helper()
	folder, err := checkpoint.Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := folder.ReadFile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := model.ReadConfig(raw)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := checkpoint.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { weights.Close() })
	d, err := cuda.New(cuda.Options{Driver: &double.Driver{Threads: 2}, PTX: true,
		DType: compute.BFloat16, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	m, err := model.Load(cfg, model.FromCheckpoint(weights), d,
		model.Options{Group: layers.Group{Size: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	c, err := d.NewCache(compute.CacheShape{Layers: cfg.Cache(),
		Blocks: g.config.Blocks, BlockSize: g.config.BlockSize, DType: compute.BFloat16,
		States: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Free() })
	opt := &g.options[0]
	opt.Model, opt.Cache, opt.Pool, opt.Sampler = m, c, d.Pool(), d
	return d
}

// TestCUDASamples generates with a model on a CUDA device: where the device samples, it gives the
// tokens that the host chooses from the same logits, and the host is not given logits.
func TestCUDASamples(t *testing.T) {
	work := workload{config: schedule.Config{MaxSeqs: 3, MaxTokens: 16, MaxModelLen: 64,
		BlockSize: 16, Blocks: 4, PrefixCaching: true, ChunkedPrefill: true},
		requests: func(vocab int) (few []*schedule.Request) {
			for _, q := range requests(vocab, 6, 3, 11) {
				q.Params.MaxTokens = min(q.Params.MaxTokens, 16)
				few = append(few, q)
			}
			return few
		}}
	var all [2]map[uint64][]string
	for i := range all {
		dir := shipped("llama-tiny")
		g := newGroup(t, dir, layout.Layout{}, "", work)
		d := g.onCUDA(t, dir)
		if i == 0 {
			g.options[0].Sampler = nil
		}
		all[i], _ = g.generate(t, 1)
		if err := d.Err(); err != nil {
			t.Fatal(err)
		}
		if n := d.Launches()[kernels.Survey]; (n > 0) != (i == 1) {
			t.Errorf("%d launches of survey", n)
		}
	}
	if len(all[0]) < 6 || len(all[0]) != len(all[1]) {
		t.Fatalf("%d and %d answers", len(all[0]), len(all[1]))
	}
	for key, want := range all[0] {
		if got := all[1][key]; !slices.Equal(got, want) {
			t.Errorf("request %d:\n%v, want\n%v", key, got, want)
		}
	}
}
