package pool

import (
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/sys/futex"
)

// event is an event count on a futex: wait returns once signal has been called after observe.
// Signals are remembered for threads that observed before them, and wake sleeping threads.
type event struct {
	count atomic.Uint32
}

// observe returns the count to pass to wait.
func (e *event) observe() uint32 { return e.count.Load() }

// wait blocks while the count is still seen. It may return early. The kernel compares the count and
// queues the thread under one lock, so a signal between observe and wait is never missed.
func (e *event) wait(seen uint32) {
	if e.count.Load() == seen {
		futex.WaitPrivate(&e.count, seen)
	}
}

// signal advances the count and wakes up to n sleeping threads.
func (e *event) signal(n int) {
	e.count.Add(1)
	futex.WakePrivate(&e.count, n)
}
