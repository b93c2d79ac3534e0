package executor

import (
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/queue/fanin"
	"github.com/eagleray/eagleray/internal/queue/ring"
)

// Failure is why a group cannot go on: the first error of any rank.
type Failure struct {
	Rank  int
	Node  string
	PID   int
	Step  uint64
	Phase string
	// Cause is one line. Detail is what else is known of it, in lines: the stack of a panic, all of Ray's words.
	// Stderr are the rank's last lines of output.
	Cause  string
	Detail string
	Stderr []string
}

// Error names the rank, where it ran, what it was doing and the cause.
func (f *Failure) Error() string {
	if f.Rank < 0 {
		return f.Cause
	}
	s := fmt.Sprintf("rank %d on %s (pid %d)", f.Rank, f.Node, f.PID)
	if f.Step > 0 {
		s += fmt.Sprintf(", step %d", f.Step)
	}
	if f.Phase != "" {
		s += ", " + f.Phase
	}
	return s + ": " + f.Cause
}

// Dead is closed when the group has failed or was shut down; Err then says why.
func (e *Executor) Dead() <-chan struct{} { return e.dead }

// Err is why the group is dead: a *Failure or ErrShutdown; nil while it lives.
func (e *Executor) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

// OnFailure registers what is called, once, with the first failure of any rank; at once when the group has
// already failed. It must not wait for Shutdown, which waits for it.
func (e *Executor) OnFailure(f func(*Failure)) {
	e.mu.Lock()
	e.onFailure = f
	var already *Failure
	if !e.told && errors.As(e.cause, &already) {
		e.told = true
	}
	e.mu.Unlock()
	if already != nil {
		f(already)
	}
}

// die records the first cause and ends every wait.
func (e *Executor) die(cause error) {
	e.mu.Lock()
	if e.cause != nil {
		e.mu.Unlock()
		return
	}
	e.cause = cause
	var f *Failure
	tell := e.onFailure
	if errors.As(cause, &f) && tell != nil {
		e.told = true
	} else {
		tell = nil
	}
	e.mu.Unlock()
	close(e.dead)
	e.endLife()
	if e.hub != nil {
		e.hub.Interrupt()
		if f != nil {
			// A Send under way may wait for ranks that read no more. Nothing follows it.
			for rank := range e.workers {
				e.hub.Drop(rank)
			}
		}
	}
	if tell != nil {
		tell(f)
	}
}

func (e *Executor) over() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopped || e.cause != nil
}

func (e *Executor) failure(rank int, cause string) *Failure {
	f := &Failure{Rank: rank, Cause: cause}
	if rank >= 0 && rank < len(e.workers) {
		f.Node, f.PID = e.workers[rank].Node, e.workers[rank].PID
	}
	return f
}

// ended is the failure that the end of a rank is.
func (e *Executor) ended(x launch.Exit) *Failure {
	f := e.failure(x.Rank, x.End.String())
	f.Detail, f.Stderr = x.Detail, x.Stderr
	if f.Node == "" {
		f.Node, f.PID = x.Node, x.PID
	}
	return f
}

// How long a loss waits for better words: the launcher's on how the rank ended, and the rank's own account,
// sent before it ended by itself, which may be behind large records. One that was killed, or crashed, most likely had
// nothing to say.
const (
	exitGrace    = 750 * time.Millisecond
	accountGrace = 2 * time.Second
	killedGrace  = 5 * time.Millisecond
)

// lost handles the end of a rank's connection. The launcher knows better how the rank ended, and tells it a
// moment later: only when it stays silent the connection's own error is the cause.
func (e *Executor) lost(rank int, err error) {
	if e.over() {
		return
	}
	e.hub.Drop(rank)
	e.background.Go(func() {
		select {
		case <-e.dead:
		case <-time.After(exitGrace):
			// Rank -1 is what watches the ranks: with it they all end.
			if !e.known(e.exits, rank) && !e.known(e.exits, -1) {
				e.die(e.failure(rank, "connection lost: "+err.Error()))
			}
		}
	})
}

// explained handles the end of a rank of which no better account will come.
func (e *Executor) explained(rank int, cause string) {
	if e.over() {
		return
	}
	e.hub.Drop(rank)
	e.die(e.failure(rank, cause))
}

