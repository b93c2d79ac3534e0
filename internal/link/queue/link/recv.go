package link

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
)

const (
	statusSize = status.Size
	// leastRest is the least rest of a fragment that is read straight into the record.
	leastRest = 4 << 10
)

// longPast is a deadline that ends a read at once.
var longPast = time.Unix(1, 0)

// Recv returns the next record, valid until the next call. It waits until then (for ever when until
// is zero) and ends with queue.ErrTimeout, or with queue.ErrClosed and the cause once the link is
// down and every record that had arrived was returned. When until has already passed it returns
// only a record that was read before. After Interrupt it returns queue.ErrInterrupted.
func (l *Link) Recv(until time.Time) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.acquireReader(); err != nil {
		return nil, err
	}
	defer l.releaseReader()
	var timer <-chan time.Time
	for {
		record, ok, err := l.next()
		if ok || err != nil {
			return record, err
		}
		if l.interrupted {
			l.interrupted = false
			return nil, queue.ErrInterrupted
		}
		switch l.state {
		case Down:
			return nil, l.err
		case Cut:
			if timer == nil {
				var stop func()
				timer, stop = deadline(until)
				defer stop()
			}
			l.mu.Unlock()
			expired := false
			select {
			case <-l.changed:
			case <-timer:
				expired = true
			}
			l.mu.Lock()
			if expired {
				return nil, queue.ErrTimeout
			}
		case Up:
			if record, ok, err := l.more(until); ok || err != nil && !l.interrupted {
				return record, err
			}
		}
	}
}

// Interrupt ends a Recv under way, or else the next one that would wait, with queue.ErrInterrupted.
func (l *Link) Interrupt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupted = true
	if l.reader == inRecv {
		l.interrupt()
		signal(l.changed)
	}
}

// acquireReader makes the caller the reader; the record of the last Recv is void. l.mu is held.
func (l *Link) acquireReader() error {
	for l.reader != noReader {
		switch l.reader {
		case inRecv:
			return errors.New("link: Recv is called twice at a time")
		case inPump:
			l.reader = yielding
			l.interrupt()
		}
		l.mu.Unlock()
		<-l.readerFree
		l.mu.Lock()
	}
	select {
	case <-l.changed: // a stale signal
	default:
	}
	l.reader = inRecv
	l.recvs++
	l.viewed = false
	l.inbox.reset()
	return nil
}

// releaseReader lets the pump read again. l.mu is held.
func (l *Link) releaseReader() {
	l.reader = noReader
	if l.waiting || l.broken != nil {
		signal(l.takeover)
	}
}

// interrupt ends a read of the connection.
func (l *Link) interrupt() {
	l.readDeadline = longPast
	l.conn.SetReadDeadline(longPast)
}

// next returns the next record if all of its frames have arrived. l.mu is held.
func (l *Link) next() (record []byte, ok bool, err error) {
	for !l.inbox.empty() {
		h, payload := l.inbox.pop()
		if record, ok, err = l.assemble(h, payload); ok || err != nil {
			return record, ok, l.fatal(err)
		}
	}
	for {
		h, payload, ok, err := l.parse()
		if err != nil {
			return nil, false, l.fatal(err)
		}
		if !ok {
			return nil, false, nil
		}
		if h.kind != typeData {
			continue
		}
		l.viewed = true
		if record, ok, err = l.assemble(h, payload); ok || err != nil {
			return record, ok, l.fatal(err)
		}
		l.viewed = false
	}
}

// parse returns the next frame of the connection, with its effects on the link done. l.mu is held.
func (l *Link) parse() (header, []byte, bool, error) {
	if l.bufGen != l.gen {
		// A frame that broke off on the old connection comes again on the new one.
		l.bufGen, l.buf.from, l.buf.to = l.gen, 0, 0
	}
	h, payload, ok, err := l.buf.frame()
	if !ok || err != nil {
		return h, nil, false, err
	}
	return h, payload, true, l.handle(h, payload)
}

