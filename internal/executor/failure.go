package executor

import (
	"errors"

	"github.com/eagleray/eagleray/internal/executor/verdict"
)

// Failure is why a group cannot go on: the first error of any rank.
type Failure = verdict.Failure

// Dead is closed when the group has failed or was shut down; Err then says why.
func (e *Executor) Dead() <-chan struct{} { return e.dead }

// Err is why the group is dead: a *Failure or ErrShutdown; nil while it lives.
func (e *Executor) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

// OnFailure registers what is called, once, with the first failure of any rank; at once when the
// group has already failed. It must not wait for Shutdown, which waits for it.
func (e *Executor) OnFailure(f func(*Failure)) {
	e.mu.Lock()
	e.onFailure = f
	var already *Failure
	if !e.notified && errors.As(e.cause, &already) {
		e.notified = true
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
	notify := e.onFailure
	if errors.As(cause, &f) && notify != nil {
		e.notified = true
	} else {
		notify = nil
	}
	e.mu.Unlock()
	close(e.dead)
	e.endLife()
	select {
	case <-e.joined:
		e.hub.Interrupt()
		if f != nil {
			// A Send under way may wait for ranks that read no more. Nothing follows it.
			for rank := range e.workers {
				e.hub.Drop(rank)
			}
		}
	default:
	}
	if notify != nil {
		notify(f)
	}
}

func (e *Executor) over() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopped || e.cause != nil
}
