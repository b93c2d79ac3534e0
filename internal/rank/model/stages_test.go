package model_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/link/collective/shm"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// recording is a source that notes what it was asked for.
type recording struct {
	layers.Source
	names []string
}

func (r *recording) Tensor(name string, shape ...int) (checkpoint.Tensor, error) {
	r.names = append(r.names, name)
	return r.Source.Tensor(name, shape...)
}

// cuts are the stages of a model of n layers in count parts, the first ones shorter.
func cuts(n, count int) []model.Stage {
	var all []model.Stage
	for i := range count {
		all = append(all, model.Stage{From: i * n / count, To: (i + 1) * n / count})
	}
	return all
}

// loadStage loads one rank's shard of a stage, with a cache for the stage's layers.
func loadStage(t *testing.T, f fixture, src layers.Source, opt cpu.Options, g layers.Group,
	s model.Stage) (m *model.Model, cache compute.Cache, bytes int64) {
	t.Helper()
	cfg, _ := f.open(t)
	d, err := cpu.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	m, err = model.Load(cfg, src, d, model.Options{Group: g, Stage: s,
		Progress: func(n int64) { bytes = n }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	shape := compute.CacheShape{Layers: model.CacheLayers(cfg, s.From, s.To, g.Size), Blocks: 64,
		BlockSize: blockSize, DType: opt.DType, States: 8}
	if cache, err = d.NewCache(shape); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cache.Free() })
	return m, cache, bytes
}

// stagedRank is one tensor parallel rank of every stage.
type stagedRank struct {
	models []*model.Model
	caches []compute.Cache
}

// forward computes a piece stage by stage; each stage but the first gets a copy of the hidden state
// of the one before. On rank 0 it returns the logits of all rows.
func (s *stagedRank) forward(rank, vocab int, p piece) ([][]float32, error) {
	b, rows := batch(p), int32(len(p.tokens))
	for i, m := range s.models {
		var err error
		if i == 0 {
			err = m.Embed(b)
		} else {
			copy(m.Receive(len(p.tokens)).Floats(), s.models[i-1].Hidden().Floats())
		}
		if err == nil {
			err = m.Layers(b, s.caches[i])
		}
		if err != nil {
			return nil, err
		}
	}
	chosen := make([]int32, rows)
	for i := range chosen {
		chosen[i] = int32(i)
	}
	dst, err := s.models[len(s.models)-1].Logits(chosen)
	if err != nil || dst == nil {
		return nil, err
	}
	return slices.Collect(slices.Chunk(slices.Clone(dst.Floats()), vocab)), nil
}

// inStages computes ids in two steps with a model cut in stages, each of size ranks, and returns
// rank 0's logits of all rows.
func inStages(t *testing.T, f fixture, opt cpu.Options, size, count int,
	ids []int32) [][]float32 {
	t.Helper()
	cfg, weights := f.open(t)
	ranks := make([]stagedRank, size)
	for _, s := range cuts(cfg.Layers, count) {
		groups := make([]layers.Group, size)
		if size > 1 {
			const segment = 64 << 10
			region, err := shm.Create(size, segment)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { region.Close() })
			for r := range groups {
				g, err := shm.Join(region, r, size, segment)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { g.Close() })
				groups[r].Comm = layers.OnHost{Group: g}
			}
		}
		for r := range ranks {
			groups[r].Rank, groups[r].Size = r, size
			m, c, _ := loadStage(t, f, model.FromCheckpoint(weights), opt, groups[r], s)
			ranks[r].models = append(ranks[r].models, m)
			ranks[r].caches = append(ranks[r].caches, c)
		}
	}
	var out [][]float32
	var wg sync.WaitGroup
	half := len(ids) * 2 / 3
	for r := range ranks {
		wg.Go(func() {
			for _, p := range []piece{{tokens: ids[:half]}, {start: half, tokens: ids[half:]}} {
				got, err := ranks[r].forward(r, cfg.VocabSize, p)
				if err != nil {
					t.Error(err)
					return
				}
				if r == 0 {
					out = append(out, got...)
				}
			}
		})
	}
	wg.Wait()
	return out
}

// TestSameBitsStages cuts the layers of every fixture in two and three stages, each loaded on its
// own and with a KV cache of its own, hands the hidden state from one to the next, and wants the
// bits of the whole model.
func TestSameBitsStages(t *testing.T) {
	var all []fixture
	for _, name := range append([]string{"go-std-tiny"}, allNames...) {
		all = append(all, shipped(name))
	}
	for _, name := range variantNames(t) {
		all = append(all, variant(name))
	}
	for i, f := range all {
		t.Run(f.dir[strings.LastIndexByte(f.dir, '/')+1:], func(t *testing.T) {
			ids := prompt(40)
			cfg, _ := f.open(t)
			for i := range ids {
				ids[i] %= int32(cfg.VocabSize)
			}
			opt := cpu.Options{Threads: 1, DType: compute.BFloat16}
			want := loadShard(t, f, opt, layers.Group{Size: 1}).forward(t, 0, piece{tokens: ids})
			for _, size := range []int{1, 2} {
				for count := 2; count <= min(3, cfg.Layers); count++ {
					if model.CheckLayout(cfg, layout.Layout{TP: size, PP: count}) != nil ||
						slices.ContainsFunc(cuts(cfg.Layers, count), func(s model.Stage) bool {
							return len(model.CacheLayers(cfg, s.From, s.To, 1)) == 0
						}) {
						continue
					}
					if testing.Short() && (i+size+count)%2 > 0 {
						continue // the families take turns
					}
					compareRows(t, fmt.Sprintf("%d stages of %d ranks", count, size),
						inStages(t, f, opt, size, count, ids), want)
				}
			}
		})
	}
}

