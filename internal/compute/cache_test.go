package compute_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/grouping"
)

// kinds are so many layers that read all positions, and so many that have a window, layer by layer
// as many of each as there are.
func kinds(whole, windowed, window int) (layers []compute.CacheLayer) {
	for i := range whole + windowed {
		l := compute.CacheLayer{Heads: 4, Dim: 64}
		if i*windowed/(whole+windowed) < (i+1)*windowed/(whole+windowed) {
			l.Window = window
		}
		layers = append(layers, l)
	}
	return layers
}

// TestGroupsOf divides the layers of models that people serve.
func TestGroupsOf(t *testing.T) {
	of := func(whole, windowed, wide int) []compute.CacheLayer {
		layers := kinds(whole, windowed, 1024)
		for i := range layers {
			if layers[i].Window == 0 {
				layers[i].Dim *= wide
			}
		}
		return layers
	}
	state := compute.CacheLayer{Kind: compute.State, Heads: 1, Dim: 64}
	uneven := of(1, 2, 1)
	uneven[1].Heads, uneven[1].Window = 3, 1024
	unlike := of(2, 2, 1)
	for i := range unlike {
		if unlike[i].Window > 0 {
			unlike[i].Heads = 3
		}
	}
	for _, c := range []struct {
		name      string
		layers    []compute.CacheLayer
		positions int
		want      grouping.Groups
	}{
		{"gpt-oss 20B", of(12, 12, 1), 131072, grouping.Groups{Whole: 1, Windowed: 1}},
		{"gemma 3 4B", of(5, 29, 1), 131072, grouping.Groups{Whole: 1, Windowed: 6}},
		{"gemma 3 27B", of(10, 52, 1), 131072, grouping.Groups{Whole: 1, Windowed: 5}},
		{"gemma 4 E4B", of(4, 20, 2), 131072, grouping.Groups{Whole: 2, Windowed: 5}},
		{"a short context", of(5, 29, 1), 1024, grouping.Groups{}},
		{"windows alone", of(0, 8, 1), 131072, grouping.Groups{}},
		{"no windows", of(8, 0, 1), 131072, grouping.Groups{}},
		{"states", append(of(4, 4, 1), state), 131072, grouping.Groups{}},
		{"layers of a kind that differ", uneven, 131072, grouping.Groups{}},
		{"kinds of no common size", unlike, 131072, grouping.Groups{}},
	} {
		got := compute.GroupsOf(c.layers, c.positions, 16, compute.BFloat16)
		if got != c.want {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
}

// TestLay lays layers of one group after the other, and those of several into blocks of one size,
// where no two layers of a group, and no two blocks, have a byte in common.
func TestLay(t *testing.T) {
	layers := []compute.CacheLayer{
		{Heads: 2, Dim: 64}, {Heads: 1, Dim: 64, Window: 32, Group: 1},
		{Heads: 1, Dim: 64, Window: 32, Group: 2}, {Heads: 1, Dim: 64, Window: 32, Group: 1},
		{Heads: 2, Dim: 64},
	}
	shape := compute.CacheShape{Layers: layers, Blocks: 5, BlockSize: 16, DType: compute.BFloat16}
	if err := shape.Check(); err != nil {
		t.Fatal(err)
	}
	each := layers[1].Bytes(16, compute.BFloat16)
	places, size, err := shape.Lay(1)
	if err != nil || size != 5*4*each || shape.BytesPerBlock() != 4*each || shape.Factor(0) != 2 ||
		shape.Factor(1) != 4 || shape.Factor(3) != 1 {
		t.Fatalf("%d bytes, %d a block, factors %d and %d: %v", size, shape.BytesPerBlock(),
			shape.Factor(0), shape.Factor(1), err)
	}
	for group := range 3 {
		used := make([]int, size)
		for i, l := range layers {
			if l.Group != group {
				continue
			}
			n, factor := l.Bytes(16, compute.BFloat16), shape.Factor(group)
			for b := range shape.Blocks {
				if b*factor >= places[i].Blocks {
					t.Fatalf("layer %d has %d blocks", i, places[i].Blocks)
				}
				at := places[i].At + b*factor*n
				if at/(4*each) != b || (at+n-1)/(4*each) != b {
					t.Errorf("block %d of layer %d is at %d", b, i, at)
				}
				for j := range n {
					used[at+j]++
				}
			}
		}
		if slices.Max(used) != 1 {
			t.Errorf("layers of group %d overlap", group)
		}
	}
	for i := range layers {
		shape.Layers[i].Group = 0
	}
	places, size, err = shape.Lay(256)
	if err != nil || size != 5*7*each || places[1] != (compute.LayerPlace{At: 10 * each,
		Blocks: 5, Factor: 1}) || shape.BytesPerBlock() != 7*each {
		t.Errorf("%d bytes, places %v: %v", size, places, err)
	}
	shape.Blocks = 1 << 27
	shape.Layers[0].Heads = 1 << 40
	if _, _, err := shape.Lay(1); err == nil || !strings.Contains(err.Error(), "layer 0") {
		t.Errorf("a cache that does not fit: %v", err)
	}
}
