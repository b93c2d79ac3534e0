package model_test

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model"
)

// TestCacheLayers wants each layer's own window, and the heads of a rank: one where there are more
// ranks than heads.
func TestCacheLayers(t *testing.T) {
	c := &model.Config{Architecture: "Gemma2ForCausalLM", Layers: 4, Heads: 8, KVHeads: 4,
		HeadDim: 16, Windows: []int{64, 0, 64, 0}}
	next, _ := shipped("qwen3next-tiny").open(t)
	// A window of 3 rows of a key head's 16+16+2·16 channels, and two matrices of 16 by 16.
	state := compute.CacheLayer{Kind: compute.State, Heads: 1, Dim: 3*64 + 2*256}
	nemotron, _ := variant("nemotron-h").open(t)
	falcon, _ := variant("falcon-h1").open(t)
	// Eight heads of 8 keep the inputs of B and C one by one: four would not be divided among 8
	// ranks. A window of 3 rows of 12+12+8 channels, and a matrix of 12 by 8.
	head := compute.CacheLayer{Kind: compute.State, Heads: 8, Dim: 3*32 + 96}
	narrow := compute.CacheLayer{Kind: compute.State, Heads: 8, Dim: 3*30 + 72}
	keys := compute.CacheLayer{Heads: 2, Dim: 12}
	unread := &model.Config{Layers: 4, KVHeads: 4, HeadDim: 16}
	plain := compute.CacheLayer{Heads: 4, Dim: 16}
	windowed := compute.CacheLayer{Heads: 4, Dim: 16, Window: 64}
	for name, x := range map[string]struct {
		c            *model.Config
		from, to, tp int
		want         []compute.CacheLayer
	}{
		"all": {c, 0, 4, 1, []compute.CacheLayer{windowed, plain, windowed, plain}},
		"a stage": {c, 1, 3, 2, []compute.CacheLayer{{Heads: 2, Dim: 16}, {Heads: 2, Dim: 16,
			Window: 64}}},
		"many ranks":        {c, 3, 4, 8, []compute.CacheLayer{{Heads: 1, Dim: 16}}},
		"states":            {next, 2, 4, 2, []compute.CacheLayer{state, {Heads: 1, Dim: 32}}},
		"of one block each": {nemotron, 0, 4, 1, []compute.CacheLayer{head, keys}},
		"of two kinds":      {falcon, 0, 2, 1, []compute.CacheLayer{keys, narrow, keys, narrow}},
		"by hand":           {unread, 2, 4, 1, []compute.CacheLayer{plain, plain}},
	} {
		if got := model.CacheLayers(x.c, x.from, x.to, x.tp); !slices.Equal(got, x.want) {
			t.Errorf("%s: %v, not %v", name, got, x.want)
		}
	}
}
