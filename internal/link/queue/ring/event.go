package ring

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/sys/futex"
	"github.com/eagleray/eagleray/internal/sys/spin"
)

// pauses between two looks: a fraction of a microsecond.
const pauses = 8

// event is an event count in shared memory. A party that changes what others may wait for notifies
// it. A waiter announces itself, looks once more, and sleeps while the word does not change.
//
// # Memory order
//
// A record is written with plain stores, then the writer's position is stored atomically; a reader
// loads the position atomically, then reads the record with plain loads. Back again, a reader loads
// the record, then stores its own position; the writer loads that position before it overwrites the
// place. Both directions need release on the store and acquire on the load, no more. Waiting needs
// more, a store followed by a load of another word in one total order: the position and the
// sleepers count (below).
//
// Go's atomics are sequentially consistent, which covers both. The Go memory model speaks of
// goroutines, not of processes, but what it is made of holds between processes as well: the
// compiler neither drops nor moves loads and stores across its atomics; on amd64 they are
// LOCK-prefixed or XCHG stores, which drain the store buffer, and plain loads, which are acquire;
// on arm64 they are STLR, LDAR and the acquire-release LSE forms (or exclusive pairs), which are
// sequentially consistent among each other. Both kinds act on physical, cache-coherent memory,
// whatever address a process has it mapped at. Non-temporal stores would escape this, but memmove
// uses them only above 1 MiB, more than one piece of a ring, and fences them.
//
// # No wake-up is lost
//
// The steps, which the model in the tests explores in every interleaving under the same names:
//
//	notify: change (before the call), bump the word, look at sleepers, wake if there are any
//	wait:   check, announce in sleepers, observe the word, recheck, sleep if as observed, cancel
//
// In the one total order, the look comes either after the announcement, and then the wake follows;
// or before it, and then so does the change, which the recheck sees. A wake that comes between
// observe and sleep is not missed either: the bump precedes it, so that the word is not as observed
// and the kernel, which compares and queues under one lock, does not put the waiter to sleep.
//
// sleepers is a count that each sleeper raises and lowers itself, not a flag that the waker clears:
// a waker killed or stopped between clearing and waking would lose the wake-up of all. The price is
// that a rank killed in its sleep leaves the count raised, and each later notify of that event
// makes a system call that wakes no one.
type event struct {
	word     atomic.Uint32
	sleepers atomic.Uint32
}

// notify wakes the waiters because something has changed. The change has been stored before.
func (e *event) notify() {
	e.word.Add(1)               // bump
	if e.sleepers.Load() == 0 { // look
		return
	}
	futex.Wake(&e.word) // wake
}

// waiter is one goroutine's way of waiting. The loop around it looks for what it waits for before
// every call of pause, and calls done in the end.
type waiter struct {
	policy  spin.Policy
	stage   stage
	seen    uint32
	began   time.Time
	budget  time.Duration
	scratch unix.Timespec
}

type stage uint8

const (
	fresh stage = iota
	spinning
	awake // has to announce itself before it sleeps
	announced
)

// pause returns when it is time to look again, or with queue.ErrTimeout when the deadline, unless
// zero, has passed.
func (w *waiter) pause(e *event, until time.Time) error {
	switch w.stage {
	case fresh:
		w.began = time.Now()
		if !until.IsZero() && !w.began.Before(until) {
			return queue.ErrTimeout
		}
		w.stage = spinning
		w.budget = w.policy.Budget()
		if w.budget > 0 {
			spin.Pause(pauses)
			return nil
		}
	case spinning:
		if time.Since(w.began) < w.budget {
			spin.Pause(pauses)
			return nil
		}
		if w.budget > 0 {
			w.policy.Failed()
		}
	case announced:
		left := time.Duration(0)
		if !until.IsZero() {
			if left = time.Until(until); left <= 0 {
				return queue.ErrTimeout
			}
		}
		err := futex.Wait(&e.word, w.seen, left, &w.scratch) // sleep
		w.cancelWait(e)
		return err
	}
	e.sleepers.Add(1)      // announce
	w.seen = e.word.Load() // observe
	w.stage = announced
	return nil
}

func (w *waiter) cancelWait(e *event) {
	e.sleepers.Add(^uint32(0))
	w.stage = awake
}

// done ends the wait and learns from it.
func (w *waiter) done(e *event) {
	switch w.stage {
	case spinning:
		if w.budget > 0 {
			w.policy.Paid(time.Since(w.began))
		}
	case announced:
		w.cancelWait(e)
	}
	w.stage = fresh
}
