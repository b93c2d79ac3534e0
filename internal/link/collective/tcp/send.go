package tcp

import (
	"errors"
	"net"
	"os"
	"time"
)

// sendJob is an order to a writer goroutine: the message of a step, to be copied or not, or a frame
// of its own, which then is one of the copies.
type sendJob struct {
	x      []byte
	step   step
	direct bool
	frame  []byte
}

// send gives a message to the writer, which needs x until copied says so.
func (p *peer) send(x []byte, s step) {
	p.bulky = p.bulky || len(x) > smallBytes
	p.sent++
	p.sends <- sendJob{x: x, step: s}
}

// sendSmall sends a frame that is ready to be written; x is its payload, which must stay until the
// writer, if it is needed, has copied it.
func (p *peer) sendSmall(frame, x []byte, s step, now time.Time) {
	if len(frame) > p.direct || p.written.Load() != p.sent || p.bulky && !p.hasRoom(len(frame)) {
		p.send(x, s)
		return
	}
	p.bulky = false
	p.write(frame, nil, now)
}

// sendRun sends a run: without a copy, from the caller's memory, if that is over plain TCP and the
// socket surely takes all of it at once, so that an end of the group is not waited for long. TLS
// copies it anyway.
func (p *peer) sendRun(x []byte, s step) {
	if p.tcp == nil || p.conn != net.Conn(p.tcp) || p.written.Load() != p.sent ||
		!p.hasRoom(headerSize+len(x)) {
		p.send(x, s)
		return
	}
	p.bulky = true
	p.sent++
	p.sends <- sendJob{x: x, step: s, direct: true}
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
			switch {
			case j.frame != nil:
				p.writeCopy(j.frame)
			case j.direct:
				p.writeDirect(j)
			default:
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
		p.write(frame, nil, time.Now())
		if !more {
			p.written.Add(1)
			return
		}
	}
	p.copied.Add(1)
	p.written.Add(1)
	p.g.notify()
}

// writeDirect writes a message from the caller's memory.
func (p *peer) writeDirect(j sendJob) {
	if len(p.frame) < headerSize {
		p.frame = make([]byte, headerSize)
	}
	p.source.Lock()
	for x := j.x; len(x) > 0 && !p.g.ended.Load(); {
		n := min(len(x), maxFrame)
		header{kind: kindData, length: uint32(n), step: j.step}.encode(p.frame)
		p.write(p.frame[:headerSize], x[:n], time.Now())
		x = x[n:]
	}
	p.source.Unlock()
	p.copied.Add(1)
	p.written.Add(1)
	p.g.notify()
}

// writeCopy writes a frame of a message and releases its memory.
func (p *peer) writeCopy(frame []byte) {
	if !p.g.ended.Load() {
		p.write(frame, nil, time.Now())
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

// write writes a frame, which may be in two parts, unless the stream has failed before. A failure
// other than a timeout is reported by the next Send at most: what the peer has sent before, maybe
// why it ended, is still to be read.
func (p *peer) write(frame, rest []byte, now time.Time) {
	p.writing.Lock()
	if p.writeErr == nil && !p.notified {
		p.writeErr = p.writeLocked(frame, rest, now)
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

func (p *peer) writeLocked(frame, rest []byte, now time.Time) error {
	if d := p.g.timeout; p.sendUntil.Sub(now) < d {
		p.sendUntil = now.Add(d + d/4)
		if err := p.conn.SetWriteDeadline(p.sendUntil); err != nil {
			return err
		}
	}
	if len(rest) == 0 {
		_, err := p.conn.Write(frame)
		return err
	}
	p.parts = [2][]byte{frame, rest}
	p.buffers = p.parts[:]
	_, err := p.buffers.WriteTo(p.conn)
	p.parts = [2][]byte{}
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
	p.writeErr = p.writeLocked(frame, nil, time.Now())
}
