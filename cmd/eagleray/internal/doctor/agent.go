package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// order is one thing that a node is asked to do; one without content asks for the time.
type order struct {
	Facts  *Question  `json:"facts,omitempty"`
	Listen *listening `json:"listen,omitempty"`
	// Dial are the other nodes, by number.
	Dial map[int]handshake.Endpoint `json:"dial,omitempty"`
	// End ends the survey at this node; Group says that ranks are started next.
	End   bool `json:"end,omitempty"`
	Group bool `json:"group,omitempty"`
}

// listening says where a node is to listen for the others: at the address that they know it by.
type listening struct {
	Nodes int `json:"nodes"`
	// Ports is the range of --queue-port-range; zero is any.
	Ports [2]int `json:"ports"`
}

// reply answers an order.
type reply struct {
	// Clock is the node's time in nanoseconds.
	Clock    int64               `json:"clock"`
	Facts    *Facts              `json:"facts,omitempty"`
	Endpoint *handshake.Endpoint `json:"endpoint,omitempty"`
	Dialled  map[int]Contact     `json:"dialled,omitempty"`
	Error    string              `json:"error,omitempty"`
}

// Contact is one node's attempt to reach another.
type Contact struct {
	// Trip is the time of a round trip, Error why there was none.
	Trip  time.Duration `json:"trip"`
	Error string        `json:"error,omitempty"`
}

// surveyed is what all connections of a survey call themselves.
const surveyed handshake.Instance = "eagleray-doctor"

// The bounds of one attempt: its time, and the bytes that go there and back, more than a packet
// holds, so that one that is dropped for its size is noticed.
const (
	contactTimeout = 5 * time.Second
	contactBytes   = 64 << 10
)

// agent is a node's side of a survey.
type agent struct {
	// node is its number, address where the others reach it.
	node    int
	address string
	version string
	token   handshake.Token
	machine Machine

	listener *handshake.Listener
	serving  sync.WaitGroup
	quit     context.CancelFunc
}

// ask carries out an order.
func (a *agent) ask(ctx context.Context, o order) (reply, error) {
	var r reply
	switch {
	case o.Facts != nil:
		f := a.machine.facts(ctx, a.version, a.address, *o.Facts)
		r.Facts = &f
	case o.Listen != nil:
		e, err := a.listen(*o.Listen)
		if err != nil {
			r.Error = err.Error()
		}
		r.Endpoint = e
	case o.Dial != nil:
		r.Dialled = a.dial(ctx, o.Dial)
	}
	r.Clock = time.Now().UnixNano()
	return r, nil
}

// listen admits the other nodes to this one as ranks would connect: over TLS, by the secret.
func (a *agent) listen(l listening) (*handshake.Endpoint, error) {
	if a.listener == nil {
		listener, err := handshake.Listen(handshake.Options{Instance: surveyed, Token: a.token,
			World: l.Nodes, Shared: true, TCP: a.address, PortRange: l.Ports})
		if err != nil {
			return nil, err
		}
		a.serveOn(listener)
	}
	e := a.listener.Endpoint()
	return &e, nil
}

// serveOn sends back what comes to a listener, which it closes at the end.
func (a *agent) serveOn(listener *handshake.Listener) {
	var ctx context.Context
	ctx, a.quit = context.WithCancel(context.Background())
	a.listener = listener
	a.serving.Go(func() {
		for {
			conn, err := listener.Accept(ctx)
			if err != nil {
				return
			}
			a.serving.Go(func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(contactTimeout))
				// Who dialled sees the error, too.
				_, _ = io.CopyN(conn, conn, 1+contactBytes)
			})
		}
	})
}

// end undoes listen.
func (a *agent) end() {
	if a.listener == nil {
		return
	}
	a.quit()
	a.listener.Close()
	a.serving.Wait()
	a.listener = nil
}

// dial reaches every other node, all at once.
func (a *agent) dial(ctx context.Context, others map[int]handshake.Endpoint) map[int]Contact {
	all := make(map[int]Contact, len(others))
	var mu sync.Mutex
	var dialling sync.WaitGroup
	for node, e := range others {
		dialling.Go(func() {
			var c Contact
			trip, err := a.contact(ctx, e)
			if c.Trip = trip; err != nil {
				c.Error = reason(err)
			}
			mu.Lock()
			all[node] = c
			mu.Unlock()
		})
	}
	dialling.Wait()
	return all
}

// contact reaches one node and takes the time of a byte, there and back; then more goes.
func (a *agent) contact(ctx context.Context, e handshake.Endpoint) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, contactTimeout)
	defer cancel()
	conn, err := handshake.Dial(ctx, e, a.token, handshake.Identity{Rank: a.node, PID: os.Getpid()})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(contactTimeout))
	data := make([]byte, contactBytes)
	started := time.Now()
	if err := swap(conn, data[:1]); err != nil {
		return 0, err
	}
	trip := time.Since(started)
	if err := swap(conn, data); err != nil {
		return 0, fmt.Errorf("a byte comes back, %d bytes do not (the size of packets): %w",
			contactBytes, err)
	}
	return trip, nil
}

func swap(conn net.Conn, data []byte) error {
	if _, err := conn.Write(data); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, data)
	return err
}

// reason is an error in few words: what was dialled is known.
func reason(err error) string {
	var late net.Error
	var errno syscall.Errno
	switch {
	case errors.Is(err, handshake.Timeout), errors.As(err, &late) && late.Timeout():
		return fmt.Sprintf("no answer within %v", contactTimeout)
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}

// serve carries out the orders that come over a connection until the survey ends, and says whether
// ranks are started next.
func (a *agent) serve(ctx context.Context, conn net.Conn) (group bool, err error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer a.end()
	for {
		var o order
		if err := join.Receive(conn, &o); err != nil {
			return false, fmt.Errorf("the doctor at %s is gone: %w", conn.RemoteAddr(), err)
		}
		if o.End {
			return o.Group, nil
		}
		r, err := a.ask(ctx, o)
		if err == nil {
			err = join.Send(conn, r)
		}
		if err != nil {
			return false, err
		}
	}
}

// remote is a node at the other end of a connection.
type remote struct{ conn net.Conn }

// ask has a node carry out an order.
func (r *remote) ask(ctx context.Context, o order) (reply, error) {
	stop := context.AfterFunc(ctx, func() { _ = r.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var answer reply
	err := join.Send(r.conn, o)
	if err == nil && !o.End {
		err = join.Receive(r.conn, &answer)
	}
	if ctx.Err() != nil {
		err = fmt.Errorf("no answer: %w", ctx.Err())
	}
	return answer, err
}

func discard(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}
