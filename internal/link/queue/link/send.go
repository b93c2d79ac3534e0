package link

import (
	"fmt"
	"net"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
)

const (
	// inlineMax is how many unacknowledged bytes a connection takes without blocking, whatever the
	// peer does: less than the first send buffer of a TCP connection. Up to there Send writes by
	// itself.
	inlineMax = 32 << 10
	// lockedCopy is the longest payload that is copied with the link locked.
	lockedCopy = 8 << 10
	// ackDelay is how long an acknowledgement waits for a frame to ride on.
	ackDelay = 10 * time.Millisecond
	// idleDelay is how long after that, without a Recv, the pump begins to read.
	idleDelay = 40 * time.Millisecond
)

// Send queues a copy of record for the peer. It returns as soon as the record is in the window,
// where it survives a cut; it does not wait for the peer to receive it. It waits while the window
// is full. After queue.ErrTimeout, when until (not zero) has passed, nothing of the record will be
// delivered. queue.ErrClosed comes with the reason why the link has ended.
func (l *Link) Send(record []byte, until time.Time) error {
	if len(record) > l.o.MaxRecord {
		return fmt.Errorf("link: send %d bytes: %w: at most %d", len(record), ErrTooLong,
			l.o.MaxRecord)
	}
	if err := l.turn(until); err != nil {
		return err
	}
	defer func() { <-l.sending }()

	l.mu.Lock()
	defer l.mu.Unlock()
	for rest, first := record, true; first || len(rest) > 0; first = false {
		n := min(len(rest), maxPayload)
		if err := l.room(headerSize+n, until); err != nil {
			if !first && l.state != Down {
				l.out.append(flagAbort, nil, l.consumed)
				signal(l.kick)
			}
			return err
		}
		flags := uint8(flagMore)
		if n == len(rest) {
			flags = 0
			l.stats.RecordsSent++
		}
		l.queue(flags, rest[:n])
		rest = rest[n:]
		if l.out.bytes > inlineMax || l.writing {
			signal(l.kick)
			continue
		}
		l.flush(inlineMax)
	}
	return nil
}

// queue puts a fragment into the window. A long one is copied with the link unlocked, so that the
// one before is written, and acknowledgements are read, meanwhile. l.mu and the turn are held.
func (l *Link) queue(flags uint8, payload []byte) {
	ack := l.consumed
	c, place := l.out.reserve(flags, len(payload), ack)
	if len(payload) > lockedCopy {
		l.mu.Unlock()
		copy(place, payload)
		l.mu.Lock()
	} else {
		copy(place, payload)
	}
	l.out.commit(c, len(payload))
	if l.out.bytes <= inlineMax && l.consumed == ack {
		l.debt, l.due.ack = 0, false // the frame carries it, and leaves at once
	}
}

// Drop ends all waits of Send for this peer. Queued records may still reach it.
func (l *Link) Drop() {
	l.mu.Lock()
	l.dropped = true
	signal(l.space)
	l.mu.Unlock()
}

// turn waits until no other Send queues its record.
func (l *Link) turn(until time.Time) error {
	select {
	case l.sending <- struct{}{}:
		return nil
	default:
	}
	timer, stop := deadline(until)
	defer stop()
	select {
	case l.sending <- struct{}{}:
		return nil
	case <-timer:
		return queue.ErrTimeout
	case <-l.down:
		return l.Err()
	}
}

// room waits until size more bytes fit the window. l.mu is held, but not while it waits.
func (l *Link) room(size int, until time.Time) error {
	if l.state != Down && !l.closing && !l.dropped && l.out.bytes+size <= l.window {
		return nil
	}
	var timer <-chan time.Time
	for {
		switch {
		case l.state == Down:
			return l.err
		case l.closing || l.dropped:
			return &endError{errLocalClose}
		case l.out.bytes+size <= l.window:
			return nil
		}
		if timer == nil {
			var stop func()
			timer, stop = deadline(until)
			defer stop()
		}
		l.waiting = true
		if l.reader == noReader {
			signal(l.takeover) // the acknowledgements must be read
		}
		l.mu.Unlock()
		expired := false
		select {
		case <-l.space:
		case <-l.down:
		case <-timer:
			expired = true
		}
		l.mu.Lock()
		l.waiting = false
		if expired && l.state != Down && l.out.bytes+size > l.window {
			return queue.ErrTimeout
		}
	}
}

