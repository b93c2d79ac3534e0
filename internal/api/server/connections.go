package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// mostConnections is how many connections may be open where descriptors allow more.
	mostConnections = 16384
	// spareConnections is how many may be open beyond, for /health and other public routes.
	spareConnections = 16
	// keptDescriptors are left for files, and for ranks.
	keptDescriptors = 16
	// fewConnections is a limit that an operator should know of.
	fewConnections = 1024
	// idleLongEnough is how long a connection has had no request before it is closed for others.
	idleLongEnough = time.Second
)

// Connections bounds how many connections of a listener are open at once, so that descriptors do
// not run out. When as many are open, those that have no request make room, the oldest first. When
// all have one, a few more are accepted for the public routes only: /health still answers.
type Connections struct {
	net.Listener
	most, spare int

	mu      sync.Mutex
	open    map[*connection]struct{}
	changed chan struct{} // closed when one was closed
	closed  chan struct{}
	once    sync.Once
	// draining says that each answer is the last one of its connection.
	draining atomic.Bool
}

// connection is one of them.
type connection struct {
	net.Conn
	of *Connections
	// surplus ones answer public routes only, once.
	surplus bool
	// busy says that a request is answered, since is when that changed; both under of.mu.
	busy  bool
	since time.Time
	// used says that it has had a request.
	used bool
	// answered surplus ones only wait for their clients to read: the next may have their place.
	answered bool
}

// Limit bounds the connections of a listener, by --max-connections or by the limit of descriptors.
// It logs a warning when that is low.
func (s *Server) Limit(l net.Listener) *Connections {
	most, spare := s.opt.Config.MaxConnections, spareConnections
	if most == 0 {
		most, spare = roomForConnections(openFiles())
		if most < fewConnections {
			s.log.Warn("few connections can be open at once: raise the limit of open files "+
				"(ulimit -n)", "connections", most)
		}
	}
	return limit(l, most, spare)
}

func limit(l net.Listener, most, spare int) *Connections {
	return &Connections{Listener: l, most: most, spare: spare, open: map[*connection]struct{}{},
		changed: make(chan struct{}), closed: make(chan struct{})}
}

// roomForConnections divides the descriptors that are left.
func roomForConnections(limit, used int) (most, spare int) {
	room := limit - used - min(keptDescriptors, limit/8)
	room = min(room, mostConnections+spareConnections)
	spare = max(1, min(spareConnections, room/4))
	return max(1, room-spare), spare
}

// openFiles is the process's limit of descriptors, and how many it has.
func openFiles() (limit, used int) {
	limit = mostConnections * 2
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err == nil {
		limit = int(min(r.Cur, 1<<30))
	}
	if list, err := os.ReadDir("/proc/self/fd"); err == nil {
		used = len(list)
	}
	return limit, used
}

// Accept implements net.Listener. It waits while there is no room.
func (l *Connections) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: inner, of: l, since: time.Now()}
	for {
		l.mu.Lock()
		admitted, changed := l.admit(c), l.changed
		l.mu.Unlock()
		if admitted {
			return c, nil
		}
		select {
		case <-changed:
		case <-time.After(idleLongEnough / 10):
		case <-l.closed:
			if time.Since(c.since) > idleLongEnough {
				inner.Close()
				return nil, net.ErrClosed
			}
			time.Sleep(idleLongEnough / 100)
		}
	}
}

// unusedLongEnough is how long a connection may be open without a request before it is taken for
// one that will have none.
const unusedLongEnough = 5 * time.Second

// Drain closes the listener, which another process may have too, and returns when every connection
// that was accepted is closed: after the answer to a request, or when it has had none for a while.
// It returns sooner when ctx is over. http.Server.Shutdown does not do: a request that it finds
// when it begins is read, and its connection closed without an answer.
func (l *Connections) Drain(ctx context.Context) {
	l.draining.Store(true)
	_ = l.Close() // a listener that another process has is closed all the same
	for {
		l.mu.Lock()
		for c := range l.open {
			enough := idleLongEnough
			if !c.used {
				enough = unusedLongEnough
			}
			if !c.busy && time.Since(c.since) > enough {
				delete(l.open, c)
				c.Conn.Close()
			}
		}
		left, changed := len(l.open), l.changed
		l.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-changed:
		case <-time.After(idleLongEnough / 10):
		case <-ctx.Done():
			return
		}
	}
}

// admit makes room for a connection, as one of most or else of the spare ones. The caller holds mu.
func (l *Connections) admit(c *connection) bool {
	if len(l.open) >= l.most {
		if idle := l.idlest(); idle != nil {
			delete(l.open, idle)
			idle.Conn.Close()
		}
	}
	if len(l.open) >= l.most+l.spare {
		for o := range l.open {
			if o.answered {
				delete(l.open, o)
				o.Conn.Close()
				break
			}
		}
	}
	c.surplus = len(l.open) >= l.most
	if len(l.open) >= l.most+l.spare {
		return false
	}
	l.open[c] = struct{}{}
	return true
}

// notify wakes those who wait for room. The caller holds mu.
func (l *Connections) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// idlest is the connection that has had no request for the longest, nil when none has long enough.
func (l *Connections) idlest() *connection {
	var found *connection
	for c := range l.open {
		if !c.busy && (found == nil || c.since.Before(found.since)) {
			found = c
		}
	}
	if found == nil || time.Since(found.since) < idleLongEnough {
		return nil
	}
	return found
}

// Close implements net.Listener.
func (l *Connections) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// Close implements net.Conn.
func (c *connection) Close() error {
	l := c.of
	l.mu.Lock()
	if _, open := l.open[c]; open {
		delete(l.open, c)
		l.notify()
	}
	l.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite lets net/http end an answer before the connection.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// set notes that a request begins or ends.
func (c *connection) set(busy bool) {
	now := time.Now()
	c.of.mu.Lock()
	c.busy, c.since, c.used = busy, now, true
	if !busy && c.surplus {
		c.answered = true
		c.of.notify()
	}
	c.of.mu.Unlock()
}

type connectionKey struct{}

// withConnection lets a request's context find its connection.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	if limited, ok := c.(*connection); ok {
		return context.WithValue(ctx, connectionKey{}, limited)
	}
	return ctx
}

func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}
