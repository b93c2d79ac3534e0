package runner_test

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/step"
)

// planner is a schedule.Scheduler or schedule.Places.
type planner interface {
	Add(*schedule.Request)
	Schedule(*step.Plan) bool
	Check(*step.Result) error
	Update(*step.Result, []schedule.Output) []schedule.Output
	InFlight() int
	Stats() schedule.Stats
}

func newPlanner(c schedule.Config, places int) (planner, error) {
	if places > 1 {
		return schedule.NewPlaces(c, places)
	}
	return schedule.New(c)
}

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
				{TP: 2, PCP: 2, EP: true}} {
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
