package runner_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/layout"
)

// long requests have prompts that ranks divide, whole or in chunks, beside shorter ones, others'
// decoding, cached prefixes and preemption. tokens is the most that one has.
func long(tokens, blocks int) workload {
	return workload{config: schedule.Config{MaxSeqs: 4, MaxTokens: tokens * 3 / 4,
		MaxModelLen: tokens, BlockSize: 16, Blocks: blocks, PrefixCaching: true,
		ChunkedPrefill: true},
		requests: func(vocab int) []*schedule.Request {
			all := requests(vocab, 6, tokens-48, 36)
			for _, q := range all {
				q.Params.MaxTokens = int32(2 + q.Key*5%19)
				q.Params.StopTokens = nil // every model computes the same plans
			}
			return all
		}}
}

// TestPrefillOverRanks runs every architecture with long prompts divided over ranks: tokens,
// log-probabilities and those of prompts have the bits of one rank.
func TestPrefillOverRanks(t *testing.T) {
	variant := func(name string) string { return filepath.Join("../../../testdata/variants", name) }
	best, both := []isa.ISA{isa.Best()}, []isa.ISA{isa.Portable, isa.Best()}
	small, two := long(96, 18), []layout.Layout{{PCP: 2}, {TP: 2, PCP: 2}}
	for _, c := range []struct {
		dir     string
		sets    []isa.ISA
		work    workload
		layouts []layout.Layout
	}{
		{shipped("llama-tiny"), best, long(200, 22),
			[]layout.Layout{{PCP: 2}, {PCP: 4}, {PP: 2, PCP: 2}, {TP: 2, PP: 2, PCP: 2}}},
		{shipped("qwen2-tiny"), best, small, two},
		{shipped("qwen3-tiny"), best, small, two},
		{shipped("qwen3moe-tiny"), best, small, two},
		{shipped("gpt-oss-tiny"), best, long(200, 22), []layout.Layout{{DP: 2, PCP: 2, EP: true},
			{DP: 2, PP: 2, PCP: 2, EP: true}, {DP: 2, TP: 2, PCP: 4, EP: true}}},
		{shipped("opt-tiny"), best, small, two},
		{variant("opt-post-norm"), both, small, two},
		{variant("mistral-window"), both, small, two},
		{variant("qwen2-window"), best, small, two},
		{variant("llama-fp16"), both, small, two},
	} {
		for _, set := range c.sets {
			t.Run(fmt.Sprintf("%s/%s", filepath.Base(c.dir), set), func(t *testing.T) {
				if testing.Short() && set != isa.Best() {
					t.Skip("slow, without -short")
				}
				want, _ := newGroup(t, c.dir, layout.Layout{}, set.String(), c.work).generate(t, 1)
				for i, l := range c.layouts {
					g := newGroup(t, c.dir, l, set.String(), c.work)
					got, _ := g.generate(t, l.Sizes().PP+i%2)
					for key := range want {
						if !slices.Equal(got[key], want[key]) {
							t.Errorf("%v: request %d gives\n%v, not\n%v", l, key, got[key],
								want[key])
						}
					}
					for r, comm := range g.prefill {
						if comm.gathers == 0 {
							t.Errorf("%v: rank %d divides no rows with others", l, r)
						}
					}
				}
			})
		}
	}
}
