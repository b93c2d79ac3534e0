package executor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/verdict"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/fanin"
	"github.com/eagleray/eagleray/internal/link/queue/ring"
)

// judge guards the verdict on the group.
type judge struct {
	mu      sync.Mutex
	verdict *verdict.Verdict
	// suspected has a value when the verdict's deadline may have changed.
	suspected chan struct{}
}

// launch starts the ranks and the watch over them.
func (e *Executor) launch(ctx context.Context, specs []launch.Spec) error {
	workers, err := e.opt.Launcher.Launch(ctx, specs)
	if err != nil {
		return err
	}
	var ranks []verdict.Rank
	for _, w := range workers {
		ranks = append(ranks, verdict.Rank{Node: w.Node, PID: w.PID})
	}
	e.judge.verdict, e.judge.suspected = verdict.New(ranks), make(chan struct{}, 1)
	e.workers = workers
	e.background.Go(e.watch)
	return nil
}

// observe passes an event to the verdict.
func (e *Executor) observe(event verdict.Event) {
	e.judge.mu.Lock()
	e.judge.verdict.Step(time.Now(), event)
	f := e.judge.verdict.Failure()
	e.judge.mu.Unlock()
	if f != nil {
		e.finish(f)
		return
	}
	select {
	case e.judge.suspected <- struct{}{}:
	default:
	}
}

// tick passes the time to the verdict, and returns the verdict's next deadline.
func (e *Executor) tick() (next time.Time, ok bool) {
	e.judge.mu.Lock()
	e.judge.verdict.Tick(time.Now())
	f := e.judge.verdict.Failure()
	next, ok = e.judge.verdict.Deadline()
	e.judge.mu.Unlock()
	if f != nil {
		e.finish(f)
	}
	return next, ok
}

// watch passes exits and time to the verdict, until the group is dead.
func (e *Executor) watch() {
	timer := alarm(time.Time{})
	defer timer.Stop()
	receiving := false
	for {
		select {
		case exit := <-e.opt.Launcher.Exited():
			e.exited(exit)
			continue
		case <-e.judge.suspected:
		case <-timer.C:
			// Exits received before the tick count.
			for more := true; more; {
				select {
				case exit := <-e.opt.Launcher.Exited():
					e.exited(exit)
				default:
					more = false
				}
			}
		case <-e.life.dead:
			return
		}
		next, ok := e.tick()
		if !ok {
			continue
		}
		timer.Reset(time.Until(next))
		if !receiving {
			// The report that explains a suspicion may be in the queue, and needs a reader.
			receiving = true
			e.background.Go(e.receiveAll)
		}
	}
}

// exited handles the end of a rank. It ignores ranks of earlier groups.
func (e *Executor) exited(x launch.Exit) {
	if x.Rank >= 0 && x.PID != 0 && x.PID != e.workers[x.Rank].PID {
		return
	}
	e.observe(verdict.Exited(x))
}

// receiveAll receives until the group is dead.
func (e *Executor) receiveAll() {
	select {
	case <-e.joined:
		_ = e.await(context.Background(), nil, time.Time{})
	case <-e.life.dead:
	}
}

// connectionLost handles the end of a rank's connection without a reason.
func (e *Executor) connectionLost(rank int, end join.End) {
	if e.life.ended() {
		return
	}
	e.hub.Drop(rank)
	e.observe(verdict.ConnectionLost{Rank: rank, Cut: end.Cut,
		Cause: "connection lost: " + end.Err.Error()})
}

// connectionClosed handles the end of a rank's connection with a reason.
func (e *Executor) connectionClosed(rank int, end join.End) {
	if e.life.ended() {
		return
	}
	e.hub.Drop(rank)
	e.observe(verdict.ConnectionClosed{Rank: rank, Cut: end.Cut, Reason: end.Err.Error()})
}

// sendFailed turns an error of the hub's Send into the failure of the group, and waits for that:
// the death of a rank may explain it.
func (e *Executor) sendFailed(err error) error {
	if errors.Is(err, queue.ErrTimeout) {
		e.overdue(verdict.Overdue{Rank: rankOf(err), Cause: "does not read: " + err.Error()})
	} else {
		e.observe(verdict.ConnectionLost{Rank: rankOf(err), Cause: "cannot send: " + err.Error()})
	}
	<-e.life.dead
	return e.Err()
}

// overdue turns a wait whose time is over into the failure of the group.
func (e *Executor) overdue(o verdict.Overdue) {
	o.Seen = e.seen()
	e.observe(o)
}

// seen returns the current state of each rank.
func (e *Executor) seen() []verdict.Seen {
	list := make([]verdict.Seen, len(e.workers))
	for r := range list {
		list[r].Status, _ = e.hub.Status(r)
		switch state := e.processState(r); state {
		case stoppedState, deviceState:
			list[r].Held = "its process is " + state
		}
		list[r].Busy = e.stall.busy(r, e.pid(r))
	}
	return list
}

// reported handles a rank's report of an error.
func (e *Executor) reported(rank int, q *queue.Failure) {
	r := verdict.Reported{Rank: rank, Step: q.Step, Phase: q.Phase, Message: q.Message,
		Stack: q.Stack, Follows: q.Follows, Missing: q.Missing, Disagrees: q.Disagrees,
		Unrelated: q.Unrelated}
	if len(r.Missing) > 0 {
		r.Seen = e.seen()
	}
	e.observe(r)
}

// rankOf returns the rank that an error of the queue names, -1 when it names none.
func rankOf(err error) int {
	var named *fanin.RankError
	var corrupt *ring.CorruptError
	var slow *queue.SlowError
	switch {
	case errors.As(err, &named):
		return named.Rank
	case errors.As(err, &corrupt):
		return corrupt.Rank
	case errors.As(err, &slow) && len(slow.Ranks) > 0:
		return slow.Ranks[0]
	}
	return -1
}
