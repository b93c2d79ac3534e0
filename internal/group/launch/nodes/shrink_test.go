package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// TestFewerRanks runs two ranks on three nodes that have room for one each. A node goes, and the
// third one has its rank; it comes again, and has that back, of which none is left on the third
// one. When both have gone there is room for one rank, as long as node 0 has patience.
func TestFewerRanks(t *testing.T) {
	var log journal
	c := zero(t, 3, &log)
	join := func(number int) func() {
		ctx, cancel := context.WithCancel(t.Context())
		ended := serving(ctx, agentOptions(number, c.Address(), log.log()))
		there := func(is bool) func() bool {
			return func() bool {
				_, missing, _ := c.present(number, number+1)
				return (len(missing) == 0) == is
			}
		}
		eventually(t, "a node", there(true))
		return func() {
			cancel()
			if err := end(t, ended); err != nil {
				t.Error(err)
			}
			eventually(t, "the end of a node", there(false))
		}
	}
	l := c.Launcher(Group{Slots: 3, Share: 1})
	o := groupOptions(l, 2)
	room := func(more int, want bool) {
		t.Helper()
		if got, err := l.Room(t.Context(), more); got != want || err != nil {
			t.Errorf("room for %d more: %v, %v", more, got, err)
		}
	}
	where := func(e *executor.Executor, node int) {
		t.Helper()
		if got := e.Report()[1].Node; got != fmt.Sprintf("node %d at 127.0.0.1", node) {
			t.Errorf("rank 1 is on %s, not on node %d", got, node)
		}
	}
	leaveFirst, leaveSecond := join(1), join(2)
	e := start(t, o)
	where(e, 1)
	room(1, true)
	want := tokens(t, e)
	computes := func() {
		t.Helper()
		if got := tokens(t, e); !slices.Equal(got, want) {
			t.Errorf("tokens %v, wanted %v", got, want)
		}
	}
	leaveFirst()
	e = succeed(t, e, o)
	where(e, 2)
	room(1, false)
	computes()

	leaveFirst = join(1)
	room(1, true)
	third := e.Ranks()[1].PID
	if err := syscall.Kill(e.Ranks()[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e = succeed(t, e, o)
	where(e, 1)
	computes()
	if !testchild.Gone(third) {
		t.Errorf("pid %d is left on node 2", third)
	}

	leaveFirst()
	leaveSecond()
	<-e.Dead()
	if err := e.Detach(context.Background()); err != nil {
		t.Fatal(err)
	}
	l.SetPatience(50 * time.Millisecond)
	o.Reuse, o.Fresh = true, executor.LostRanks(e.Err())
	_, err := executor.Start(t.Context(), o)
	var none *launch.NoPlace
	if !errors.As(err, &none) || none.Room != 1 || none.Missing != "node 1 and 2" {
		t.Errorf("%+v, %v", none, err)
	}
}
