package executor

import (
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/queue"
)

// Failure is why a group cannot go on: the first error of any rank.
type Failure struct {
	Rank  int
	Node  string
	PID   int
	Step  uint64
	Phase string
	// Cause is one line; Stack and Stderr are what else is known.
	Cause  string
	Stack  string
	Stderr []string
}

// Error names the rank, where it ran, what it was doing and the cause.
func (f *Failure) Error() string {
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
// already failed.
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
	if rank < len(e.workers) {
		f.Node, f.PID = e.workers[rank].Node, e.workers[rank].PID
	}
	return f
}

// How long a loss waits for better words: the launcher's on how the rank ended, and the rank's own account,
// sent before it ended.
const (
	exitGrace    = 2 * time.Second
	accountGrace = 5 * time.Millisecond
)

// lost handles the end of a rank's connection. The launcher knows better how the rank ended, and tells it a
// moment later: only when it stays silent the connection's own error is the cause.
func (e *Executor) lost(rank int, err error) {
	if e.over() {
		return
	}
	e.hub.Drop(rank)
	e.dieUnlessExplained(e.failure(rank, "connection lost: "+err.Error()))
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
	select {
	case exit := <-e.opt.Launcher.Exited():
		if e.over() {
			return
		}
		f := e.failure(exit.Rank, exit.Cause)
		f.Stderr = exit.Stderr
		// A rank that ends by an error of its own sends its account first: it is in its channel and says
		// more than an exit status.
		if e.await(nil, time.Now().Add(accountGrace)) != nil {
			e.die(f)
		}
	case <-e.dead:
	}
}

// sendFailed turns an error of the hub's Send into the failure of the group, unless the death of a rank
// explains it.
func (e *Executor) sendFailed(err error) {
	if !errors.Is(err, queue.ErrTimeout) {
		e.dieUnlessExplained(e.failure(0, "cannot send: "+err.Error()))
		return
	}
	e.die(e.slowest(fmt.Sprintf("does not read: %v", err)))
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
	s, _ := e.hub.Status(worst)
	f := e.failure(worst, cause)
	f.Phase = describe(s)
	return f
}