// handle processes a frame but for its data. l.mu is held.
func (l *Link) handle(h header, payload []byte) error {
	if l.greeted == (h.kind == typeHello) {
		if l.greeted {
			return violation(ErrType, "hello within a connection")
		}
		return violation(ErrSession, "connection opens with %s instead of hello", h.kind)
	}
	if h.kind == typeHello {
		return l.greet(h, parseGreeting(payload))
	}
	if err := l.acked(h.ack); err != nil {
		return err
	}
	switch h.kind {
	case typeData:
		switch {
		case h.seq <= l.received:
			return violation(ErrDuplicate, "frame %d after %d", h.seq, l.received)
		case h.seq != l.received+1:
			return violation(ErrGap, "frame %d after %d", h.seq, l.received)
		}
		l.received++
		l.unconsumed += headerSize + h.length
		if l.unconsumed > l.o.Window+chunkSize {
			return violation(ErrWindow, "%d bytes, the window is %d", l.unconsumed, l.o.Window)
		}
	case typeBeat:
		l.pulse(parsePulse(payload))
	case typeClose:
		l.shutDown(&PeerClosed{Reason: string(payload)})
	}
	return nil
}

// acked frees the frames up to seq, which the peer has acknowledged.
func (l *Link) acked(seq uint64) error {
	if seq == l.out.acked {
		return nil
	}
	if err := l.out.ack(seq); err != nil {
		return err
	}
	if l.waiting {
		signal(l.space)
	}
	return nil
}

// pulse records a heartbeat.
func (l *Link) pulse(p pulse) {
	now := time.Now()
	l.beat.theirs, l.beat.theirsAt, l.beat.pending = p.sent, now, true
	if p.status != nil {
		l.peer = *p.status
	}
	l.seen = now
	rtt := now.Sub(l.start) - p.echo - p.held
	if p.echo <= 0 || p.held < 0 || rtt < 0 || rtt > now.Sub(l.start) {
		return // nothing to echo yet, or nonsense
	}
	l.stats.RTT = rtt
	if l.stats.SmoothRTT == 0 {
		l.stats.SmoothRTT = rtt
	}
	l.stats.SmoothRTT += (rtt - l.stats.SmoothRTT) / 8
}

// consume frees the window space of a frame of data. l.mu is held.
func (l *Link) consume(h header) {
	size := headerSize + h.length
	l.consumed = h.seq
	l.unconsumed -= size
	l.debt += size
	switch {
	case l.debt >= l.window/4:
		l.due.ack = true
		signal(l.kick)
	case !l.ackArmed:
		l.ackArmed = true
		l.soon.Reset(ackDelay)
	}
}

// assemble consumes a frame of data and appends it to the record, which it returns once complete.
// l.mu is held.
func (l *Link) assemble(h header, payload []byte) (record []byte, ok bool, err error) {
	l.consume(h)
	if h.flags == 0 && !l.assembling {
		if len(payload) > l.o.MaxRecord {
			return nil, false, fmt.Errorf("%w: %w: at most %d", ErrProtocol, ErrTooLong,
				l.o.MaxRecord)
		}
		l.shrink()
		l.stats.RecordsReceived++
		return payload, true, nil
	}
	if !l.assembling {
		l.assembling, l.record = true, l.record[:0]
	}
	if h.flags == flagAbort {
		l.assembling = false
		return nil, false, nil
	}
	if len(l.record)+len(payload) > l.o.MaxRecord {
		return nil, false, fmt.Errorf("%w: %w: at most %d", ErrProtocol, ErrTooLong, l.o.MaxRecord)
	}
	l.record = append(l.grown(len(payload)), payload...)
	record, ok = l.complete(h)
	return record, ok, nil
}

// grown is the record so far, with room for n bytes more.
func (l *Link) grown(n int) []byte {
	need := len(l.record) + n
	if need <= cap(l.record) {
		return l.record
	}
	return append(make([]byte, 0, min(max(2*need, 4*chunkSize), max(need, l.o.MaxRecord))),
		l.record...)
}

// complete returns the record when its last fragment is in place.
func (l *Link) complete(h header) ([]byte, bool) {
	if h.flags == flagMore {
		return nil, false
	}
	l.assembling, l.small = false, 0
	l.viewed = false
	l.stats.RecordsReceived++
	return l.record, true
}

// shrink frees the buffer of large records after patience small ones.
func (l *Link) shrink() {
	const keep, patience = 1 << 20, 4096
	if l.small++; l.small > patience && cap(l.record) > keep {
		l.record = nil
	}
}

// more reads: the rest of a fragment to its place in the record, all else into the buffer. l.mu is
// held, but not during a read.
func (l *Link) more(until time.Time) (record []byte, ok bool, err error) {
	if h, ok := l.fragment(); ok {
		return l.readFragment(h, until)
	}
	return nil, false, l.read(until)
}