// TestStageLoadsItsOwn wants each stage to read what belongs to it and nothing else.
func TestStageLoadsItsOwn(t *testing.T) {
	opt := cpu.Options{Threads: 1}
	group := layers.Group{Size: 1}
	for _, f := range []fixture{shipped("llama-tiny"), shipped("qwen2-tiny"), shipped("opt-tiny"),
		shipped("gptq-actorder-g32-tiny"), shipped("fp8-block-tiny"), shipped("bnb-nf4-tiny"),
		variant("opt-post-norm"), variant("qwen3moe-mixed")} {
		cfg, weights := f.open(t)
		whole := &recording{Source: model.FromCheckpoint(weights)}
		_, _, wantBytes := loadStage(t, f, whole, opt, group, model.Stage{To: cfg.Layers})
		var read []string
		var bytes int64
		stages := cuts(cfg.Layers, 2)
		for i, s := range stages {
			src := &recording{Source: model.FromCheckpoint(weights)}
			m, _, n := loadStage(t, f, src, opt, group, s)
			bytes += n
			read = append(read, src.names...)
			if want, err := model.ReadBytes(cfg, src.Source, group, s); err != nil || n != want {
				t.Errorf("%s: stage %d reads %d bytes, %d are announced: %v",
					f.dir, i, n, want, err)
			}
			for _, name := range src.names {
				if layer, ok := layerOf(name); ok && (layer < s.From || layer >= s.To) {
					t.Errorf("%s: the stage of layers %d to %d read %s",
						f.dir, s.From, s.To-1, name)
				}
			}
			first, last := i == 0, i == len(stages)-1
			b := batch(piece{tokens: []int32{1}})
			if err := m.Embed(b); (err == nil) != first {
				t.Errorf("%s: stage %d embeds: %v", f.dir, i, err)
			}
			m.Receive(1)
			if _, err := m.Logits([]int32{0}); (err == nil) != last {
				t.Errorf("%s: stage %d has logits: %v", f.dir, i, err)
			}
		}
		slices.Sort(read)
		slices.Sort(whole.names)
		if bytes != wantBytes || !slices.Equal(read, whole.names) {
			t.Errorf("%s: the stages read %d bytes of %v, the whole model %d bytes of %v",
				f.dir, bytes, read, wantBytes, whole.names)
		}
	}
}

// TestStepBytes holds the weights that a step reads of each layer to what is read of a checkpoint
// for a stage of that layer alone, a third of the output head: the fixtures' tensors are of 16 bits
// too.
func TestStepBytes(t *testing.T) {
	for _, name := range []string{"llama-tiny", "qwen2-tiny", "opt-tiny", "qwen3moe-tiny"} {
		f := shipped(name)
		cfg, weights := f.open(t)
		for _, size := range []int{1, 2} {
			got, err := model.StepBytes(cfg, size)
			if err != nil || len(got) != cfg.Layers {
				t.Fatalf("%s: %v, %v", name, got, err)
			}
			for i, n := range got {
				src := &recording{Source: model.FromCheckpoint(weights)}
				group := layers.Group{Size: size}
				read, err := model.ReadBytes(cfg, src, group, model.Stage{From: i, To: i + 1})
				if err != nil {
					t.Fatal(err)
				}
				head := int64(0)
				for _, tensor := range src.names {
					x, err := weights.Tensor(tensor)
					if err != nil {
						t.Fatal(err)
					}
					// The head may be the first layer's embedding.
					if strings.Contains(tensor, "lm_head") ||
						i == cfg.Layers-1 && strings.Contains(tensor, "embed_tokens") {
						head = int64(len(x.Data)) / int64(size)
					}
				}
				if n != read-head+head/3 {
					t.Errorf("%s, layer %d of %d ranks: %d bytes, %d are read, %d of the head",
						name, i, size, n, read, head)
				}
			}
		}
	}
}

// layerOf is the layer that a tensor belongs to.
func layerOf(tensor string) (layer int, ok bool) {
	_, rest, ok := strings.Cut(tensor, "layers.")
	if !ok {
		return 0, false
	}
	_, err := fmt.Sscanf(rest, "%d.", &layer)
	return layer, err == nil
}

// TestNoSuchStage wants an error that names the layers.
func TestNoSuchStage(t *testing.T) {
	cfg, weights := shipped("llama-tiny").open(t)
	for _, s := range []model.Stage{{From: -1, To: 2}, {From: 2, To: 2}, {From: 3, To: 2},
		{To: 5}} {
		m, err := model.Load(cfg, model.FromCheckpoint(weights), newDevice(t),
			model.Options{Group: layers.Group{Size: 1}, Stage: s})
		if err == nil {
			m.Close()
			t.Fatalf("%+v is loaded", s)
		}
		want := fmt.Sprintf("layers %d to %d in a model of 4", s.From, s.To-1)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}
