package nodes

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/rpc"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// TestPlaces divides the slots of groups among nodes, in order, of which some may be missing.
func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		groups, ranks, nodes int
		missing              []int
		// want are the nodes of each group's ranks.
		want string
	}{
		{1, 4, 2, nil, "[[0 0 1 1]]"},
		{2, 2, 2, nil, "[[0 0] [1 1]]"},
		{4, 1, 2, nil, "[[0] [0] [1] [1]]"},
		{2, 4, 4, nil, "[[0 0 1 1] [2 2 3 3]]"},
		{1, 4, 4, []int{1}, "[[0 2 3]]"},
		{2, 4, 4, []int{1, 2}, "[[0 0] [3 3]]"},
		{2, 2, 2, []int{1}, "[[0 0] []]"},
	} {
		var got [][]int
		for n := range c.groups {
			g := Group{Number: n, Slots: c.ranks, Share: c.groups * c.ranks / c.nodes}
			places := make([]int, 0, c.ranks)
			first, end := g.nodes()
			for _, slot := range g.slots(c.missing) {
				node := g.node(slot)
				if node < first || node >= end {
					t.Errorf("%+v: group %d has a slot on node %d, and nodes %d to %d", c, n, node,
						first, end-1)
				}
				places = append(places, node)
			}
			got = append(got, places)
		}
		if text := fmt.Sprint(got); text != c.want {
			t.Errorf("%d groups of %d ranks on %d nodes: %s, want %s", c.groups, c.ranks, c.nodes,
				text, c.want)
		}
	}
}

// TestSeveralGroups runs two groups, one on each of two nodes, and then one over both beside them:
// to the same tokens. A rank of one is killed, and the node that has it: the other group lives on,
// and the one that has failed goes on with another.
func TestSeveralGroups(t *testing.T) {
	t.Parallel()
	var log journal
	c := zero(t, 2, &log)
	agent, said := node(t, "agent", c.Address())
	options := make([]executor.Options, 2)
	groups := make([]*executor.Executor, 2)
	for n := range groups {
		options[n] = groupOptions(c.Launcher(Group{Number: n, Slots: 2, Share: 2}), 2)
		groups[n] = start(t, options[n])
	}
	want := tokens(t, groups[0])
	check := func(lives, kept int) {
		t.Helper()
		before := groups[1]
		groups[1] = succeed(t, before, options[1])
		if groups[1].Reused() != kept {
			t.Errorf("%d ranks were kept, not %d", groups[1].Reused(), kept)
		}
		for n, g := range groups {
			if err := g.Err(); err != nil {
				t.Errorf("group %d: %v", n, err)
			}
		}
		if _, err := executor.Call(t.Context(), groups[0], calls.CheckHealth, rpc.None{},
			executor.RPCOptions{}); err != nil {
			t.Error(err)
		}
		if got := tokens(t, groups[1]); !slices.Equal(got, want) {
			t.Errorf("the second group has tokens %v, the first %v", got, want)
		}
		if testchild.Gone(lives) {
			t.Errorf("pid %d of the first group is gone", lives)
		}
	}
	for _, r := range groups[1].Report() {
		if r.Node != "node 1 at 127.0.0.1" {
			t.Errorf("%+v", r)
		}
	}
	first := groups[0].Ranks()[1].PID
	if err := syscall.Kill(groups[1].Ranks()[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	check(first, 1)
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	log.waitFor(t, "a node has gone")
	_, again := node(t, "agent", c.Address())
	check(first, 0)
	said.waitFor(t, "engine=1")
	again.waitFor(t, "started ranks")

	// A third group has a rank on each. Its end leaves the others alone.
	over := start(t, groupOptions(c.Launcher(Group{Slots: 2, Share: 1}), 2))
	if got := tokens(t, over); !slices.Equal(got, want) {
		t.Errorf("the group over both nodes has tokens %v", got)
	}
	shutdown(t, over)
	if _, err := executor.Call(t.Context(), groups[1], calls.CheckHealth, rpc.None{},
		executor.RPCOptions{}); err != nil {
		t.Error(err)
	}
	if got := tokens(t, groups[1]); !slices.Equal(got, want) {
		t.Errorf("tokens %v beside the end of another group", got)
	}
}
