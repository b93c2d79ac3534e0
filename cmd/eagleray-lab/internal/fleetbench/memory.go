package fleetbench

import (
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
)

// conn is one end of a connection in memory, whose bytes arrive a latency after they were written.
// One goroutine at a time reads an end. Writes never wait: what uses it limits what is on its way.
type conn struct {
	in, out *stream
	latency time.Duration
}

// newConns returns the two ends.
func newConns(latency time.Duration) (*conn, *conn) {
	a, b := newStream(), newStream()
	return &conn{in: a, out: b, latency: latency}, &conn{in: b, out: a, latency: latency}
}

// stream is one direction.
type stream struct {
	mu       sync.Mutex
	buf      []byte // written and not read
	marks    []mark // where in it each write ends, and when that is due
	closed   bool   // by either end
	deadline time.Time
	changed  chan struct{} // has a value when a reader that waits must look again
}

type mark struct {
	end int
	due time.Duration
}

func newStream() *stream { return &stream{changed: make(chan struct{}, 1)} }

func (s *stream) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Read returns bytes that are due, and waits for some.
func (c *conn) Read(p []byte) (int, error) {
	s := c.in
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if !s.deadline.IsZero() && !time.Now().Before(s.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		wait := time.Duration(-1)
		if len(s.marks) > 0 {
			at := now()
			due := 0
			for _, m := range s.marks {
				if m.due > at {
					break
				}
				due = m.end
			}
			if due > 0 {
				n := copy(p, s.buf[:due])
				s.discard(n)
				return n, nil
			}
			wait = s.marks[0].due - at
		} else if s.closed {
			return 0, io.EOF
		}
		s.await(wait)
	}
}

// discard drops n bytes that were read.
func (s *stream) discard(n int) {
	s.buf = s.buf[:copy(s.buf, s.buf[n:])]
	gone := 0
	for i := range s.marks {
		s.marks[i].end -= n
		if s.marks[i].end == 0 {
			gone = i + 1
		}
	}
	s.marks = slices.Delete(s.marks, 0, gone)
}

// coarse is below what a timer of the runtime, whose poller counts in milliseconds, can be asked
// for: shorter waits yield the processor until it is time.
const coarse = 2 * time.Millisecond

// await releases the lock until something has changed or wait is over; a negative one has no end.
func (s *stream) await(wait time.Duration) {
	deadline := s.deadline
	s.mu.Unlock()
	defer s.mu.Lock()
	if wait >= 0 && wait < coarse {
		runtime.Gosched()
		return
	}
	if !deadline.IsZero() {
		if left := max(0, time.Until(deadline)); wait < 0 || left < wait {
			wait = left
		}
	}
	if wait < 0 {
		<-s.changed
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-s.changed:
	case <-t.C:
	}
}

// Write sends bytes on their way.
func (c *conn) Write(p []byte) (int, error) {
	s := c.out
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, net.ErrClosed
	}
	s.buf = append(s.buf, p...)
	s.marks = append(s.marks, mark{end: len(s.buf), due: now() + c.latency})
	s.wake()
	return len(p), nil
}

// Close ends both directions: the other end reads what was written, then the end.
func (c *conn) Close() error {
	for _, s := range []*stream{c.in, c.out} {
		s.mu.Lock()
		s.closed = true
		s.wake()
		s.mu.Unlock()
	}
	return nil
}

// SetReadDeadline ends reads from then on; the zero time is never.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.deadline = t
	c.in.wake()
	return nil
}

// SetWriteDeadline does nothing: writes do not wait.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline is SetReadDeadline.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *conn) LocalAddr() net.Addr  { return address{} }
func (c *conn) RemoteAddr() net.Addr { return address{} }

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "memory" }