// deadline returns a channel that fires at until, never for a zero time.
func deadline(until time.Time) (<-chan time.Time, func()) {
	if until.IsZero() {
		return nil, func() {}
	}
	t := time.NewTimer(time.Until(until))
	return t.C, func() { t.Stop() }
}

// flush writes what is due, control frames first, until about limit bytes are out or nothing is
// left. l.mu is held, but not during a write. When another caller writes, that one goes on with
// what is here.
func (l *Link) flush(limit int) {
	if l.writing {
		return
	}
	l.writing = true
	for limit > 0 && l.state == Up && l.broken == nil {
		var c *chunk
		b := l.control()
		if len(b) == 0 && l.mayData() {
			c, b = l.out.next()
		}
		if len(b) == 0 {
			if !l.closeDue() {
				break
			}
			b = l.closeFrame()
		}
		conn, gen := l.conn, l.gen
		l.mu.Unlock()
		n, err := conn.Write(b)
		l.mu.Lock()
		if gen != l.gen {
			n = 0 // that connection is history, and all was rewound
		}
		if c != nil {
			l.out.done(c, n)
		}
		l.stats.BytesSent += uint64(n)
		limit -= len(b)
		if l.closedSent {
			signal(l.closeWritten)
		}
		if err != nil && gen == l.gen && l.broken == nil {
			// What the peer sent before it went may still be read: only then the connection is
			// given up.
			l.broken = err
			signal(l.takeover)
		}
	}
	l.writing = false
	if l.state == Up && l.broken == nil &&
		(l.due != due{} || l.mayData() && l.out.pending() || l.closeDue()) {
		signal(l.kick)
	}
}

// mayData says whether data may be written: at once on the first connection, on others when the
// peer has said what it received.
func (l *Link) mayData() bool { return l.greeted || l.gen == 1 }

// closeDue reports whether the close frame may be written: the link is closing and all data is
// written.
func (l *Link) closeDue() bool {
	return l.closing && !l.closedSent && l.mayData() && !l.out.pending()
}

// control encodes the control frames that are due.
func (l *Link) control() []byte {
	if l.due == (due{}) {
		return nil
	}
	b := l.scratch[:0]
	ack := l.consumed
	if l.due.hello {
		b = header{kind: typeHello, length: helloSize, ack: ack}.append(b)
		b = greeting{session: l.session, received: l.received, window: uint32(l.o.Window)}.append(b)
	}
	if l.due.beat {
		p := pulse{sent: time.Since(l.start)}
		if l.beat.pending {
			p.echo, p.held = l.beat.theirs, time.Since(l.beat.theirsAt)
			l.beat.pending = false
		}
		size := beatSize
		if l.beat.speaks {
			p.status = &l.beat.status
			size = beatSize + statusSize
		}
		b = header{kind: typeBeat, length: size, ack: ack}.append(b)
		b = p.append(b)
	} else if l.due.ack && !l.due.hello {
		b = header{kind: typeAck, ack: ack}.append(b)
	}
	l.debt, l.due, l.scratch = 0, due{}, b
	return b
}

// closeFrame encodes the frame that ends the link.
func (l *Link) closeFrame() []byte {
	l.closedSent = true
	l.scratch = closeFrame(l.scratch[:0], l.reason, l.consumed)
	return l.scratch
}

func closeFrame(b []byte, reason string, ack uint64) []byte {
	reason = reason[:min(len(reason), maxReason)]
	b = header{kind: typeClose, length: len(reason), ack: ack}.append(b)
	return append(b, reason...)
}

// writer writes the frames that no caller writes: heartbeats, late acknowledgements, and data that
// would block its sender.
func (l *Link) writer() {
	for {
		select {
		case <-l.down:
			return
		case <-l.soon.C:
			l.mu.Lock()
			l.ackArmed = false
			if l.debt > 0 {
				l.due.ack = true
			}
			l.idle()
			l.mu.Unlock()
		case <-l.kick:
		}
		l.mu.Lock()
		l.flush(1 << 62)
		l.mu.Unlock()
	}
}

// idle has the pump read when there was no Recv since the last look, so that a peer's death is not
// first seen by the next Recv. l.mu is held.
func (l *Link) idle() {
	switch {
	case l.reader != noReader:
	case l.recvs == l.idleRecvs:
		signal(l.takeover)
	default:
		l.idleRecvs = l.recvs
		l.soon.Reset(idleDelay)
	}
}

// abort closes a connection at once. To close TLS properly writes an alert, and may wait seconds
// for it.
func abort(c net.Conn) {
	for {
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = below.NetConn()
	}
	c.Close()
}
