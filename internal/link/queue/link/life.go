package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue/handshake"
)

// greet handles the peer's hello: frames that the peer has received are freed, the others are sent
// again. l.mu is held.
func (l *Link) greet(h header, g greeting) error {
	if g.session != l.session {
		return violation(ErrSession, "hello of session %s, this is %s", g.session, l.session)
	}
	if g.window < chunkSize {
		return violation(ErrWindow, "peer's window of %d bytes", g.window)
	}
	if err := l.acked(h.ack); err != nil {
		return err
	}
	again := uint64(0)
	if l.gen > 1 {
		var err error
		if again, err = l.out.rewind(g.received); err != nil {
			return err
		}
		l.o.Log.Info("link resumed", "session", l.session.String(), "frames_again", again,
			"peer_received", g.received)
	} else if g.received > l.out.offered {
		return violation(ErrAck, "peer has received up to frame %d; sent is %d", g.received,
			l.out.offered)
	}
	l.stats.Retransmits += again
	l.window = min(l.o.Window, int(min(g.window, 1<<30)))
	l.greeted, l.graceEnd, l.attempts = true, time.Time{}, 0
	if l.waiting {
		signal(l.space)
	}
	signal(l.kick)
	return nil
}

// cut closes connection gen and starts the grace time. l.mu is held.
func (l *Link) cut(gen uint64, err error) {
	if gen != l.gen || l.state != Up {
		return
	}
	abort(l.conn)
	switch {
	case l.closing && (l.redial == nil || l.closedSent || l.out.bytes == 0):
		l.shutDown(errLocalClose)
		return
	case l.o.Grace < 0:
		l.shutDown(fmt.Errorf("%w: %w", ErrCut, err))
		return
	}
	l.state, l.cause, l.broken = Cut, err, nil
	if l.graceEnd.IsZero() {
		l.graceEnd = time.Now().Add(l.o.Grace)
	}
	l.o.Log.Warn("link cut", "session", l.session.String(), "cause", err.Error(), "grace",
		l.o.Grace)
	signal(l.changed)
	if l.redial != nil {
		end, attempt := l.graceEnd, l.attempts
		l.attempts++
		r := handshake.Resume{Session: l.session, Received: l.received}
		l.running.Go(func() { l.dial(end, attempt, r, err) })
	}
}

// dial replaces a connection that was cut by cause. attempt counts earlier ones without success.
func (l *Link) dial(end time.Time, attempt int, r handshake.Resume, cause error) {
	const first, most = 10 * time.Millisecond, 250 * time.Millisecond
	// A driver's listener is open as long as the driver lives: when its host keeps refusing the
	// connection, the driver has ended.
	const goneAfter = 300 * time.Millisecond
	var refusedSince time.Time
	ctx, cancel := context.WithDeadline(l.ctx, end)
	defer cancel()
	for ; ; attempt++ {
		if attempt > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(min(first<<min(attempt-1, 10), most)):
			}
		}
		c, err := l.redial(ctx, r)
		if err == nil {
			l.install(c)
			return
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			refusedSince = time.Time{}
		} else if refusedSince.IsZero() {
			refusedSince = time.Now()
		}
		var refused *handshake.Refused
		if errors.As(err, &refused) && refused.Final || !refusedSince.IsZero() &&
			time.Since(refusedSince) >= goneAfter {
			l.mu.Lock()
			l.shutDown(fmt.Errorf("%w: %w: %w", ErrCut, cause, err))
			l.mu.Unlock()
			return
		}
		if ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		l.cause = fmt.Errorf("%w (dialled again: %w)", cause, err)
		l.mu.Unlock()
	}
}

// Resume replaces the connection of the driver's end by c, which the worker has dialled, whether or
// not this end has noticed the cut. c belongs to the link, and is closed when an error is returned.
func (l *Link) Resume(c net.Conn, r handshake.Resume) error {
	if r.Session != l.session {
		abort(c)
		return fmt.Errorf("link: resume: %w: %s, this is %s", ErrSession, r.Session, l.session)
	}
	l.mu.Lock()
	acked, offered := l.out.acked, l.out.offered
	l.mu.Unlock()
	if r.Received < acked || r.Received > offered {
		abort(c)
		return fmt.Errorf("link: resume: %w: peer has received up to frame %d; acknowledged is "+
			"%d, sent %d", ErrAck, r.Received, acked, offered)
	}
	return l.install(c)
}

// install makes c the link's connection.
func (l *Link) install(c net.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.state == Down:
		abort(c)
		return l.err
	case l.closing && l.redial == nil:
		abort(c)
		return &endError{errLocalClose}
	case l.o.Grace < 0:
		abort(c)
		return fmt.Errorf("link: resume: this link is not resumed")
	}
	if l.state == Up {
		abort(l.conn)
	}
	if l.graceEnd.IsZero() {
		l.graceEnd = time.Now().Add(l.o.Grace)
	}
	l.conn, l.state, l.greeted, l.broken = c, Up, false, nil
	l.gen++
	l.readDeadline = time.Time{}
	l.due = due{hello: true}
	l.beat.pending = false
	l.stats.Resumes++
	l.heard.Add(1)
	if l.reader == yielding {
		l.interrupt()
	}
	signal(l.changed)
	signal(l.takeover)
	signal(l.kick)
	return nil
}

// shutDown ends the link; the first cause holds. l.mu is held.
func (l *Link) shutDown(cause error) {
	if l.state == Down {
		return
	}
	l.state = Down
	l.err = &endError{cause}
	abort(l.conn)
	l.cancel()
	close(l.down)
	signal(l.changed)
	if errors.Is(cause, errLocalClose) {
		return
	}
	level := slog.LevelWarn
	if closed := (*PeerClosed)(nil); errors.As(cause, &closed) {
		level = slog.LevelDebug // in order; whether it was expected, others know
	}
	l.o.Log.Log(context.Background(), level, "link down", "session", l.session.String(), "cause",
		cause.Error())
}

