package executor

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/sys/synctext"
)

// logTo lets the executor's events be logged to b.
func logTo(b *synctext.Buffer) func(*Options) {
	return func(o *Options) { o.Events = status.LogTo(slog.New(slog.NewTextHandler(b, nil))) }
}

// TestStallWhileLoading wants a line about a rank whose load is stalled, before the group has
// started.
func TestStallWhileLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log synctext.Buffer
		start(t, 2, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind == queue.KindInit && c.rank == 1 {
				c.status.Set(status.Load, 40)
				time.Sleep(defaultStallWarning + 2*stallTick)
			}
			return true
		}), logTo(&log))
		if got := log.String(); strings.Count(got, "rank is stalled") != 1 ||
			!strings.Contains(got, `rank=1 node=node-a pid=101`) ||
			!strings.Contains(got, `phase="load 40%"`) {
			t.Errorf("explanation: %s", got)
		}
	})
}

// TestStallExplainer stops one rank in the middle of a step and wants a line about it when it has
// not moved for 5, 10, 20 and 40 seconds, none about the rank that waits for it, and none while
// idle.
func TestStallExplainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log synctext.Buffer
		release := make(chan struct{})
		e, _ := start(t, 2, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind == queue.KindPlan && c.rank == 1 {
				c.status.Set(status.Forward, 3)
				<-release
			}
			if kind == queue.KindPlan && c.rank == 0 {
				c.status.Finished(9)
				<-release
			}
			return true
		}), logTo(&log))
		time.Sleep(time.Hour)
		if got := log.String(); got != "" {
			t.Errorf("idle ranks were reported: %s", got)
		}
		started := time.Now()
		done := make(chan error)
		go func() {
			_, err := execute(t, e, 9)
			done <- err
		}()
		for _, c := range []struct {
			after time.Duration
			lines int
		}{
			{4 * time.Second, 0}, {6 * time.Second, 1}, {9 * time.Second, 1}, {12 * time.Second, 2},
			{18 * time.Second, 2}, {23 * time.Second, 3}, {38 * time.Second, 3}, {43 * time.Second,
				4},
		} {
			time.Sleep(c.after - time.Since(started))
			if n := strings.Count(log.String(), "rank=1"); n != c.lines {
				t.Errorf("after %v: %d lines, not %d", c.after, n, c.lines)
			}
		}
		report := e.Report()
		if !report[1].Stalled || report[1].Phase != "forward, layer 3" || report[1].Started != 9 ||
			report[1].Sent != 9 {
			t.Errorf("report %+v", report[1])
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(2 * stalledTick) // that it moves again is seen
		lines := log.String()
		if !strings.Contains(lines, `rank=1 node=node-a pid=101`) || strings.Count(lines,
			"moves again") != 1 || !strings.Contains(lines,
			`phase="forward, layer 3" process="" received=9 started=9 finished=0 sent=9`) {
			t.Errorf("explanation: %s", lines)
		}
		if strings.Contains(lines, "rank=0") {
			t.Errorf("the rank that waits was reported: %s", lines)
		}
		time.Sleep(time.Hour)
		if log.String() != lines {
			t.Errorf("idle ranks were reported: %s", log.String())
		}
	})
}

// TestSlowIsNotStalled has a rank compute a layer for ten times as long as a step may stand still,
// a chunk at a time: it is slow, which is neither a stall nor a failure.
func TestSlowIsNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log synctext.Buffer
		const timeout = 20 * time.Second
		e, _ := start(t, 2, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind == queue.KindPlan && c.rank == 0 {
				c.status.Set(status.Forward, 3)
				for range 10 * timeout / defaultStallWarning * 2 {
					time.Sleep(defaultStallWarning / 2)
					c.status.Moved().Add(1)
				}
			}
			return true
		}), logTo(&log), func(o *Options) { o.StepTimeout = timeout })
		started := time.Now()
		if _, err := execute(t, e, 9); err != nil {
			t.Error(err)
		}
		if took := time.Since(started); took < 10*timeout {
			t.Errorf("the step took %v", took)
		}
		if got := log.String(); got != "" {
			t.Errorf("a rank that moves was reported: %s", got)
		}
	})
}

// TestMovesAgain wants a line at once when a rank moves again that was stalled, and the step to go
// on.
func TestMovesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log synctext.Buffer
		e, _ := start(t, 1, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind == queue.KindPlan {
				c.status.Set(status.Forward, 3)
				time.Sleep(12 * time.Second)
				c.status.Moved().Add(1)
				time.Sleep(stalledTick + time.Millisecond)
				if got := log.String(); !strings.Contains(got, "rank moves again\" rank=0") {
					t.Errorf("it moves, and that is known of it: %s", got)
				}
				if e := strings.Count(log.String(), "rank is stalled"); e != 2 {
					t.Errorf("%d lines on the stall", e)
				}
			}
			return true
		}), logTo(&log))
		if _, err := execute(t, e, 9); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitIsNoStall has a rank wait in a collective for one that is slow, and then both stand still
