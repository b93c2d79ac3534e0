package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// signals ends a context at the first signal that asks the program to end; a second one kills it.
type signals struct {
	mu    sync.Mutex
	taken chan struct{}
}

type signalsKey struct{}

// newSignals makes the context of the program.
func newSignals() (ctx context.Context, stop func()) {
	s := &signals{}
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		signal.Notify(got, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), signalsKey{}, s))
	go func() {
		for x := range got {
			if x == syscall.SIGINT && s.pass() {
				continue
			}
			signal.Stop(got)
			cancel()
			return
		}
	}()
	return ctx, func() {
		signal.Stop(got)
		cancel()
	}
}

// pass hands a Ctrl-C to the command that took it.
func (s *signals) pass() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == nil {
		return false
	}
	select {
	case s.taken <- struct{}{}:
	default:
	}
	return true
}

// catchInterrupts delivers Ctrl-C to pressed, instead of ending the program, until release is
// called.
func catchInterrupts(ctx context.Context) (pressed <-chan struct{}, release func()) {
	s, ok := ctx.Value(signalsKey{}).(*signals)
	if !ok {
		return nil, func() {}
	}
	taken := make(chan struct{}, 1)
	s.set(taken)
	return taken, func() { s.set(nil) }
}

func (s *signals) set(taken chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = taken
}

// surviveReaders has a reader of the log that goes away not end the program: the write fails, and
// that is all.
func surviveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
