package model_test

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/rank/model/layers"
)

// TestLongRope holds both lists of factors to transformers: the short one where no sequence may be
// longer than in pre-training, the long one where all are.
func TestLongRope(t *testing.T) {
	const name, original = "phi3-longrope-tiny", 72
	all, full := readGoldens(t, name), readFullLogits(t, name)
	for _, long := range []bool{false, true} {
		f, g := shipped(name), *all
		g.Prompts = nil
		for _, p := range all.Prompts {
			last := len(p.IDs) + len(p.Greedy) - 1
			if long && len(p.IDs) > original || !long && last <= original {
				g.Prompts = append(g.Prompts, p)
			}
		}
		if !long {
			f.serve = original
		}
		for _, dtype := range []compute.DType{compute.Float32, compute.BFloat16} {
			tolerance := 1e-4
			if dtype == compute.BFloat16 {
				tolerance = 2 * g.BF16Error
			}
			s := loadShard(t, f, cpu.Options{Threads: 2, DType: dtype}, layers.Group{Size: 1})
			checkGoldens(t, s, &g, full, tolerance, dtype == compute.Float32)
		}
	}
	// A sequence that grows keeps the keys that it has.
	checkSameBits(t, shipped(name), compute.Float32, slices.Clone(all.Prompts[5].IDs), 2)
}