// in it: that is a stall only when both have for as long as one may, counted from when the slow one
// came. It ends for both when one of them moves.
func TestWaitIsNoStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log synctext.Buffer
		stalled := func(want int) {
			t.Helper()
			if n := strings.Count(log.String(), "rank is stalled"); n != want {
				t.Errorf("%d stalls, not %d: %s", n, want, log.String())
			}
		}
		const little = defaultStallWarning - time.Second
		var e *Executor
		e, _ = start(t, 2, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind != queue.KindPlan {
				return true
			}
			c.status.Started(9)
			if c.rank == 0 {
				c.status.Set(status.Collective, 3)
				time.Sleep(17*little + time.Second)
				return true
			}
			c.status.Set(status.Forward, 3)
			for range 10 {
				time.Sleep(little)
				c.status.Moved().Add(1)
			}
			c.status.Set(status.Collective, 3)
			time.Sleep(little)
			stalled(0)
			time.Sleep(little)
			stalled(2)
			c.status.Set(status.Forward, 4)
			time.Sleep(stalledTick + time.Millisecond)
			if n := strings.Count(log.String(), "rank moves again"); n != 2 {
				t.Errorf("%d ranks move again: %s", n, log.String())
			}
			for _, r := range e.Report() {
				if r.Stalled {
					t.Errorf("stalled: %v", r)
				}
			}
			for range 5 {
				time.Sleep(little)
				c.status.Moved().Add(1)
			}
			stalled(2)
			return true
		}), logTo(&log))
		if _, err := execute(t, e, 9); err != nil {
			t.Error(err)
		}
		stalled(2)
	})
}

// TestStarved tells a process that has no processor from one that does not move.
func TestStarved(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		before, now schedule
		want        bool
	}{
		"nothing is known": {schedule{}, schedule{known: 1, ready: 1}, false},
		"it sleeps":        {schedule{known: 2}, schedule{known: 2}, false},
		"it computes":      {schedule{known: 2}, schedule{known: 2, ran: s, ready: 1}, false},
		"it waits for one": {schedule{known: 2}, schedule{known: 2, ready: 1}, true},
		"it has waited": {schedule{known: 2, waited: s}, schedule{known: 2, waited: 2 * s,
			ran: s / 20}, true},
		"it has a part": {schedule{known: 2}, schedule{known: 2, waited: s, ran: s / 2,
			ready: 1}, false},
	} {
		if got := c.now.starved(c.before, s); got != c.want {
			t.Errorf("%s: starved %v", name, got)
		}
	}
	if own := scheduleOf(os.Getpid()); own.known > 0 && (own.ran == 0 || own.ready == 0) {
		t.Errorf("of this process: %+v", own)
	}
}

// TestReportNamesTheLast wants only the rank that holds the others up to count as stalled: the one
// that waits for it in a collective has not moved either.
func TestReportNamesTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		e, _ := start(t, 2, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind == queue.KindPlan {
				c.status.Set([]status.Phase{status.Collective, status.Forward}[c.rank], 3)
				<-release
			}
			return true
		}))
		done := make(chan error)
		go func() {
			_, err := execute(t, e, 9)
			done <- err
		}()
		time.Sleep(defaultStallWarning + 2*stallTick)
		report := e.Report()
		if report[0].Phase != "collective, layer 3" || report[0].Stalled || !report[1].Stalled {
			t.Errorf("report %+v", report)
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestStalledStage wants of three stages only the one in the middle to be reported, which does not
// move: the first has done its part of all steps, and the last waits. The last stage answers.
func TestStalledStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log synctext.Buffer
		release := make(chan struct{})
		e, _ := start(t, 3, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind != queue.KindPlan {
				return true
			}
			switch c.rank {
			case 1:
				c.status.Set(status.Forward, 5)
				<-release
			case 2:
				c.status.Set(status.Collective, 8)
				<-release
				c.Send(step.AppendResult([]byte{byte(queue.KindResult)}, &step.Result{Plan: 9}),
					time.Time{})
			}
			c.status.Finished(9)
			return false
		}), logTo(&log), func(o *Options) { o.Init.Layout = layout.Layout{PP: 3} })
		done := make(chan error)
		go func() {
			_, err := execute(t, e, 9)
			done <- err
		}()
		time.Sleep(defaultStallWarning + 2*stallTick)
		report := e.Report()
		if report[0].Stalled || !report[1].Stalled || report[2].Stalled {
			t.Errorf("report %+v", report)
		}
		if got := log.String(); strings.Count(got, "\n") != 1 ||
			!strings.Contains(got, "rank=1 node=node-a pid=101 place=PP1 ") {
			t.Errorf("explanation: %s", got)
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
