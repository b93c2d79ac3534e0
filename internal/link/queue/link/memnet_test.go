package link

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// memnet is an in-memory connection with the vices of a real one: delay, short reads, small
// buffers, a cut at any byte, and a network that swallows everything. It works in real time and in
// a synctest bubble.
type memnet struct {
	mu     sync.Mutex
	change chan struct{} // closed and replaced at every change
	dirs   [2]memdir
	ends   [2]*memend
	rng    *rand.Rand
	opt    memopt
	hole   bool
}

type memopt struct {
	delay  time.Duration
	buffer int // bytes a direction holds before writes block
	chunk  int // most bytes per read, 0 for no limit
	slow   time.Duration
	// cutAt ends the connection when so many bytes were written, both directions together; 0 for
	// never.
	cutAt int
	// drop makes a cut swallow what was written and not read, as a lost host does.
	drop bool
}

type memdir struct {
	segments []segment
	size     int
	closed   bool // by the writer
}

type segment struct {
	at time.Time
	b  []byte
}

type memend struct {
	n           *memnet
	side        int
	closed      bool
	read, write time.Time
}

func newMemnet(o memopt, seed uint64) (*memnet, net.Conn, net.Conn) {
	if o.buffer == 0 {
		o.buffer = 256 << 10
	}
	n := &memnet{change: make(chan struct{}), opt: o, rng: rand.New(rand.NewPCG(seed, 7))}
	if o.cutAt == 0 {
		n.opt.cutAt = -1
	}
	n.ends = [2]*memend{{n: n, side: 0}, {n: n, side: 1}}
	return n, n.ends[0], n.ends[1]
}

func (n *memnet) changed() {
	close(n.change)
	n.change = make(chan struct{})
}

// cut ends the connection as a reset does.
func (n *memnet) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opt.cutAt = 0
	if n.opt.drop {
		n.dirs = [2]memdir{}
	}
	n.changed()
}

// swallow makes the network silent: writes go nowhere, and neither end notices.
func (n *memnet) swallow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.hole = true
	n.changed()
}

func (n *memnet) isCut() bool { return n.opt.cutAt == 0 }

// wait releases the lock until something changes or a time has come.
func (n *memnet) wait(until ...time.Time) {
	c := n.change
	n.mu.Unlock()
	defer n.mu.Lock()
	var first time.Time
	for _, u := range until {
		if !u.IsZero() && (first.IsZero() || u.Before(first)) {
			first = u
		}
	}
	if first.IsZero() {
		<-c
		return
	}
	t := time.NewTimer(time.Until(first))
	defer t.Stop()
	select {
	case <-c:
	case <-t.C:
	}
}

func past(t time.Time) bool { return !t.IsZero() && !time.Now().Before(t) }

func (e *memend) Read(p []byte) (int, error) {
	n := e.n
	n.mu.Lock()
	defer n.mu.Unlock()
	d := &n.dirs[1-e.side]
	for {
		switch {
		case e.closed:
			return 0, net.ErrClosed
		case past(e.read):
			return 0, os.ErrDeadlineExceeded
		case n.hole:
			n.wait(e.read)
			continue
		}
		var ready time.Time
		if len(d.segments) > 0 {
			s := &d.segments[0]
			ready = s.at
			if !time.Now().Before(ready) {
				m := min(len(p), len(s.b))
				if n.opt.chunk > 0 {
					m = min(m, 1+n.rng.IntN(n.opt.chunk))
				}
				copy(p, s.b[:m])
				s.b = s.b[m:]
				if len(s.b) == 0 {
					d.segments = d.segments[1:]
				}
				d.size -= m
				n.changed()
				return m, nil
			}
		} else if n.isCut() {
			return 0, syscall.ECONNRESET
		} else if d.closed {
			return 0, io.EOF
		}
		n.wait(ready, e.read)
	}
}

func (e *memend) Write(p []byte) (int, error) {
	n := e.n
	n.mu.Lock()
	defer n.mu.Unlock()
	d := &n.dirs[e.side]
	done := 0
	for {
		switch {
		case e.closed:
			return done, net.ErrClosed
		case !n.hole && (n.isCut() || n.ends[1-e.side].closed):
			return done, syscall.EPIPE
		case past(e.write):
			return done, os.ErrDeadlineExceeded
		case len(p) == 0:
			return done, nil
		}
		free := n.opt.buffer - d.size
		if free <= 0 {
			n.wait(e.write)
			continue
		}
		m := min(free, len(p))
		if n.opt.cutAt > 0 {
			m = min(m, n.opt.cutAt)
			n.opt.cutAt -= m
			if n.opt.cutAt == 0 && n.opt.drop {
				n.dirs = [2]memdir{}
				n.changed()
				continue
			}
		}
		d.segments = append(d.segments,
			segment{time.Now().Add(n.opt.delay), append([]byte(nil), p[:m]...)})
		d.size += m
		done += m
		p = p[m:]
		n.changed()
		if n.opt.slow > 0 {
			n.wait(time.Now().Add(n.opt.slow))
		}
	}
}

func (e *memend) Close() error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	e.closed = true
	e.n.dirs[e.side].closed = true
	e.n.changed()
	return nil
}

func (e *memend) SetDeadline(t time.Time) error {
	e.SetReadDeadline(t)
	return e.SetWriteDeadline(t)
}

func (e *memend) SetReadDeadline(t time.Time) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	e.read = t
	e.n.changed()
	return nil
}

func (e *memend) SetWriteDeadline(t time.Time) error {
	e.n.mu.Lock()
	defer e.n.mu.Unlock()
	e.write = t
	e.n.changed()
	return nil
}

func (e *memend) LocalAddr() net.Addr  { return memaddr{} }
func (e *memend) RemoteAddr() net.Addr { return memaddr{} }

type memaddr struct{}

func (memaddr) Network() string { return "memory" }
func (memaddr) String() string  { return "memory" }
