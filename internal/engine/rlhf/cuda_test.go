package rlhf

import (
	"fmt"
	"reflect"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/engine/rlhf/state"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// onCUDA has ranks compute on a CUDA device that a machine for PTX stands for.
func onCUDA(tp int, folder string) func(c *config.Config) {
	return func(c *config.Config) {
		p := &c.Parallel
		p.Device, p.Backend, p.TensorParallelSize = config.CUDA, "mp", tp
		c.Model.Path, c.Model.MaxModelLen = folder, 256
		c.Cache.MemoryBytes = 8 << 20
	}
}

// TestCUDA goes from the built-in weights to others and back on CUDA devices, through both levels
// of sleep and after a rank's death: answers are those of an engine that was started with the
// weights, to the bit, on one rank.
func TestCUDA(t *testing.T) {
	t.Setenv(queue.CUDADriverVariable, "machine")
	list, back := builtins(t)
	dir := folder(t, others(t))
	// A machine for PTX takes its time.
	answers := func(t testing.TB, s *server) [][]answer { return answersOf(t, s, 1, 5) }
	own := answers(t, open(t, onCUDA(1, folder(t, list))))[0]
	want := answers(t, open(t, onCUDA(1, dir)))[0]
	if reflect.DeepEqual(own, want) {
		t.Fatal("the update makes no difference")
	}
	const tp = 2
	ctx := t.Context()
	s := open(t, onCUDA(tp, folder(t, list)))
	equal(t, "as started", answers(t, s), own)
	_, err := s.Init(ctx, true)
	ok(t, err)
	s.update(t, dir)
	equal(t, "updated", answers(t, s), want)
	s.update(t, back)
	equal(t, "back again", answers(t, s), own)
	for level := 1; level <= 2; level++ {
		ok(t, s.Sleep(ctx, level, state.Wait))
		ok(t, s.Wake(ctx, nil))
		equal(t, fmt.Sprintf("after level %d", level), answers(t, s), own)
	}
	ok(t, s.Sleep(ctx, 2, state.Abort))
	ok(t, s.Wake(ctx, []string{state.Weights}))
	s.update(t, dir)
	ok(t, s.Wake(ctx, nil))
	equal(t, "updated half asleep", answers(t, s), want)
	ok(t, syscall.Kill(s.engines[0].Report()[tp-1].PID, syscall.SIGKILL))
	equal(t, "a rank was killed", answers(t, s), want)
}
