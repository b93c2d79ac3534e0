package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// receiveJob is an order to a reader goroutine.
type receiveJob struct {
	kind jobKind
	dst  []byte
	step step
}

type jobKind uint8

const (
	jobReceive jobKind = iota // the message of the step into dst, then keep watch
	jobRun                    // the run of the step, whatever its length, into the peer's memory
	jobWatch                  // only keep watch
	jobYield                  // leave the stream to the caller
)

// errSlow means that a message has not come in the time the caller reads by itself; what has come
// is kept.
var errSlow = errors.New("message has not come yet")

// past is a deadline that stops reads at once.
var past = time.Unix(1, 0)

// interrupt stops a read under way.
func (p *peer) interrupt() {
	// The only error is that of a closed connection, whose reads end anyway.
	_ = p.conn.SetReadDeadline(past)
}

// post gives a job to the reader, to which the stream then belongs until it is idle again.
func (p *peer) post(j receiveJob) {
	p.posted++
	p.jobs <- j
	// A watch looks for jobs after it has lifted the deadline, so it sees either this one or the
	// interrupt. If the interrupt comes late and hits the job, the job knows that its time is not
	// up.
	if p.watching.Load() {
		p.interrupt()
	}
}

// idle reports whether the caller may read the stream.
func (p *peer) idle() bool { return p.received.Load() == p.posted && !p.held.Load() }

// readLoop is the reader goroutine.
func (p *peer) readLoop() {
	for j := range p.jobs {
		p.held.Store(true)
		if j.kind == jobReceive || j.kind == jobRun {
			p.do(j)
		}
		p.received.Add(1)
		p.g.notify()
		if j.kind != jobYield && len(p.jobs) == 0 {
			p.watch()
		}
		p.held.Store(false)
		p.g.notify()
	}
}

func (p *peer) do(j receiveJob) {
	if p.failure.Load() != nil {
		return
	}
	var err error
	if j.kind == jobRun {
		err = p.receiveRun(j.step)
	} else {
		err = p.receive(j.dst, j.step)
	}
	if err == nil {
		return
	}
	var w *collective.WaitError
	if !errors.As(err, &w) {
		w = &collective.WaitError{Err: err}
	}
	p.failure.Store(w)
}

// watch reads ahead until there is a header, which it leaves in the buffer unless it is an abort
// notice.
func (p *peer) watch() {
	p.watching.Store(true)
	defer p.watching.Store(false)
	p.until = time.Time{}
	for {
		if err := p.conn.SetReadDeadline(time.Time{}); err != nil {
			return
		}
		if p.g.ended.Load() || len(p.jobs) > 0 {
			return
		}
		err := p.fill(headerSize, len(p.buf))
		if err == nil {
			break
		}
		if !errors.Is(err, errSlow) {
			return // the next read of this stream gets the error
		}
		// Maybe the interrupt that came with the order to watch.
	}
	if h := decodeHeader(p.buf[p.r:]); h.kind == kindAbort {
		// The group ends by it.
		_ = p.aborted(h)
	}
}

// receive reads the message of the step into dst, with the group's timeout for each frame.
func (p *peer) receive(dst []byte, s step) error {
	for first := true; first || len(dst) > 0; first = false {
		n := min(len(dst), maxFrame)
		if err := p.setDeadline(time.Now().Add(p.g.timeout)); err != nil {
			return err
		}
		if err := p.receiveFrame(dst[:n], s); err != nil {
			if errors.Is(err, errSlow) {
				return p.lateError()
			}
			return err
		}
		dst = dst[n:]
	}
	return nil
}

// receiveFrame reads a frame, the payload straight into dst but for what is in the buffer.
func (p *peer) receiveFrame(dst []byte, s step) error {
	if err := p.expect(len(dst), s, headerSize); err != nil {
		return err
	}
	p.r += headerSize
	n := copy(dst, p.buf[p.r:p.w])
	p.r += n
	for n < len(dst) {
		m, err := p.read(dst[n:])
		if n += m; err != nil {
			return err
		}
		if p.g.moved != nil {
			p.g.moved.Add(1)
		}
	}
	return nil
}

