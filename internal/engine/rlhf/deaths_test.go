package rlhf

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// builtins are the built-in weights, and a file of them.
func builtins(t testing.TB) (list []checkpoint.Tensor, path string) {
	t.Helper()
	c, err := checkpoint.Open(builtin.Folder())
	ok(t, err)
	t.Cleanup(func() { c.Close() })
	for _, name := range c.Names() {
		x, err := c.Tensor(name)
		ok(t, err)
		list = append(list, x)
	}
	return list, file(t, t.TempDir(), list)
}

// patience is for what takes moments on an idle machine. It only has to catch a hang.
const patience = 2 * time.Minute

// updates are the pieces of memory for weights that a process has mapped.
func updates(t testing.TB, pid int) map[string]bool {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	ok(t, err)
	found := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) > 5 && strings.Contains(f[5], "eagleray-weights-") {
			found[f[4]] = true // its inode
		}
	}
	return found
}

// halfway has an update fail by the death of a rank while the ranks load it: one rank is stopped,
// and killed once the other one has been told of the update.
func halfway(t testing.TB, s *server, e *engine.Engine, rank int) {
	t.Helper()
	pid, other := e.Report()[rank].PID, e.Report()[1-rank].PID
	before := updates(t, other)
	ok(t, syscall.Kill(pid, syscall.SIGSTOP))
	finished := make(chan error, 1)
	go func() { finished <- s.Finish(t.Context(), "never") }()
	told := func() bool {
		for inode := range updates(t, other) {
			if !before[inode] {
				return true
			}
		}
		return false
	}
	for late := time.Now().Add(patience); !told(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Error("the ranks are not told of the update")
			break
		}
	}
	ok(t, syscall.Kill(pid, syscall.SIGKILL))
	if err := <-finished; err == nil || !strings.Contains(err.Error(), "rank") {
		t.Errorf("rank %d was killed: %v", rank, err)
	}
}

// TestDeathWhileLoading kills a rank that loads an update, after another update was finished: the
// group that takes over, and a request in flight, have the weights of the one that was finished,
// not those of the model's files nor of the one that broke off. The next update succeeds.
func TestDeathWhileLoading(t *testing.T) {
	list := others(t)
	dir := folder(t, list)
	own := ownAnswers(t)
	after := open(t, func(c *config.Config) { c.Model.Path = dir })
	want := answers(t, after)[0]
	const most = 40
	long := read(t, submit(t, after.engines[0], request(after.engines[0], "What is long?", most)),
		nil)
	_, back := builtins(t)
	s := open(t, func(c *config.Config) {
		c.Parallel.Backend, c.Parallel.TensorParallelSize = "mp", 2
	})
	e := s.engines[0]
	_, err := s.Init(t.Context(), false)
	ok(t, err)
	path := file(t, t.TempDir(), list)
	ok(t, s.Start(t.Context()))
	ok(t, s.Update(t.Context(), Source{Path: path}))
	ok(t, s.Finish(t.Context(), "first"))
	ok(t, os.Remove(path))
	for rank := range 2 {
		ok(t, s.Pause(t.Context(), "keep", false))
		stream := submit(t, e, request(e, "What is long?", most))
		s.spare.Drop() // halfway looks for memory that is new
		ok(t, s.Start(t.Context()))
		ok(t, s.Update(t.Context(), Source{Path: back}))
		halfway(t, s, e, rank)
		if v, state := s.Version(), s.Info().State; v != "first" ||
			!strings.Contains(state, "no update is under way") {
			t.Errorf("version %s, %s", v, state)
		}
		ok(t, s.Resume(t.Context()))
		if got := read(t, stream, nil); !reflect.DeepEqual(got, long) {
			t.Errorf("rank %d: a request in flight: %v, want %v", rank, got, long)
		}
		equal(t, "after it", answers(t, s), want)
	}
	s.update(t, back)
	equal(t, "the next update", answers(t, s), own)
}

// TestDeathBeforeSwap kills a rank that has loaded an update, before it computes with it: all
// engines have it, because the others may compute with it already.
func TestDeathBeforeSwap(t *testing.T) {
	list := others(t)
	want := otherAnswers(t)
	s := open(t, func(c *config.Config) {
		c.Parallel.Backend, c.Parallel.TensorParallelSize = "mp", 2
	})
	e := s.engines[0]
	_, err := s.Init(t.Context(), false)
	ok(t, err)
	ok(t, s.Start(t.Context()))
	ok(t, s.Update(t.Context(), Source{Path: file(t, t.TempDir(), list)}))
	u, err := s.builder.Finish()
	ok(t, err)
	s.fail(errors.New("a test"))
	ok(t, stage(t.Context(), e, u, func() {}))
	ok(t, syscall.Kill(e.Report()[1].PID, syscall.SIGKILL))
	s.wanted.Commit(u)
	ok(t, e.Equip(t.Context()))
	equal(t, "in the end", answers(t, s), want)
}
