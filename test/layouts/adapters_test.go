package layouts

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/adapters"
	"github.com/eagleray/eagleray/internal/engine/replicas"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/lora"
	"github.com/eagleray/eagleray/internal/rank/model/lora/loratest"
)

// adapted is how many adapters a workload has, some of whose requests ask for one.
const adapted = 3

// adapt has requests of a workload ask for adapters, which it writes: one of every module of the
// model, and others of some.
func (w *workload) adapt(t testing.TB) {
	t.Helper()
	folder, err := checkpoint.Dir(w.model.path())
	if err != nil {
		t.Fatal(err)
	}
	shapes, err := loratest.ShapesOf(folder)
	if err != nil {
		t.Fatal(err)
	}
	w.adapters = t.TempDir()
	rng := rand.New(rand.NewPCG(w.seed, 5))
	for i := range adapted {
		some := slices.DeleteFunc(slices.Clone(shapes), func(lora.Shape) bool {
			return i > 0 && rng.IntN(3) == 0
		})
		o := loratest.Options{Rank: 1 + rng.IntN(9), Seed: rng.Uint64(), Width: 0.2}
		if err := loratest.Write(filepath.Join(w.adapters, fmt.Sprint(i)), some, o); err != nil {
			t.Fatal(err)
		}
	}
	for i := range w.submissions {
		id := uint32(rng.IntN(adapted + 1))
		for _, r := range w.submissions[i].requests {
			r.Adapter = id
		}
	}
}

// loadAdapters has an engine load a workload's adapters, whose ids are 1 and so on.
func (w *workload) loadAdapters(ctx context.Context, e *replicas.Router) (*adapters.Control,
	error) {
	c, err := adapters.New(adapters.Options{Engines: e.Engines, MaxRank: 16})
	if err != nil || w.adapters == "" {
		return c, err
	}
	for i := range adapted {
		name := fmt.Sprint(i)
		if err := c.Load(ctx, name, filepath.Join(w.adapters, name), false); err != nil {
			c.Close()
			return nil, err
		}
		id, release, err := c.Acquire(ctx, name)
		if err != nil {
			c.Close()
			return nil, err
		}
		release()
		if id != uint32(i+1) {
			c.Close()
			return nil, errors.New("adapters have other ids")
		}
	}
	return c, nil
}