// dieUnlessExplained makes f the failure of the group unless a better account of it comes in time.
func (e *Executor) dieUnlessExplained(f *Failure) {
	e.background.Go(func() {
		select {
		case <-e.dead:
		case <-time.After(exitGrace):
			e.die(f)
		}
	})
}

// watchExits turns the end of a rank into the failure of the group.
func (e *Executor) watchExits() {
	for {
		select {
		case exit := <-e.opt.Launcher.Exited():
			if e.over() {
				return
			}
			e.background.Go(func() { e.explainExit(exit) })
		case <-e.dead:
			return
		}
	}
}

// explainExit makes the end of a rank the failure of the group, unless its own account says more: a rank that ends
// by an error sends it first.
func (e *Executor) explainExit(exit launch.Exit) {
	e.mu.Lock()
	e.exits[exit.Rank] = true
	e.mu.Unlock()
	grace := killedGrace
	if exit.End.ByError() {
		grace = accountGrace
	}
	_ = e.await(nil, time.Now().Add(grace))
	if !e.known(e.followers, exit.Rank) {
		e.die(e.ended(exit))
	}
}

// follow handles the account of a rank that failed because another one has ended: that one's end is the cause, and
// is told a moment later or sooner.
func (e *Executor) follow(f *Failure) {
	e.mu.Lock()
	e.followers[f.Rank] = true
	e.mu.Unlock()
	if !e.over() {
		e.dieUnlessExplained(f)
	}
}

// known looks a rank up in followers or exits.
func (e *Executor) known(of map[int]bool, rank int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return of[rank]
}

// sendFailed turns an error of the hub's Send into the failure of the group, unless the death of a rank
// explains it.
func (e *Executor) sendFailed(err error) {
	if !errors.Is(err, queue.ErrTimeout) {
		e.dieUnlessExplained(e.failure(blamed(err), "cannot send: "+err.Error()))
		return
	}
	cause := "does not read: " + err.Error()
	f := e.slowest(cause)
	if r := blamed(err); r >= 0 && r != f.Rank && e.processState(f.Rank) != stoppedState {
		f = e.standing(r, cause)
	}
	e.die(f)
}

// blamed is the rank that an error of the queue names, -1 when it names none.
func blamed(err error) int {
	var named *fanin.RankError
	var corrupt *ring.CorruptError
	var slow *ring.SlowError
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

// missed is the failure of a group in which one rank has waited for others in vain: one of those is at fault, not
// the one that says so. A rank whose process is stopped comes before the others.
func (e *Executor) missed(account *Failure, missing []int) *Failure {
	worst, why := -1, "did not come: "
	for _, r := range missing {
		if r < 0 || r >= len(e.workers) {
			return account
		}
		stopped := e.processState(r) == stoppedState
		if worst < 0 || stopped {
			worst = r
		}
		if stopped {
			why = "its process is stopped: "
			break
		}
	}
	f := e.standing(worst, why+account.Cause)
	f.Step = account.Step
	return f
}

// stepTimedOut names the rank that is furthest behind.
func (e *Executor) stepTimedOut(plan uint64) *Failure {
	f := e.slowest(fmt.Sprintf("no result after %v", e.opt.StepTimeout))
	f.Step = plan
	return f
}

// slowest is a failure of the rank that holds the others up: one whose process is stopped, else the one that is
// furthest behind.
func (e *Executor) slowest(cause string) *Failure {
	worst, last := 0, e.lastPlace()
	for r := len(e.workers) - 1; r >= 0; r-- {
		if s, _ := e.hub.Status(r); place(s) == last {
			worst = r
		}
	}
	for r := range e.workers {
		if e.processState(r) == stoppedState {
			worst = r
			cause += ": its process is stopped"
			break
		}
	}
	return e.standing(worst, cause)
}

// standing is a failure of a rank in the phase in which it is now.
func (e *Executor) standing(rank int, cause string) *Failure {
	f := e.failure(rank, cause)
	s, _ := e.hub.Status(rank)
	f.Phase = describe(s)
	return f
}
