package ray_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/rlhf"
	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/rank/builtin/builtintest"
)

// control is what a trainer asks of an engine.
func (a asked) control(t *testing.T, l layout.Layout) *rlhf.Control {
	t.Helper()
	c, err := rlhf.New(rlhf.Options{Engines: a.Engines, Host: "127.0.0.1", Layout: l,
		Allowed: []string{"/"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the engines are closed that have the weights
		a.end(t)
		c.Close()
	})
	if _, err := c.Init(within(t), false); err != nil {
		t.Fatal(err)
	}
	return c
}

// load is a whole update by a file.
func load(ctx context.Context, c *rlhf.Control, path, version string) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	if err := c.Update(ctx, rlhf.Source{Path: path}); err != nil {
		return err
	}
	return c.Finish(ctx, version)
}

// mapped are the pieces of memory of updates that a process has mapped.
func mapped(t testing.TB, pid int) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 5 && strings.Contains(f[5], "eagleray-weights-") {
			found[f[4]] = true // its inode
		}
	}
	return found
}

// TestWeights updates the weights of ranks that are actors, of one node and of two. A broken update
// leaves the old ones. A rank that dies while it loads an update ends that one, and one that dies
// later comes back: in both cases with the weights of the last update that was finished, not the
// model's own, and with a request in flight.
func TestWeights(t *testing.T) {
	for name, l := range map[string]layout.Layout{"one node": {TP: 2}, "nodes": {TP: 4}} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s *site) {
				s.driverEnv(t)
				path := builtintest.OtherWeights(t, "../../internal/rank/builtin")
				before := s.alone(t)
				one, err := s.open(t, "uni", layout.Layout{TP: 1}, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := load(within(t), one.control(t, layout.Layout{TP: 1}), path,
					""); err != nil {
					t.Fatal(err)
				}
				want, err := one.answers(within(t))
				if err != nil || slices.Equal(want, before) {
					t.Fatalf("%v, answers %q", err, want)
				}
				e, err := s.open(t, "ray", l, nil)
				if err != nil {
					t.Fatal(err)
				}
				c := e.control(t, l)
				same := func(when string) {
					t.Helper()
					got, err := e.answers(within(t))
					if err != nil || !slices.Equal(got, want) || c.Version() != "other" {
						t.Errorf("%s: %v, version %s answers\n%q, want\n%q", when, err, c.Version(),
							got, want)
					}
				}
				if err := load(within(t), c, path, "other"); err != nil {
					t.Fatal(err)
				}
				same("after the update")
				cut := filepath.Join(t.TempDir(), "cut.safetensors")
				if err := os.WriteFile(cut, []byte("no weights"), 0o600); err != nil {
					t.Fatal(err)
				}
				if err := load(within(t), c, cut, "never"); err == nil {
					t.Error("a broken update was taken")
				}
				same("after a broken update")
				e.loses(t, c, l)
				same("after a rank was lost that loaded an update")
				kill(t, e.Report()[0].PID, syscall.SIGKILL)
				same("after a rank was lost")
				e.end(t)
				s.clean(t)
			})
		})
	}
}

// loses has an update with the model's own weights fail, by a rank that is stopped and then killed
// when another one has been told of the update. A request waits meanwhile, frozen.
func (a asked) loses(t *testing.T, c *rlhf.Control, l layout.Layout) {
	t.Helper()
	ctx := within(t)
	if err := c.Pause(ctx, state.Keep, false); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := a.answer(ctx, questions[0])
		answered <- err
	}()
	last := a.Report()[l.TP-1].PID
	first := a.Report()[0].PID
	known := mapped(t, first)
	kill(t, last, syscall.SIGSTOP)
	failed := make(chan error, 1)
	go func() {
		failed <- load(ctx, c, "../../internal/rank/builtin/go-std-tiny/model.safetensors", "never")
	}()
	eventually(t, "a rank that is told of the update", func() bool {
		for inode := range mapped(t, first) {
			if !known[inode] {
				return true
			}
		}
		return false
	})
	kill(t, last, syscall.SIGKILL)
	if err := <-failed; err == nil || !strings.Contains(err.Error(), fmt.Sprintf("rank %d",
		l.TP-1)) {
		t.Errorf("an update during which a rank was killed: %v", err)
	}
	if err := c.Resume(ctx); err != nil {
		t.Error(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("the request that waited: %v", err)
	}
}
