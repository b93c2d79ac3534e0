package rlhf

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/config"
)

// TestUpdateFromOwnFolder overwrites the model's own files in place, as trainers do, and loads the update
// from there: ranks that are started afterwards, and ranks that have slept, have the update, though nothing
// is left of the model's files.
func TestUpdateFromOwnFolder(t *testing.T) {
	list, _ := builtins(t)
	other := others(t)
	want := answers(t, open(t, func(c *config.Config) { c.Model.Path = folder(t, other) }))[0]
	for _, policy := range []string{"keep", "refuse", "adopt"} {
		t.Run(policy, func(t *testing.T) {
			dir := folder(t, list)
			s := open(t, func(c *config.Config) {
				c.Model.Path, c.Parallel.Backend, c.Parallel.TensorParallelSize = dir, "mp", 2
				c.Recovery.OnModelChange = policy
			})
			ctx := t.Context()
			_, err := s.Init(ctx, false)
			ok(t, err)
			s.update(t, file(t, dir, other))
			equal(t, "updated", answers(t, s), want)
			kill := func(ranks ...int) {
				for _, r := range ranks {
					ok(t, syscall.Kill(s.engines[0].Report()[r].PID, syscall.SIGKILL))
				}
			}
			kill(1)
			equal(t, "one rank killed", answers(t, s), want)
			kill(0, 1)
			equal(t, "all ranks killed", answers(t, s), want)
			ok(t, s.Sleep(ctx, 2, "abort"))
			kill(0)
			ok(t, s.Wake(ctx, nil))
			equal(t, "slept", answers(t, s), want)
			if info := s.engines[0].Info(); info.WeightBytes == 0 {
				t.Error("ranks say that they have no weights")
			}
		})
	}
}

// TestSleepKeepsTheModel replaces the model's files while the weights sleep: what wakes up is what was
// loaded, where that is kept.
func TestSleepKeepsTheModel(t *testing.T) {
	list, _ := builtins(t)
	dir := folder(t, list)
	s := open(t, func(c *config.Config) {
		c.Model.Path, c.Parallel.Backend, c.Parallel.TensorParallelSize = dir, "mp", 2
	})
	want := answers(t, s)[0]
	ok(t, s.Sleep(t.Context(), 2, "abort"))
	ok(t, os.Rename(file(t, t.TempDir(), others(t)), filepath.Join(dir, "model.safetensors")))
	ok(t, s.Wake(t.Context(), nil))
	equal(t, "awake", answers(t, s), want)
}
