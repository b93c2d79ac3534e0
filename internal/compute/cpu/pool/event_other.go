//go:build !linux

package pool

import "sync"

// event is an event count on a condition variable: wait returns once signal has been called after
// observe.
type event struct {
	mu    sync.Mutex
	cond  sync.Cond
	count uint32
}

func (e *event) init() { e.cond.L = &e.mu }

// observe returns the count to pass to wait.
func (e *event) observe() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count
}

// wait blocks while the count is still seen.
func (e *event) wait(seen uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.count == seen {
		e.cond.Wait()
	}
}

// signal advances the count and wakes the waiting threads; the condition variable cannot wake an
// exact number without losing one, so all wake and look.
func (e *event) signal(int) {
	e.mu.Lock()
	e.count++
	e.mu.Unlock()
	e.cond.Broadcast()
}
