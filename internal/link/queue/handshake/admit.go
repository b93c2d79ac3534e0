package handshake

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"
)

// handle runs one handshake and delivers the worker, if it is one.
func (l *Listener) handle(raw net.Conn) {
	s := l.pending.add(raw)
	if s == nil {
		raw.Close()
		return
	}
	deadline := time.Now().Add(l.o.Deadline)
	raw.SetDeadline(deadline)
	c, id, fresh, err := l.shake(raw)
	if err != nil {
		drain(raw, err, deadline)
	}
	if l.pending.done(s) {
		err = refuse(Crowded, "more than %d at once", l.o.MaxPending)
	}
	if err == nil && l.deliver(c) {
		return
	}
	raw.Close()
	if fresh {
		// The worker was not accepted: its rank is free for the next attempt.
		l.ranks.release(id.Rank, c.Session)
	}
	if err != nil && !l.closed() {
		l.report(raw.RemoteAddr(), id, err)
	}
}

// shake secures and authenticates a connection. fresh says that c's rank was registered by this
// call, even when the welcome could not be written.
func (l *Listener) shake(raw net.Conn) (c *Conn, id Identity, fresh bool, err error) {
	conn, binding := raw, unixBinding
	u, local := raw.(*net.UnixConn)
	if local {
		if err := checkUser(u); err != nil {
			return nil, id, false, err
		}
	} else {
		t := tls.Server(raw, l.config)
		if binding, err = secure(t); err != nil {
			return nil, id, false, err
		}
		conn = t
	}
	c = &Conn{Conn: conn, Local: local}
	g := &gate{instance: l.o.Instance, token: l.o.Token, world: l.o.World, binary: l.o.Binary,
		register: func(id Identity) (Session, error) {
			var err error
			if l.o.Shared && id.Resume == nil {
				c.Session = newSession()
				return c.Session, nil
			}
			c.Session, fresh, err = l.ranks.register(id, c)
			return c.Session, err
		}}
	c.Peer, _, err = serve(conn, binding, g)
	return c, c.Peer, fresh, err
}

// deliver hands a worker to Accept, and says whether it could.
func (l *Listener) deliver(c *Conn) bool {
	c.SetDeadline(time.Time{})
	timer := time.NewTimer(l.o.Deadline)
	defer timer.Stop()
	select {
	case l.ready <- c:
		return true
	case <-timer.C:
	case <-l.closing:
	}
	return false
}

func (l *Listener) closed() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// report counts and logs a refused peer.
func (l *Listener) report(from net.Addr, id Identity, err error) {
	l.refused.Add(1)
	ok, suppressed := l.faucet.open(time.Now())
	if !ok {
		return
	}
	address := from.String()
	if from.Network() == "unix" {
		address = "unix"
	}
	args := []any{"peer", address, "error", err.Error()}
	var r *Refused
	if errors.As(err, &r) {
		args = append(args, "reason", r.Reason.String())
	}
	if id.Instance != "" {
		args = append(args, "claimed_rank", id.Rank, "claimed_pid", id.PID)
	}
	if suppressed > 0 {
		args = append(args, "lines_suppressed", suppressed)
	}
	l.o.Log.Warn("refused a peer", args...)
}

// drain lets a refusal that was written reach its reader: to close a socket with unread bytes
// resets it, and the peer would not learn why it was refused.
func drain(raw net.Conn, err error, deadline time.Time) {
	const patience, unread = time.Second, 64 << 10
	var r *Refused
	if !errors.As(err, &r) {
		return
	}
	switch r.Reason {
	case Timeout, Insecure, Foreign:
		return
	}
	half, ok := raw.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if soon := time.Now().Add(patience); soon.Before(deadline) {
		raw.SetDeadline(soon)
	}
	io.Copy(io.Discard, io.LimitReader(raw, unread))
}

// abort closes a connection at once. To close TLS properly writes an alert, and waits for it
// seconds.
func abort(c net.Conn) { socketOf(c).Close() }
