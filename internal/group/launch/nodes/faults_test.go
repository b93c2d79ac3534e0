package nodes

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// TestDeaths kills an agent, and a rank of another node: each time the failure names rank and node,
// and no rank is left. Then the next group runs: on the same agent, or on one that takes the place
// of the one that died.
func TestDeaths(t *testing.T) {
	for _, c := range []struct {
		name string
		// cause is what the failure says, agent what the other node does.
		cause, agent string
	}{
		{"rank", "signal: killed", "the group has failed: waiting"},
		{"agent", "node 1 at 127.0.0.1 is gone: ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var log journal
			nodes := zero(t, 2, &log)
			agent, said := node(t, "agent", nodes.Address())
			e := start(t, groupOptions(nodes.Launcher(only(2, 2)), 2))
			want := tokens(t, e)
			failed := make(chan *executor.Failure, 1)
			e.OnFailure(func(f *executor.Failure) { failed <- f })
			pid := e.Ranks()[1].PID
			victim := map[string]int{"rank": pid, "agent": agent.Process.Pid}[c.name]
			started := time.Now()
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			select {
			case f := <-failed:
				t.Logf("known after %v: %v", time.Since(started), f)
				if f.Rank != 1 || f.Node != "node 1 at 127.0.0.1" || f.PID != pid ||
					!strings.HasPrefix(f.Cause, c.cause) {
					t.Errorf("%+v", f)
				}
			case <-time.After(limit):
				t.Fatal("no failure")
			}
			shutdown(t, e)
			eventually(t, "the end of the ranks", func() bool {
				return testchild.Gone(pid) && testchild.Gone(e.Ranks()[0].PID)
			})
			said.waitFor(t, c.agent)
			if c.name == "agent" {
				node(t, "agent", nodes.Address())
			}
			again := start(t, groupOptions(nodes.Launcher(only(2, 2)), 2))
			if got := tokens(t, again); !slices.Equal(got, want) {
				t.Errorf("tokens %v of the next group, %v of the first", got, want)
			}
		})
	}
}

// TestDriverKilled ends the ranks of the other node, and the node with an error.
func TestDriverKilled(t *testing.T) {
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	address := "127.0.0.1:" + port
	driver, said := node(t, "driver", address)
	var log journal
	ended := serving(t.Context(), agentOptions(1, address, log.log()))
	said.waitFor(t, "the group is there")
	_, after, _ := strings.Cut(log.String(), "pids=")
	pid, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil || testchild.Gone(pid) {
		t.Fatalf("pid %d: %v", pid, err)
	}
	if err := driver.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := end(t, ended); err == nil ||
		!strings.Contains(err.Error(), "node 0 at "+address+" is gone: ") {
		t.Errorf("%v", err)
	}
	if !testchild.Gone(pid) {
		t.Error("its rank is left")
	}
}

// TestSilent holds a node: node 0 notices, and the other way round.
func TestSilent(t *testing.T) {
	t.Parallel()
	var log journal
	o := zeroOptions(2, "127.0.0.1:0", log.log())
	o.Silence = heldFor
	c, err := Listen(o)
	if err != nil {
		t.Fatal(err)
	}
	defer stopCluster(t, c, nil)
	agent, _ := node(t, "agent", c.Address())
	e := start(t, groupOptions(c.Launcher(only(2, 2)), 2))
	if err := agent.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-e.Dead():
	case <-time.After(limit):
		t.Fatal("no failure")
	}
	var f *executor.Failure
	if !errors.As(e.Err(), &f) || f.Rank != 1 || f.Node != "node 1 at 127.0.0.1" ||
		f.Cause != "node 1 at 127.0.0.1 is gone: it is silent for 2s" {
		t.Errorf("%v", e.Err())
	}
	shutdown(t, e)
	if err := agent.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the agent", func() bool { return testchild.Gone(agent.Process.Pid) })
}