// Close sends what is queued and the reason, ends the link and waits for its goroutines. It takes a
// second at most, and a tenth of one when the peer is healthy. Closing a link that is down only
// waits.
func (l *Link) Close(reason string) error {
	const flushing, lingering = time.Second, 100 * time.Millisecond
	l.mu.Lock()
	if l.state == Cut && (l.redial == nil || l.out.bytes == 0) {
		l.shutDown(errLocalClose)
	}
	if !l.closing { // the first reason holds
		l.closing, l.reason = true, reason
	}
	signal(l.space)
	signal(l.kick)
	l.mu.Unlock()

	timer := time.NewTimer(flushing)
	defer timer.Stop()
	select {
	case <-l.down:
	case <-timer.C:
	case <-l.closeWritten:
		// The peer ends the connection when it has read the reason. Until then this end must read
		// here: unread bytes would make the kernel reset the connection, and what is under way to
		// the peer would be lost.
		signal(l.takeover)
		timer.Reset(lingering)
		select {
		case <-l.down:
		case <-timer.C:
		}
	}
	l.mu.Lock()
	l.shutDown(errLocalClose)
	l.mu.Unlock()
	l.running.Wait()
	return nil
}

// pump reads the connection while no Recv does: after idleDelay without Recv, while Send waits for
// acknowledgements, after a failed write, and for the hello of a new connection.
func (l *Link) pump() {
	for {
		select {
		case <-l.down:
			return
		case <-l.takeover:
		}
		l.mu.Lock()
		if l.reader == noReader && l.state == Up {
			l.reader = inPump
			l.pumping()
			l.reader = noReader
			signal(l.readerFree)
		}
		l.mu.Unlock()
	}
}

// pumping reads frames into the inbox until Recv is called or the connection ends. l.mu is held.
func (l *Link) pumping() {
	if l.viewed {
		// The caller of Recv still looks at the buffer: go on in the other one.
		rest := l.buf.b[l.buf.from:l.buf.to]
		if len(l.spare) < len(l.buf.b) {
			l.spare = make([]byte, len(l.buf.b))
		}
		n := copy(l.spare, rest)
		l.buf, l.spare = inbuf{b: l.spare, to: n}, l.buf.b
		l.viewed = false
	}
	for l.state == Up {
		h, payload, ok, err := l.parse()
		switch {
		case err != nil:
			l.fatal(err)
			return
		case ok && h.kind == typeData:
			l.inbox.push(h, payload)
			continue
		case ok:
			continue
		}
		if l.reader == yielding {
			return
		}
		// A timeout is Recv's interruption, seen above, or a deadline that the last Recv left
		// behind.
		if err := l.read(time.Time{}); err != nil && l.reader == yielding {
			return
		}
	}
}

// watch is the link's clock: heartbeats, silence, the end of the grace time, the pump's start.
func (l *Link) watch() {
	tick := min(l.o.Heartbeat/4, l.o.Silence/8)
	if l.o.Grace > 0 {
		tick = min(tick, l.o.Grace/8)
	}
	ticker := time.NewTicker(max(tick, time.Millisecond))
	defer ticker.Stop()
	var (
		quiet  = silence{limit: l.o.Silence, tick: tick}
		beat   = time.Now()
		recvs  uint64
		broken error
	)
	quiet.start(beat)
	for {
		select {
		case <-l.down:
			return
		case <-ticker.C:
		}
		now := time.Now()
		l.mu.Lock()
		if silent := quiet.check(now, l.heard.Load()); l.state == Up && silent >= l.o.Silence {
			l.shutDown(fmt.Errorf("%w for %v", ErrSilent, silent.Round(time.Millisecond)))
		}
		if !l.graceEnd.IsZero() && !now.Before(l.graceEnd) {
			l.shutDown(fmt.Errorf("%w and not resumed within %v: %w", ErrCut, l.o.Grace,
				l.whyCut()))
		}
		if l.broken != nil && l.broken == broken {
			l.cut(l.gen, broken)
		}
		broken = l.broken
		if now.Sub(beat) >= l.o.Heartbeat {
			beat = now
			l.beat.status, l.beat.speaks = l.own.Snapshot(), l.speaks.Load()
			l.due.beat = true
			l.out.trim()
			signal(l.kick)
		}
		if l.reader == noReader && l.recvs == recvs {
			signal(l.takeover)
		}
		recvs = l.recvs
		l.mu.Unlock()
	}
}

// whyCut returns the cause of the cut, which a connection that never opened does not have.
func (l *Link) whyCut() error {
	if l.cause != nil {
		return l.cause
	}
	return errors.New("no hello from the peer")
}

// silence measures how long nothing was heard, in time during which this process ran: one that was
// stopped must not blame its peer.
type silence struct {
	limit, tick time.Duration
	heard       uint64
	at, last    time.Time
}

func (s *silence) start(now time.Time) { s.at, s.last = now, now }

// check returns the silence until now, heard being the count of what was heard.
func (s *silence) check(now time.Time, heard uint64) time.Duration {
	if heard != s.heard {
		s.heard, s.at = heard, now
	}
	if missed := now.Sub(s.last) - s.tick; missed > 2*s.tick {
		s.at = s.at.Add(missed)
		if s.at.After(now) {
			s.at = now
		}
	}
	s.last = now
	return now.Sub(s.at)
}
