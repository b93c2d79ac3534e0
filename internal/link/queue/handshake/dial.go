package handshake

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// unixBinding binds a proof to a unix socket: the kernel connects its ends, no third party can
// stand between them.
var unixBinding = []byte("unix")

// defaultDeadline bounds a handshake whose context or options name no time.
const defaultDeadline = 10 * time.Second

// Dial connects a worker to its driver: over the endpoint's unix socket when that leads to this
// very instance, else over TCP. ctx bounds it all; without a deadline of its own ctx gets ten
// seconds. A refusal is a *Refused; one that is Final comes from the driver itself and is not
// retried over TCP.
func Dial(ctx context.Context, e Endpoint, t Token, id Identity) (*Conn, error) {
	if id.Instance == "" {
		id.Instance = e.Instance
	}
	if err := id.check(); err != nil {
		return nil, fmt.Errorf("dial driver: %w", err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()

	var local error
	if e.Unix != "" {
		half := ctx
		if e.TCP != "" {
			// A process that holds the name on this host must not use up the time of the way over
			// TCP.
			end, _ := ctx.Deadline()
			short, cancel := context.WithDeadline(ctx, time.Now().Add(time.Until(end)/2))
			defer cancel()
			half = short
		}
		c, err := dialUnix(half, e, t, id)
		if err == nil {
			return c, nil
		}
		local = fmt.Errorf("unix socket @%s: %w", e.Unix, err)
		var r *Refused
		if e.TCP == "" || errors.As(err, &r) && r.Final {
			return nil, local
		}
	}
	if e.TCP == "" {
		return nil, fmt.Errorf("dial driver: endpoint has neither a unix socket nor a TCP address")
	}
	c, err := dialTCP(ctx, e, t, id)
	if err != nil {
		err = fmt.Errorf("driver at %s: %w", e.TCP, err)
		if local != nil {
			// As text only: errors.Is asks for the cause of the last way. On another host there
			// is no listener at the unix socket.
			err = fmt.Errorf("%w; %v", err, local)
		}
		return nil, err
	}
	return c, nil
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, defaultDeadline)
}

func dialUnix(ctx context.Context, e Endpoint, t Token, id Identity) (*Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", "@"+e.Unix)
	if err != nil {
		return nil, timeoutOf(ctx, err)
	}
	return Client(ctx, c, t, id)
}

func dialTCP(ctx context.Context, e Endpoint, t Token, id Identity) (*Conn, error) {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", e.TCP)
	if err != nil {
		return nil, timeoutOf(ctx, err)
	}
	stop := guard(ctx, raw)
	defer stop()
	c := tls.Client(raw, ClientTLS(e))
	binding, err := secure(c)
	if err != nil {
		raw.Close()
		return nil, timeoutOf(ctx, err)
	}
	return finish(ctx, c, raw, binding, t, id)
}

// Client runs the worker's half over a stream that is already connected, such as one end of a
// socket pair that a child inherited. It closes c when it fails. A stream that is not a unix socket
// is neither encrypted nor bound to the proof: use Dial.
func Client(ctx context.Context, c net.Conn, t Token, id Identity) (*Conn, error) {
	if err := id.check(); err != nil {
		c.Close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	stop := guard(ctx, c)
	defer stop()
	var binding []byte
	if u, ok := c.(*net.UnixConn); ok {
		binding = unixBinding
		if err := checkUser(u); err != nil {
			c.Close()
			return nil, err
		}
	}
	return finish(ctx, c, c, binding, t, id)
}

// finish asks over c, which lies on raw, and clears the deadline.
func finish(ctx context.Context, c, raw net.Conn, binding []byte, t Token,
	id Identity) (*Conn, error) {
	session, err := join(c, binding, t, id)
	if err != nil {
		raw.Close()
		return nil, timeoutOf(ctx, err)
	}
	_, local := c.(*net.UnixConn)
	return &Conn{Conn: c, Peer: Identity{Instance: id.Instance}, Session: session,
		Local: local}, nil
}

// guard makes reads and writes of c end with ctx; the returned function ends the guard and leaves
// no deadline.
func guard(ctx context.Context, c net.Conn) (stop func()) {
	if end, ok := ctx.Deadline(); ok {
		c.SetDeadline(end)
	}
	done := make(chan struct{})
	remove := context.AfterFunc(ctx, func() {
		c.SetDeadline(time.Unix(1, 0))
		close(done)
	})
	return func() {
		if !remove() {
			<-done
		}
		c.SetDeadline(time.Time{})
	}
}

// timeoutOf names a failure by its context's end, since the connection only knows that a deadline
// has passed.
func timeoutOf(ctx context.Context, err error) error {
	var r *Refused
	if cause := ctx.Err(); cause == nil || errors.As(err, &r) && r.Reason != Timeout {
		return named(err)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return refuse(Timeout, "%v", err)
}
