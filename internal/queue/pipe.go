package queue

import (
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/status"
)

// pipe is a channel inside the process; its two ends share it.
type pipe struct {
	down, up direction
	status   status.Rank
	done     chan struct{}
	once     sync.Once
	poke     chan struct{}
}

// direction carries records one way in buffers that go round.
type direction struct {
	full, free chan []byte
	// last is the buffer the receiver holds.
	last []byte
	// sendTimer and recvTimer are reused, so that a deadline allocates nothing.
	sendTimer, recvTimer *time.Timer
}

// pipeDepth is how many records each direction holds before Send waits.
const pipeDepth = 8

func newDirection() direction {
	return direction{full: make(chan []byte, pipeDepth), free: make(chan []byte, pipeDepth+1)}
}

// Pipe returns the two ends of a channel to a single rank inside the process. Records are copied,
// so that neither end sees the other's memory, exactly as between processes.
func Pipe() (Hub, Port) {
	p := &pipe{down: newDirection(), up: newDirection(), done: make(chan struct{}),
		poke: make(chan struct{}, 1)}
	return (*pipeHub)(p), (*pipePort)(p)
}

// send copies record into a free buffer and passes it on.
func (p *pipe) send(d *direction, record []byte, until time.Time) error {
	var b []byte
	select {
	case b = <-d.free:
	default:
	}
	b = append(b[:0], record...)
	select {
	case <-p.done:
		return ErrClosed
	default:
	}
	select {
	case d.full <- b:
		return nil
	default:
	}
	expired := arm(&d.sendTimer, until)
	defer disarm(d.sendTimer)
	select {
	case d.full <- b:
		return nil
	case <-p.done:
		return ErrClosed
	case <-expired:
		return ErrTimeout
	}
}

// recv returns the next record; what was sent before the close still arrives.
func (p *pipe) recv(d *direction, until time.Time, poke <-chan struct{}) ([]byte, error) {
	if d.last != nil {
		select {
		case d.free <- d.last:
		default:
		}
		d.last = nil
	}
	select {
	case d.last = <-d.full:
		return d.last, nil
	default:
	}
	expired := arm(&d.recvTimer, until)
	defer disarm(d.recvTimer)
	select {
	case d.last = <-d.full:
		return d.last, nil
	case <-poke:
		return nil, ErrInterrupted
	case <-expired:
		return nil, ErrTimeout
	case <-p.done:
	}
	select {
	case d.last = <-d.full:
		return d.last, nil
	default:
		return nil, ErrClosed
	}
}

// arm makes a timer fire at until and returns its channel, nil for never.
func arm(t **time.Timer, until time.Time) <-chan time.Time {
	if until.IsZero() {
		return nil
	}
	if *t == nil {
		*t = time.NewTimer(time.Until(until))
	} else {
		(*t).Reset(time.Until(until))
	}
	return (*t).C
}

func disarm(t *time.Timer) {
	if t != nil {
		t.Stop()
	}
}

func (p *pipe) close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

type pipeHub pipe

func (h *pipeHub) pipe() *pipe { return (*pipe)(h) }

// Send implements Hub.
func (h *pipeHub) Send(record []byte, until time.Time) error {
	return h.pipe().send(&h.down, record, until)
}

// Recv implements Hub.
func (h *pipeHub) Recv(until time.Time) (int, []byte, error) {
	b, err := h.pipe().recv(&h.up, until, h.poke)
	return 0, b, err
}

// Interrupt implements Hub.
func (h *pipeHub) Interrupt() {
	select {
	case h.poke <- struct{}{}:
	default:
	}
}

// Drop implements Hub: with the only rank gone no send can succeed.
func (h *pipeHub) Drop(int) { h.Close() }

// Status implements Hub.
func (h *pipeHub) Status(int) (status.Snapshot, time.Duration) { return h.status.Snapshot(), 0 }

// Close implements Hub.
func (h *pipeHub) Close() error { return h.pipe().close() }

type pipePort pipe

func (r *pipePort) pipe() *pipe { return (*pipe)(r) }

// Recv implements Port.
func (r *pipePort) Recv(until time.Time) ([]byte, error) {
	return r.pipe().recv(&r.down, until, nil)
}

// Send implements Port.
func (r *pipePort) Send(record []byte, until time.Time) error {
	return r.pipe().send(&r.up, record, until)
}

// Status implements Port.
func (r *pipePort) Status() *status.Rank { return &r.status }

// Close implements Port.
func (r *pipePort) Close() error { return r.pipe().close() }

var (
	_ Hub  = (*pipeHub)(nil)
	_ Port = (*pipePort)(nil)
)