// receiveSmall reads a message of at most smallBytes into dst by way of the buffer. After errSlow
// it can be called again, and so can receive.
func (p *peer) receiveSmall(dst []byte, s step) error {
	if err := p.expect(len(dst), s, len(p.buf)); err != nil {
		return err
	}
	if err := p.fill(headerSize+len(dst), len(p.buf)); err != nil {
		return err
	}
	copy(dst, p.buf[p.r+headerSize:])
	p.r += headerSize + len(dst)
	return nil
}

// expect checks that the next frame is of the step and has the length, without consuming it.
func (p *peer) expect(length int, s step, most int) error {
	if err := p.fill(headerSize, most); err != nil {
		return err
	}
	want := header{kind: kindData, length: uint32(length), step: s}
	h := decodeHeader(p.buf[p.r:])
	switch {
	case h == want:
		return nil
	case h.kind == kindAbort:
		return p.aborted(h)
	case h.kind != kindData:
		return fmt.Errorf("%w: %v here, a frame of unknown kind %#x on rank %d",
			collective.ErrMismatch, s, h.kind, p.name())
	case h.step == s:
		return fmt.Errorf("%w: frame of %d bytes of %v here, of %d bytes on rank %d",
			collective.ErrMismatch, length, s, h.length, p.name())
	case h.step.seq == s.seq:
		return collective.Mismatch(s.tag, h.step.tag, s.guard, h.step.guard, p.name())
	}
	return fmt.Errorf("%w: %v here, %v on rank %d", collective.ErrMismatch, s, h.step, p.name())
}

// aborted reads an abort notice and ends the group with it.
func (p *peer) aborted(h header) error {
	if h.length > maxAbortText || h.step.seq >= uint64(p.g.ranks) {
		return fmt.Errorf("%w: malformed abort notice on rank %d", collective.ErrMismatch, p.name())
	}
	n := headerSize + int(h.length)
	if err := p.fill(n, len(p.buf)); err != nil {
		return err
	}
	p.g.finish(&abort{rank: int(h.step.seq), text: string(p.buf[p.r+headerSize : p.r+n])})
	return p.g.abortCause()
}

// fill reads until the buffer has n bytes, and not beyond most.
func (p *peer) fill(n, most int) error {
	for p.w-p.r < n {
		if p.r == p.w {
			p.r, p.w = 0, 0
		} else if p.r+n > len(p.buf) {
			p.w = copy(p.buf, p.buf[p.r:p.w])
			p.r = 0
		}
		m, err := p.read(p.buf[p.w:min(len(p.buf), p.r+max(n, most))])
		if p.w += m; err != nil && p.w-p.r < n {
			return err
		}
	}
	return nil
}

// renew sets the deadline of reads to the time from now, unless it is at least that far away and at
// most a quarter further.
func (p *peer) renew(now time.Time, d time.Duration) error {
	if left := p.until.Sub(now); left >= d && left <= d+d/4 {
		return nil
	}
	return p.setDeadline(now.Add(d + d/4))
}

func (p *peer) setDeadline(t time.Time) error {
	p.until = t
	if err := p.conn.SetReadDeadline(t); err != nil {
		return p.leftError(err)
	}
	if p.g.ended.Load() {
		return p.g.abortCause()
	}
	return nil
}

// read reads what there is. It returns errSlow when the deadline has passed.
func (p *peer) read(b []byte) (int, error) {
	for {
		if p.readErr != nil {
			return 0, p.readErr
		}
		n, err := p.conn.Read(b)
		if err == nil {
			return n, nil
		}
		if p.g.ended.Load() {
			return n, p.g.abortCause()
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			p.readErr = p.leftError(err) // for the next read, if this one brought something
		}
		if n > 0 {
			return n, nil
		}
		if p.readErr != nil {
			return 0, p.readErr
		}
		if !time.Now().Before(p.until) {
			return 0, errSlow
		}
		// A late interrupt of a watch before.
		if err := p.setDeadline(p.until); err != nil {
			return 0, err
		}
	}
}

// leftError returns the error of a stream that has ended.
func (p *peer) leftError(err error) error {
	w := &collective.WaitError{Missing: []int{p.rank}, Err: collective.ErrLeft}
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		w.Err = fmt.Errorf("%w: %w", collective.ErrLeft, err)
	}
	return w
}

// lateError returns the error of a rank that did not reach the step in time.
func (p *peer) lateError() *collective.WaitError {
	err := fmt.Errorf("%w after %v", collective.ErrTimeout, p.g.timeout)
	return &collective.WaitError{Missing: []int{p.rank}, Err: err}
}
