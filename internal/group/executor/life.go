package executor

import (
	"context"
	"errors"
	"sync"

	"github.com/eagleray/eagleray/internal/group/verdict"
)

// Failure is why a group cannot go on: the first error of any rank.
type Failure = verdict.Failure

// life is whether a group lives, and why no more.
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

// over says that the group is dead, or about to be.
func (l *life) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopped || l.cause != nil
}

// stop begins the shutdown; false means that it has begun before.
func (l *life) stop() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := !l.stopped
	l.stopped = true
	return first
}

// Dead is closed when the group has failed or was shut down; Err then says why.
func (e *Executor) Dead() <-chan struct{} { return e.life.dead }

// Err is why the group is dead: a *Failure or ErrShutdown; nil while it lives.
func (e *Executor) Err() error {
	e.life.mu.Lock()
	defer e.life.mu.Unlock()
	return e.life.cause
}

// OnFailure registers what is called, once, with the first failure of any rank; at once when the
// group has already failed. It must not wait for Shutdown, which waits for it, nor for calls under
// way, which end after it.
// The engine learns of failures by Dead and Err; this is for an owner without a loop of its own, as
// an engine that is embedded in a Ray actor.
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

// die records the first cause and ends every wait.
func (e *Executor) die(cause error) {
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
