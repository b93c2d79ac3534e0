package engine

import (
	"maps"
	"slices"
	"time"
)

// message is what another goroutine tells the step loop: submitted, aborted, *order, arrival or
// released.
type message any

type (
	// submitted are requests whose outputs belong together.
	submitted []*request
	// aborted are the keys of requests whose stream was closed, or that are over by a stop string.
	aborted []uint64
	// arrival is the end of a fetch of KV blocks.
	arrival struct {
		key      uint64
		complete bool
	}
	// released is the key of a request whose KV blocks no other engine reads any more.
	released uint64
)

// inbox is how other goroutines reach the loop: the messages since it last looked, in order. The
// engine's mutex guards it; wake wakes a loop that has nothing to do.
type inbox struct {
	messages []message
	// taken is the memory of the messages before, for those after the next look.
	taken []message
	wake  chan struct{}
}

// post hands the loop a message. The caller holds the engine's mutex.
func (b *inbox) post(m message) {
	b.messages = append(b.messages, m)
	b.signal()
}

// signal has the loop look for what has changed.
func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take empties the inbox. What it returns is valid until the next call.
func (b *inbox) take() []message {
	clear(b.taken)
	b.messages, b.taken = b.taken[:0], b.messages
	return b.taken
}

// submitted counts the requests that no loop knows of yet; foreground leaves out those in the
// background.
func (b *inbox) submitted(foreground bool) (n int) {
	for _, m := range b.messages {
		list, _ := m.(submitted)
		for _, q := range list {
			if !foreground || !q.Background {
				n++
			}
		}
	}
	return n
}

// post hands the loop a message.
func (e *Engine) post(m message) {
	e.mu.Lock()
	e.inbox.post(m)
	e.mu.Unlock()
}

// admit does what the messages of the inbox say, and moves new requests into the scheduler. It
// returns false when the engine is to end.
func (e *Engine) admit() bool {
	e.turned = time.Now()
	e.mu.Lock()
	e.setQueued(e.sched.Queued() + e.waitingParked() + e.inbox.submitted(true))
	messages := e.inbox.take()
	stopping, drained := e.stopping, e.drained
	e.mu.Unlock()
	held := e.steering.held()
	e.unpark(held)
	e.aborted = e.aborted[:0]
	for _, m := range messages {
		switch m := m.(type) {
		case submitted:
			e.letIn(m, held)
		case aborted:
			e.aborted = append(e.aborted, m...)
		case *order:
			e.todo = append(e.todo, m)
		case arrival:
			e.sched.Received(m.key, m.complete)
		case released:
			e.sched.Release(uint64(m))
		}
	}
	if len(e.aborted) > 0 {
		e.cancel(e.aborted, false)
	}
	if drained {
		e.cancel(slices.Collect(maps.Keys(e.requests)), true)
	}
	return !stopping || len(e.requests) > 0
}

// letIn hands new requests to the scheduler, or parks them, while a pause holds them.
func (e *Engine) letIn(list submitted, held bool) {
	for _, q := range list {
		e.requests[q.Key] = q
		if held {
			e.parked = append(e.parked, q)
		} else {
			e.sched.Add(&q.Request.Request)
		}
	}
}

// unpark lets the requests that a pause has held go on when it is over.
func (e *Engine) unpark(held bool) {
	e.parked = slices.DeleteFunc(e.parked, func(q *request) bool {
		return e.requests[q.Key] != q // aborted meanwhile
	})
	if held {
		return
	}
	for _, q := range e.parked {
		e.sched.Add(&q.Request.Request)
	}
	clear(e.parked)
	e.parked = e.parked[:0]
}

// waitingParked counts the requests that a pause holds and that count as queued.
func (e *Engine) waitingParked() (n int) {
	for _, q := range e.parked {
		if !q.Background && e.requests[q.Key] == q {
			n++
		}
	}
	return n
}