// fragment returns the header of the next frame if it is a fragment of which at least leastRest
// bytes are missing. It does not report a malformed frame: parse does. l.mu is held.
func (l *Link) fragment() (h header, ok bool) {
	have := l.buf.b[l.buf.from:l.buf.to]
	if len(have) < headerSize || l.bufGen != l.gen || !l.greeted {
		return h, false
	}
	h, err := parseHeader(have)
	if err != nil || h.kind != typeData || h.seq != l.received+1 ||
		headerSize+h.length-len(have) < leastRest {
		return h, false
	}
	if !l.assembling {
		l.record = l.record[:0]
	}
	part := l.assembling || h.flags == flagMore
	return h, part && len(l.record)+h.length <= l.o.MaxRecord
}

// readFragment reads the rest of a fragment and consumes it, and returns the record that it
// completes. When the read ends early, the bytes read go to the buffer. l.mu is held, but not
// during a read.
func (l *Link) readFragment(h header, until time.Time) (record []byte, ok bool, err error) {
	l.record = l.grown(h.length)
	base := len(l.record)
	place := l.record[base : base+h.length]
	had := copy(place, l.buf.b[l.buf.from+headerSize:l.buf.to])
	n, gen := had, l.gen
	for n < h.length {
		got, err := l.readInto(place[n:], until)
		if gen != l.gen || l.state != Up {
			return nil, false, nil // the fragment comes again, or nothing does
		}
		n += got
		if n < h.length && (err != nil || l.interrupted) {
			l.buf.room()
			l.buf.to += copy(l.buf.b[l.buf.to:], place[had:n])
			return nil, false, err
		}
	}
	l.buf.from, l.buf.to = 0, 0
	if err := l.handle(h, nil); err != nil {
		return nil, false, l.fatal(err)
	}
	l.consume(h)
	l.assembling, l.record = true, l.record[:base+h.length]
	record, ok = l.complete(h)
	return record, ok, nil
}

// read waits for more bytes for the buffer. l.mu is held, but not during the read.
func (l *Link) read(until time.Time) error {
	gen, room := l.gen, l.buf.room()
	if l.assembling && l.buf.to == 0 {
		room = room[:headerSize] // what follows goes to the record
	}
	n, err := l.readInto(room, until)
	if gen == l.gen {
		l.buf.to += n
	}
	return err
}

// readInto reads from the connection. One that ends becomes a cut and no error. l.mu is held, but
// not during the read.
func (l *Link) readInto(b []byte, until time.Time) (int, error) {
	l.setReadDeadline(until)
	conn, gen := l.conn, l.gen
	l.mu.Unlock()
	n, err := conn.Read(b)
	if n > 0 {
		l.heard.Add(1)
	}
	l.mu.Lock()
	if gen != l.gen {
		return 0, nil
	}
	l.stats.BytesReceived += uint64(n)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		if err != nil {
			l.cut(gen, err)
		}
		return n, nil
	}
	l.readDeadline = longPast
	if n > 0 || until.IsZero() || time.Now().Before(until) {
		return n, nil // that deadline was an older one's
	}
	return 0, queue.ErrTimeout
}

// setReadDeadline makes reads end by until. It may leave an earlier deadline of the last Recv in
// place: setting one at each Recv costs more than an early wake-up now and then. l.mu is held.
func (l *Link) setReadDeadline(until time.Time) {
	if l.readDeadline.IsZero() {
		if until.IsZero() {
			return
		}
	} else if !l.readDeadline.Equal(longPast) && (until.IsZero() || !l.readDeadline.After(until)) {
		return
	}
	l.readDeadline = until
	l.conn.SetReadDeadline(until)
}

// fatal shuts the link down after the peer broke the protocol, and sends the peer the reason. l.mu
// is held.
func (l *Link) fatal(err error) error {
	if err == nil {
		return nil
	}
	l.buf.from = l.buf.to // nothing after it counts
	if l.state == Up && !l.writing {
		// Best effort: the connection goes at once. A short frame blocks only if the peer does not
		// read.
		l.writing = true
		conn := l.conn
		b := closeFrame(l.scratch[:0], err.Error(), l.consumed)
		l.mu.Unlock()
		conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		conn.Write(b)
		l.mu.Lock()
		l.writing = false
	}
	l.shutDown(err)
	return l.err
}
