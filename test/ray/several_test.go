package ray_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestSeveralEngines places two engines of two ranks, each in a group of its own or in its bundles
// of an adopted one, and wants the text of one rank in this process from both. The death of one
// leaves the other at work.
func TestSeveralEngines(t *testing.T) {
	each(t, func(t *testing.T, s *site) {
		s.driverEnv(t)
		want := s.alone(t)
		t.Run("groups of their own", func(t *testing.T) {
			e, err := s.openSeveral(t, "ray", 2, layout.Layout{TP: 2}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var groups []string
			for i := range 2 {
				line := e.log.line(fmt.Sprintf(`msg="ray place" engine=%d `, i))
				groups = append(groups, attribute(line, "group"))
				if state := s.find(t, groups[i]).State; state != "CREATED" {
					t.Errorf("the group of engine %d is %s", i, state)
				}
				if e.log.line(fmt.Sprintf(`msg="ray share" engine=%d `, i)) == "" {
					t.Errorf("engine %d did not share the cores", i)
				}
			}
			if groups[0] == groups[1] {
				t.Errorf("both are in group %s", groups[0])
			}
			if got, err := e.answers(within(t)); err != nil || !slices.Equal(got, want) {
				t.Errorf("%v, answers\n%q, want\n%q", err, got, want)
			}
			for _, r := range e.Report() {
				if r.Finished == 0 {
					t.Errorf("engine %d, rank %d has nothing done", r.Engine, r.Rank)
				}
				if r.Engine == 1 && r.Rank == 1 {
					kill(t, r.PID, syscall.SIGKILL)
				}
			}
			eventually(t, "the death of engine 1",
				func() bool { return errors.Is(e.Health(t.Context())[1], engine.ErrFailed) })
			if cause := e.Health(t.Context())[1]; !strings.Contains(cause.Error(), "rank 1 on") {
				t.Errorf("engine 1: %v", cause)
			}
			if got, err := e.answers(within(t)); err != nil || !slices.Equal(got, want) {
				t.Errorf("engine 0 alone: %v, answers\n%q, want\n%q", err, got, want)
			}
			// What the dead one held is given back while the other works.
			eventually(t, "the removal of the dead group", func() bool {
				return s.find(t, groups[1]).State == "REMOVED"
			})
			if state := s.find(t, groups[0]).State; state != "CREATED" {
				t.Errorf("the group of engine 0 is %s", state)
			}
			e.end(t)
			s.clean(t)
		})
		t.Run("one group", func(t *testing.T) {
			id := s.group(t, "several", bundles(4))
			e, err := s.openSeveral(t, "ray", 2, layout.Layout{TP: 2}, func(r *config.Ray) {
				r.PlacementGroup, r.BundleIndices = id, "3,1,0,2"
			})
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []string{"3,1", "0,2"} {
				line := e.log.line(fmt.Sprintf(`msg="ray order" engine=%d `, i))
				if got := attribute(line, "bundles"); got != want {
					t.Errorf("engine %d has bundles %s, want %s", i, got, want)
				}
			}
			if got, err := e.answers(within(t)); err != nil || !slices.Equal(got, want) {
				t.Errorf("%v, answers\n%q, want\n%q", err, got, want)
			}
			e.end(t)
			s.clean(t)
		})
	})
}
