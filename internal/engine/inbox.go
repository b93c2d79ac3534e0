package engine

import (
	"maps"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/handover"
	"github.com/eagleray/eagleray/internal/engine/offload"
)

// message is what another goroutine tells the step loop: submitted, aborted, *task,
// handover.Message or offload.Message.
type message any

type (
	// submitted are requests whose outputs belong together.
	submitted []*request
	// aborted are the keys of requests whose stream was closed, or that are over by a stop string.
	aborted []uint64
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

// popAll empties the inbox. What it returns is valid until the next call.
func (b *inbox) popAll() []message {
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
func (l *Loop) admit() bool {
	l.turned = time.Now()
	l.e.mu.Lock()
	l.e.setQueued(l.sched.Queued() + l.waitingParked() + l.e.inbox.submitted(true))
	messages := l.e.inbox.popAll()
	stopping, drained := l.e.stopping, l.e.drained
	l.e.mu.Unlock()
	paused := l.e.wanted.Paused()
	l.unpark(paused)
	l.aborted = l.aborted[:0]
	for _, m := range messages {
		switch m := m.(type) {
		case submitted:
			l.letIn(m, paused)
		case aborted:
			l.aborted = append(l.aborted, m...)
		case *task:
			l.tasks = append(l.tasks, m)
		case handover.Message:
			l.e.exchange.Handle(m)
		case offload.Message:
			l.e.offload.Handle(m)
		}
	}
	if len(l.aborted) > 0 {
		l.cancel(l.aborted, false)
	}
	if drained {
		l.cancel(slices.Collect(maps.Keys(l.requests)), true)
	}
	return !stopping || len(l.requests) > 0
}

// letIn hands new requests to the scheduler, or parks them, while a pause holds them.
func (l *Loop) letIn(list submitted, paused bool) {
	for _, q := range list {
		l.requests[q.Key] = q
		l.e.exchange.Admit(q.Key, q.Ticket, q.choice == 0)
		if paused {
			l.parked = append(l.parked, q)
		} else {
			l.add(q)
		}
	}
}

// add hands a request to the scheduler.
func (l *Loop) add(q *request) {
	l.sched.Add(&q.Request.Request)
	if a := q.asked; a != nil {
		l.series[q.Place()].ObserveParams(a.outputs, a.tokens)
	}
}

// unpark lets the requests that a pause has held go on when it is over.
func (l *Loop) unpark(paused bool) {
	l.parked = slices.DeleteFunc(l.parked, func(q *request) bool {
		return l.requests[q.Key] != q // aborted meanwhile
	})
	if paused {
		return
	}
	for _, q := range l.parked {
		l.add(q)
	}
	clear(l.parked)
	l.parked = l.parked[:0]
}

// waitingParked counts the requests that a pause holds and that count as queued.
func (l *Loop) waitingParked() (n int) {
	for _, q := range l.parked {
		if !q.Background && l.requests[q.Key] == q {
			n++
		}
	}
	return n
}

// cancel aborts those of the requests that are not over yet; tickets of others were not read.
func (l *Loop) cancel(keys []uint64, drained bool) {
	b := l.e.delivery.empty()
	b.how, b.drained = sample.FinishAbort, drained
	for _, key := range keys {
		if q := l.requests[key]; q != nil {
			l.remove(key)
			b.ended = append(b.ended, q)
		} else {
			l.e.exchange.Unpublish(key)
		}
	}
	l.e.exchange.Cancelled()
	l.e.delivery.batches <- b
}

// remove takes a request away that ends without a last token.
func (l *Loop) remove(key uint64) {
	l.sched.Abort(key)
	delete(l.requests, key)
	l.further(key)
	l.e.exchange.End(key)
}
