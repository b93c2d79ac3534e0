package runner_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/link/layout"
)

// TestExperts runs mixtures on ranks that hold whole experts, and in places among which requests
// are divided: all give the same tokens and the same bits of log-probabilities.
func TestExperts(t *testing.T) {
	for _, name := range []string{"qwen3moe-tiny", "gpt-oss-tiny", "qwen3next-tiny",
		"deepseek-v3-tiny"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crowded := short()
			crowded.config.Blocks = 5
			if name == "qwen3next-tiny" {
				crowded.config.Snapshots = 4
			}
			one := newGroup(t, shipped(name), layout.Layout{}, "", crowded)
			want, _ := one.generate(t, 1)
			for _, l := range []layout.Layout{{TP: 2, EP: true}, {DP: 2, EP: true},
				{DP: 3, EP: true}, {DP: 2, TP: 2, EP: true}, {DP: 2, PP: 2, EP: true},
				{TP: 2, PCP: 2, EP: true}, {DP: 2, PCP: 2, EP: true},
				{DP: 2, TP: 2, PCP: 2, EP: true}} {
				if l.PCP > 1 && name == "qwen3next-tiny" {
					continue // states are not divided
				}
				for depth := max(1, l.PP); depth <= 2; depth++ {
					g := newGroup(t, shipped(name), l, "", crowded)
					got, _ := g.generate(t, depth)
					for key := range want {
						if !slices.Equal(got[key], want[key]) {
							t.Errorf("%v, %d plans in flight: request %d gives\n%v, not\n%v", l,
								depth, key, got[key], want[key])
						}
					}
				}
			}
		})
	}
}

// TestNarrowRows wants rows that travel to another node's experts, which round them to int8, to be
// so narrow, and the tokens and bits of one rank.
func TestNarrowRows(t *testing.T) {
	sent := map[string]int{}
	for _, quantization := range []string{"", "int8", "int4"} {
		for _, apart := range []bool{false, true} {
			w := short()
			w.config.Blocks, w.quantization, w.apart = 5, quantization, apart
			one := newGroup(t, shipped("qwen3moe-tiny"), layout.Layout{}, "", w)
			want, _ := one.generate(t, 1)
			g := newGroup(t, shipped("qwen3moe-tiny"), layout.Layout{DP: 2, EP: true}, "", w)
			got, _ := g.generate(t, 1)
			what := fmt.Sprintf("%q, apart %v", quantization, apart)
			for key := range want {
				if !slices.Equal(got[key], want[key]) {
					t.Errorf("%s: request %d gives\n%v, not\n%v", what, key, got[key], want[key])
				}
			}
			for _, c := range g.places {
				sent[what] += c.sent
			}
		}
		// Rows take their experts and weights along.
		near, far := sent[fmt.Sprintf("%q, apart false", quantization)],
			sent[fmt.Sprintf("%q, apart true", quantization)]
		if quantization == "" && far != near || quantization != "" && far > near/2 {
			t.Errorf("%q: %d numbers were sent between nodes, within one %d", quantization, far,
				near)
		}
	}
}
