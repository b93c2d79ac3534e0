package tcp

import (
	"errors"
	"os"
	"time"
)

// sendJob is an order to a writer goroutine: the message of a step, or a frame of its own, which
// then is one of the copies.
type sendJob struct {
	x     []byte
	step  step
	frame []byte
}

// send gives a message to the writer, which needs x until copied says so.
func (p *peer) send(x []byte, s step) {
	p.sent++
	p.sends <- sendJob{x: x, step: s}
}

// sendSmall sends a frame that is ready to be written; x is its payload, which must stay until the
// writer, if it is needed, has copied it.
func (p *peer) sendSmall(frame, x []byte, s step, now time.Time) {
	if len(frame) > p.direct || p.written.Load() != p.sent {
		p.send(x, s)
		return
	}
	p.write(frame, now)
}

// writeLoop is the writer goroutine. It ends when there will be no more jobs.
func (p *peer) writeLoop() {
	for {
		select {
		case j, ok := <-p.sends:
			if !ok {
				p.sendNotice()
				return
			}
			if j.frame != nil {
				p.writeCopy(j.frame)
			} else {
				p.writeMessage(j)
			}
		case <-p.notices:
			p.sendNotice()
		}
	}
}

func (p *peer) writeMessage(j sendJob) {
	for x, more := j.x, true; more; {
		n := min(len(x), maxFrame)
		if cap(p.frame) < headerSize+n {
			p.frame = make([]byte, headerSize+n)
		}
		frame := p.frame[:headerSize+n]
		p.source.Lock()
		if p.g.ended.Load() {
			p.source.Unlock()
			break
		}
		copy(frame[headerSize:], x)
		p.source.Unlock()
		header{kind: kindData, length: uint32(n), step: j.step}.encode(frame)
		x = x[n:]
		if more = len(x) > 0; !more {
			p.copied.Add(1)
			p.g.notify()
		}
		p.write(frame, time.Now())
		if !more {
			p.written.Add(1)
			return
		}
	}
	p.copied.Add(1)
	p.written.Add(1)
	p.g.notify()
}

// writeCopy writes a frame of a message and releases its memory.
func (p *peer) writeCopy(frame []byte) {
	if !p.g.ended.Load() {
		p.write(frame, time.Now())
	}
	p.written.Add(1)
	p.copies <- frame
	p.g.notify()
}

// awaitCopy returns when the writer does not read the caller's memory. It is called after the end
// of the group, which the writer checks under the lock.
func (p *peer) awaitCopy() {
	p.source.Lock()
	defer p.source.Unlock()
}

// write writes a frame, unless the stream has failed before. A failure other than a timeout is
// reported by the next Send at most: what the peer has sent before, maybe why it ended, is still to
// be read.
func (p *peer) write(frame []byte, now time.Time) {
	p.writing.Lock()
	if p.writeErr == nil && !p.notified {
		p.writeErr = p.writeLocked(frame, now)
		if errors.Is(p.writeErr, os.ErrDeadlineExceeded) {
			p.stuck.Store(p.lateError())
			p.g.notify()
		} else if p.writeErr != nil {
			failed := p.writeErr
			p.broken.Store(&failed)
		}
	}
	p.writing.Unlock()
	// A goroutine that could not get the lock to send the abort notice has left that to the holder.
	if p.g.ended.Load() {
		p.sendNotice()
	}
}

func (p *peer) writeLocked(frame []byte, now time.Time) error {
	if d := p.g.timeout; p.sendUntil.Sub(now) < d {
		p.sendUntil = now.Add(d + d/4)
		if err := p.conn.SetWriteDeadline(p.sendUntil); err != nil {
			return err
		}
	}
	_, err := p.conn.Write(frame)
	return err
}

// sendNotice sends the abort notice, once, if the group has ended.
func (p *peer) sendNotice() {
	a := p.g.why.Load()
	if a == nil {
		return
	}
	text := a.text[:min(len(a.text), maxAbortText)]
	frame := make([]byte, headerSize+len(text))
	h := header{kind: kindAbort, length: uint32(len(text)), step: step{seq: uint64(a.rank)}}
	h.encode(frame)
	copy(frame[headerSize:], text)
	p.writing.Lock()
	defer p.writing.Unlock()
	if p.notified || p.writeErr != nil {
		return
	}
	p.notified = true
	p.writeErr = p.writeLocked(frame, time.Now())
}
