package executor

import (
	"context"
	"errors"
	"sync"

	"github.com/eagleray/eagleray/internal/group/verdict"
)

// Failure is the first error of any rank, which ends the group.
type Failure = verdict.Failure

// life is the state of a group: alive, or dead with a cause.
type life struct {
	// ctx ends, and dead is closed, at the first failure or at shutdown; cause is set before.
	ctx  context.Context
	end  context.CancelFunc
	dead <-chan struct{}
	// down is closed at the end of the first Shutdown.
	down chan struct{}

	mu        sync.Mutex
	cause     error
	onFailure func(*Failure) // called once, with the first failure
	notified  bool
	stopped   bool // Shutdown was called
}

func newLife() *life {
	l := &life{down: make(chan struct{})}
	l.ctx, l.end = context.WithCancel(context.Background())
	l.dead = l.ctx.Done()
	return l
}

// ended reports whether the group is dead or shutting down.
func (l *life) ended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopped || l.cause != nil
}

// beginShutdown begins the shutdown; false means that another call has begun it.
func (l *life) beginShutdown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !l.stopped
	l.stopped = true
	return first
}

// Dead is closed when the group has failed or was shut down; Err then says why.
func (e *Executor) Dead() <-chan struct{} { return e.life.dead }

// Err returns the cause of the group's end: a *Failure or ErrShutdown; nil while it lives.
func (e *Executor) Err() error {
	e.life.mu.Lock()
	defer e.life.mu.Unlock()
	return e.life.cause
}

// OnFailure registers f, which is called once with the first failure of any rank, at once when the
// group has already failed. f must not wait for Shutdown, which waits for f, nor for calls under
// way, which end after f. The engine learns of failures by Dead and Err; this is for an owner
// without a loop of its own, as an engine that is embedded in a Ray actor.
func (e *Executor) OnFailure(f func(*Failure)) {
	e.life.mu.Lock()
	e.life.onFailure = f
	var already *Failure
	if !e.life.notified && errors.As(e.life.cause, &already) {
		e.life.notified = true
	}
	e.life.mu.Unlock()
	if already != nil {
		f(already)
	}
}

// finish records the first cause and ends every wait.
func (e *Executor) finish(cause error) {
	e.life.mu.Lock()
	if e.life.cause != nil {
		e.life.mu.Unlock()
		return
	}
	e.life.cause = cause
	var f *Failure
	notify := e.life.onFailure
	if errors.As(cause, &f) && notify != nil {
		e.life.notified = true
	} else {
		notify = nil
	}
	e.life.mu.Unlock()
	e.life.end()
	if notify != nil {
		notify(f) // before ranks that end take the cores
	}
	select {
	case <-e.joined:
		e.hub.Interrupt()
		if f != nil {
			// A Send under way may wait for ranks that read no more. Nothing follows it.
			all := make([]int, len(e.workers))
			for rank := range all {
				all[rank] = rank
			}
			e.hub.Drop(all...)
		}
	default:
	}
}
