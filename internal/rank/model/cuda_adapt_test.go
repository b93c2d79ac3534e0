package model_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cuda"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// TestCUDAAdapters computes rows of adapters and of none on a CUDA device: alone, beside each other
// and by two ranks they have the same bits, which are near those of a CPU in float32; and so have
// rows of steps that are a graph's, which does for whatever adapters they have.
func TestCUDAAdapters(t *testing.T) {
	names := []string{"llama-tiny", "gemma2-tiny", "gptq-g128-tiny", "qwen3next-tiny"}
	if testing.Short() {
		names = names[:1]
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) { checkCUDAAdapters(t, shipped(name)) })
	}
}

func checkCUDAAdapters(t *testing.T, f fixture) {
	cfg, _ := f.open(t)
	all := newAdapter(t, cfg, 1, func(string) bool { return true })
	some := newAdapter(t, cfg, 2, func(module string) bool {
		return !strings.Contains(module, "layers.1.") && !strings.HasSuffix(module, "up_proj")
	})
	adapt := func(s *shard) {
		all.load(t, s.model, 1)
		some.load(t, s.model, 2)
	}
	ids := prompt(32)
	one := layers.Group{Size: 1}
	s, d := loadCUDA(t, f, onMachine, one)
	want := map[uint32][][]float32{0: s.forward(t, 0, piece{tokens: ids})}
	adapt(s)
	exact := loadShard(t, f, cpu.Options{Threads: 1, DType: compute.Float32}, one)
	adapt(exact)
	for _, id := range []uint32{1, 2} {
		want[id] = s.adapted(t, 0, adaptedPiece{piece{tokens: ids}, id})
		near := exact.adapted(t, 0, adaptedPiece{piece{tokens: ids}, id})
		moved, off := distance(want[id], want[0]), distance(want[id], near)
		t.Logf("adapter %d moves logits by up to %.3g, they are off by %.3g", id, moved, off)
		if off > moved/4 {
			t.Errorf("adapter %d: logits are off by %g, of %g that it moves them", id, off, moved)
		}
	}
	compare := func(how string, got map[uint32][][]float32) {
		t.Helper()
		for id, rows := range want {
			compareRows(t, fmt.Sprintf("%s, adapter %d", how, id), got[id], rows)
		}
	}
	compare("together", adaptedTogether(t, s, 0, ids))

	// Steps of one shape, with one adapter or the other, or with none.
	from := len(ids) - 1
	var replays [3]uint64
	keeps := compute.StateBytes(model.CacheLayers(cfg, 0, cfg.Layers, 1)) > 0
	for i := range 15 {
		id := uint32(i % 3)
		if keeps || i < 3 { // a state goes on with each step
			s.adapted(t, 0, adaptedPiece{piece{seq: i % 3, tokens: ids[:from]}, id})
		}
		before := d.Replays()
		got := s.adapted(t, 0, adaptedPiece{piece{i % 3, from, ids[from:]}, id})
		compareRows(t, fmt.Sprintf("step %d, adapter %d", i, id), got, want[id][from:])
		replays[id] += d.Replays() - before
	}
	if slices.Contains(replays[:], 0) {
		t.Errorf("%v steps were a graph's, by their adapter", replays)
	}

	if testing.Short() {
		return // an engine's test has two ranks
	}
	var loading sync.Mutex // of the adapters' tensors
	eachRank(t, f, divided{size: 2, way: overPeers}, func(r int, s *shard, _ *cuda.Device) {
		loading.Lock()
		adapt(s)
		loading.Unlock()
		if got := adaptedTogether(t, s, r, ids); r == 0 {
			compare("by two ranks", got)
		}
	})
}
