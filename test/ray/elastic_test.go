package ray_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// TestScale adds an engine on Ray, in a placement group of its own on a node that has joined since,
// one more on a third node while generation is paused with a request in flight, goes back while an
// update of the weights is under way and while all sleep, and changes the layout: with the text of
// one rank each time. What no cluster could hold is given up at once, and what there was serves on.
func TestScale(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		c := raytest.StartCluster(t, r, raytest.Options{Nodes: []raytest.NodeSpec{{CPUs: 1,
			GPUs: 1}}})
		s := &site{Cluster: c, observer: startObserver(t, c)}
		t.Cleanup(s.observer.end)
		s.driverEnv(t)
		want := s.alone(t)
		e, err := s.openSeveral(t, "ray", 1, layout.Layout{TP: 1}, func(r *config.Ray) {
			r.PlacementTimeout = 3 * time.Second
		})
		if err != nil {
			t.Fatal(err)
		}
		same := func(when string, ranks int) {
			t.Helper()
			if got, err := e.answers(within(t)); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %v, answers\n%q, want\n%q", when, err, got, want)
			}
			if n := len(e.Report()); n != ranks {
				t.Errorf("%s: %d ranks, not %d", when, n, ranks)
			}
		}
		same("one engine", 1)
		if err := e.ScaleEngines(within(t), 2, time.Minute); err == nil {
			t.Error("a second engine has no device, and was added")
		} else {
			t.Log(err)
		}
		same("after an engine without a device", 1)
		var refused *open.Refused
		if err := e.Relayout(within(t), open.Sizes{TP: 2}); err == nil || errors.As(err, &refused) {
			t.Errorf("two ranks on one device: %v", err)
		}
		same("after two ranks without a device", 1)
		c.AddNode(t, raytest.NodeSpec{CPUs: 1, GPUs: 1})
		if err := e.ScaleEngines(within(t), 2, time.Minute); err != nil {
			t.Fatal(err)
		}
		same("two engines", 2)
		trainer := e.control(t, layout.Layout{TP: 1})
		done := func(what string, err error) {
			t.Helper()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		done("pause", trainer.Pause(within(t), state.Keep, false))
		answered := make(chan error, 1)
		go func() {
			got, err := e.answer(within(t), questions[0])
			if err == nil && got != want[0] {
				err = fmt.Errorf("answer %q, want %q", got, want[0])
			}
			answered <- err
		}()
		c.AddNode(t, raytest.NodeSpec{CPUs: 1, GPUs: 1})
		done("a third engine in a pause", e.ScaleEngines(within(t), 3, time.Minute))
		done("resume", trainer.Resume(within(t)))
		done("the request that was held", <-answered)
		same("three engines", 3)
		done("start of an update", trainer.Start(within(t)))
		done("update", trainer.Update(within(t),
			rlhf.Source{Path: "../../internal/rank/builtin/go-std-tiny/model.safetensors"}))
		done("two engines within an update", e.ScaleEngines(within(t), 2, time.Minute))
		done("finish", trainer.Finish(within(t), ""))
		same("two engines after an update", 2)
		done("sleep", trainer.Sleep(within(t), 1, state.Abort))
		done("one engine that sleeps", e.ScaleEngines(within(t), 1, time.Minute))
		done("wake up", trainer.Wake(within(t), nil))
		same("one engine again", 1)
		if err := e.Relayout(within(t), open.Sizes{TP: 2}); err != nil {
			t.Error(err)
		}
		same("two ranks", 2)
		e.end(t)
		s.clean(t)
	})
}
