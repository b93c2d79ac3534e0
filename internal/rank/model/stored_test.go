package model_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
	"github.com/eagleray/eagleray/internal/rank/packed"
)

// TestStored wants of stored weights the bits of those that are made, with none made, for every
// family, layout of quantised weights, type, and share.
func TestStored(t *testing.T) {
	var cases []fixture
	for _, name := range append(slices.Clone(allNames), "gpt-oss-mxfp4-tiny") {
		cases = append(cases, shipped(name))
	}
	for _, name := range []string{"llama-tiny", "qwen3moe-tiny"} {
		for _, how := range []string{"int8", "int4"} {
			f := shipped(name)
			f.quantization = how
			cases = append(cases, f)
		}
	}
	for i, f := range cases {
		for j, dtype := range []compute.DType{compute.BFloat16, compute.Float32} {
			if testing.Short() && i%2 != j {
				continue // the families take turns
			}
			t.Run(fmt.Sprintf("%s%s/%v", f.dir, f.quantization, dtype), func(t *testing.T) {
				dir := t.TempDir()
				g := layers.Group{Size: 1}
				made, entries := loadStored(t, f, dtype, g, nil)
				key := packed.Key(f.dir)
				if err := packed.Save(dir, key, entries, false, never); err != nil {
					t.Fatal(err)
				}
				file, err := packed.Open(dir, key, 2)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(file.Close)
				stored, entries := loadStored(t, f, dtype, g, file)
				if entries != nil {
					t.Errorf("%d entries are to be stored again", len(entries))
				}
				p := piece{tokens: prompt(20)}
				if a, b := made.forward(t, 0, p), stored.forward(t, 0, p); !slices.EqualFunc(a, b,
					slices.Equal) {
					t.Error("logits differ from those of weights that were made")
				}
			})
		}
	}
}

func never() bool { return false }

// loadStored loads a fixture with a store, and returns what is to be stored.
func loadStored(t *testing.T, f fixture, dtype compute.DType, g layers.Group,
	store layers.Store) (*shard, []layers.Entry) {
	t.Helper()
	cfg, weights := f.open(t)
	d, err := cpu.New(cpu.Options{Threads: 2, DType: dtype})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	m, err := model.Load(cfg, model.FromCheckpoint(weights), d,
		model.Options{Group: g, Store: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	c, err := d.NewCache(compute.CacheShape{Layers: model.CacheLayers(cfg, 0, cfg.Layers, g.Size),
		Blocks: 64, BlockSize: blockSize, DType: dtype, States: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Free() })
	var entries []layers.Entry
	if m.Made() {
		if entries, err = m.Entries(); err != nil {
			t.Fatal(err)
		}
	}
	return &shard{model: m, cache: c, vocab: cfg.VocabSize}, entries
}
