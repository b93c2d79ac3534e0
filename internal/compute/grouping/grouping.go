// Package grouping says which layers of a model have blocks of their own in its KV cache.
package grouping

import "fmt"

// Groups is into how many groups a KV cache divides the layers of a model, each with blocks of
// its own of the same positions: those of layers that read all positions before, and those of
// layers with a window, which give up what has left it (vLLM: hybrid KV cache manager). Blocks of
// all groups have one size in bytes, so that any can have any. The zero value is one group of all
// layers.
type Groups struct {
	Whole    int `json:"whole,omitempty"`
	Windowed int `json:"windowed,omitempty"`
}

// Count is the number of groups: those of whole contexts are numbered first.
func (g Groups) Count() int { return max(1, g.Whole+g.Windowed) }

// Group is the group of a layer that is, of its kind in the whole model, the n-th. Kinds take turns
// layer by layer, so that each stage of a pipeline has as many of each group, but for one.
func (g Groups) Group(windowed bool, n int) int {
	switch {
	case g.Count() == 1:
		return 0
	case windowed:
		return g.Whole + n%g.Windowed
	}
	return n % g.Whole
}

func (g Groups) String() string {
	return fmt.Sprintf("%d groups of whole contexts, %d of windows", g.Whole, g.Windowed)
}
