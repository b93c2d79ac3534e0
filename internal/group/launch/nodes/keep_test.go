package nodes

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
)

// succeed starts the group that takes the place of one in which something has failed.
func succeed(t *testing.T, e *executor.Executor, o executor.Options) *executor.Executor {
	t.Helper()
	select {
	case <-e.Dead():
	case <-time.After(limit):
		t.Fatal("the group lives on")
	}
	cause := e.Err()
	if !executor.CanReuse(cause) {
		t.Fatalf("no rank can be kept after %v", cause)
	}
	if err := e.Detach(context.Background()); err != nil {
		t.Fatal(err)
	}
	o.Reuse, o.Fresh = true, executor.LostRanks(cause)
	return start(t, o)
}

func pids(e *executor.Executor) (list []int) {
	for _, r := range e.Ranks() {
		list = append(list, r.PID)
	}
	return list
}

// TestRanksStay kills a rank of each of two nodes, one after the other, and then a whole node: the
// ranks that live stay, and the next group computes the same tokens.
func TestRanksStay(t *testing.T) {
	var log, other journal
	c := zero(t, 2, &log)
	agent, _ := node(t, "agent", c.Address())
	l := c.Launcher(only(2, 4))
	o := groupOptions(l, 4)
	e := start(t, o)
	want := tokens(t, e)
	check := func(lost ...int) {
		t.Helper()
		before := pids(e)
		e = succeed(t, e, o)
		for rank, pid := range pids(e) {
			if kept := !slices.Contains(lost, rank); (pid == before[rank]) != kept ||
				(e.Ranks()[rank].Past != nil) != kept {
				t.Errorf("%v are lost: rank %d was pid %d and is %+v", lost, rank, before[rank],
					e.Ranks()[rank])
			}
		}
		if e.HasComputed(5) {
			t.Error("the KV cache of a rank that was replaced is taken for whole")
		}
		if got := tokens(t, e); !slices.Equal(got, want) {
			t.Errorf("tokens %v, wanted %v", got, want)
		}
	}
	for _, rank := range []int{3, 0} {
		if err := syscall.Kill(e.Ranks()[rank].PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		check(rank)
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	log.waitFor(t, "a node has gone")
	again := serving(t.Context(), agentOptions(1, c.Address(), other.log()))
	check(2, 3)
	shutdown(t, e)
	stopCluster(t, c, nil)
	if err := end(t, again); err != nil {
		t.Error(err)
	}
}
