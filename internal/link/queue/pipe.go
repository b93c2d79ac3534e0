package queue

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/status"
)

// pipes is the driver's end of the channels to ranks inside the process.
type pipes struct {
	ports []*pipe
	up    direction // of all ranks
	timer *time.Timer
	poke  chan struct{}
	// open counts the ports that are not closed; alone is closed with the last one.
	open  atomic.Int32
	alone chan struct{}
}

// pipe is a rank's end.
type pipe struct {
	hub    *pipes
	rank   int
	down   direction
	timer  *time.Timer
	status status.Rank
	done   chan struct{}
	once   sync.Once
}

// direction carries records one way in buffers that go round.
type direction struct {
	full chan parcel
	free chan []byte
	// last is the buffer the receiver holds.
	last []byte
	// timer is the receiver's. Timers are reused, so that a deadline allocates nothing.
	timer *time.Timer
}

// parcel is a record and the rank that sent it; 0 for one of the driver.
type parcel struct {
	rank   int
	record []byte
}

// pipeDepth is how many records each direction holds for each rank before Send waits.
const pipeDepth = 8

func newDirection(ranks int) direction {
	return direction{full: make(chan parcel, ranks*pipeDepth),
		free: make(chan []byte, ranks*pipeDepth+1)}
}

// Pipes returns the ends of the channels to so many ranks inside the process. Records are copied,
// so that no end sees another's memory, exactly as between processes. A port that is closed, or
// dropped by the hub, neither gets records nor holds up those of others; what was sent before still
// arrives. Closing the hub closes every port.
func Pipes(ranks int) (Hub, []Port) {
	h := &pipes{up: newDirection(ranks), poke: make(chan struct{}, 1), alone: make(chan struct{})}
	h.open.Store(int32(ranks))
	ports := make([]Port, ranks)
	for rank := range ranks {
		p := &pipe{hub: h, rank: rank, down: newDirection(1), done: make(chan struct{})}
		h.ports = append(h.ports, p)
		ports[rank] = p
	}
	return h, ports
}

// send copies a record into a free buffer and passes it on, unless done is closed.
func (d *direction) send(
	rank int, record []byte, until time.Time, done <-chan struct{}, timer **time.Timer,
) error {
	select {
	case <-done:
		return ErrClosed
	default:
	}
	var b []byte
	select {
	case b = <-d.free:
	default:
	}
	p := parcel{rank, append(b[:0], record...)}
	select {
	case d.full <- p:
		return nil
	default:
	}
	expired := arm(timer, until)
	defer disarm(*timer)
	select {
	case d.full <- p:
		return nil
	case <-done:
		return ErrClosed
	case <-expired:
		return ErrTimeout
	}
}

// recv returns the next record; what was sent before done was closed still arrives.
func (d *direction) recv(until time.Time, done, poke <-chan struct{}) (int, []byte, error) {
	if d.last != nil {
		select {
		case d.free <- d.last:
		default:
		}
		d.last = nil
	}
	select {
	case p := <-d.full:
		return d.received(p)
	default:
	}
	expired := arm(&d.timer, until)
	defer disarm(d.timer)
	select {
	case p := <-d.full:
		return d.received(p)
	case <-poke:
		return 0, nil, ErrInterrupted
	case <-expired:
		return 0, nil, ErrTimeout
	case <-done:
	}
	select {
	case p := <-d.full:
		return d.received(p)
	default:
		return 0, nil, ErrClosed
	}
}

func (d *direction) received(p parcel) (int, []byte, error) {
	d.last = p.record
	return p.rank, p.record, nil
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

// Send implements Hub. After a timeout, ranks that have room may have got the record.
func (h *pipes) Send(record []byte, until time.Time) error {
	sent, slow := 0, []int(nil)
	for rank, p := range h.ports {
		switch p.down.send(0, record, until, p.done, &h.timer) {
		case nil:
			sent++
		case ErrTimeout:
			slow = append(slow, rank)
		}
	}
	switch {
	case slow != nil:
		return &SlowError{Ranks: slow}
	case sent == 0:
		return ErrClosed
	}
	return nil
}

// Recv implements Hub.
func (h *pipes) Recv(until time.Time) (int, []byte, error) {
	return h.up.recv(until, h.alone, h.poke)
}

// Interrupt implements Hub.
func (h *pipes) Interrupt() {
	select {
	case h.poke <- struct{}{}:
	default:
	}
}

// Drop implements Hub.
func (h *pipes) Drop(ranks ...int) {
	for _, rank := range ranks {
		h.ports[rank].Close()
	}
}

// Status implements Hub.
func (h *pipes) Status(rank int) (status.Snapshot, time.Duration) {
	return h.ports[rank].status.Snapshot(), 0
}

// Close implements Hub.
func (h *pipes) Close() error {
	for _, p := range h.ports {
		p.Close()
	}
	return nil
}

// Recv implements Port.
func (p *pipe) Recv(until time.Time) ([]byte, error) {
	_, record, err := p.down.recv(until, p.done, nil)
	return record, err
}

// Send implements Port.
func (p *pipe) Send(record []byte, until time.Time) error {
	return p.hub.up.send(p.rank, record, until, p.done, &p.timer)
}

// Status implements Port.
func (p *pipe) Status() *status.Rank { return &p.status }

// Close implements Port.
func (p *pipe) Close() error {
	p.once.Do(func() {
		close(p.done)
		if p.hub.open.Add(-1) == 0 {
			close(p.hub.alone)
		}
	})
	return nil
}

var (
	_ Hub  = (*pipes)(nil)
	_ Port = (*pipe)(nil)
)
