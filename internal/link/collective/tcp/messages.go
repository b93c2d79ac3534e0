package tcp

import (
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
)

// maxCopies is how many frames of messages may wait for a stream.
const maxCopies = collective.MessageBuffer / maxFrame

// message is the step of a message: they are counted on their own, each way.
func (g *Group) message(number uint64, to, size int) step {
	return step{seq: number, tag: collective.Tag(collective.Send, g.names.Of(to), size),
		guard: g.guard}
}

// withPeer does f with another rank that has a connection.
func (g *Group) withPeer(op collective.Op, rank int, f func(*peer) error) error {
	return g.do(op, func() error {
		if rank < 0 || rank >= g.ranks || g.byRank[rank] == nil {
			return collective.BadPeer(rank, g.rank, g.ranks)
		}
		return f(g.byRank[rank])
	})
}

// Send sends b to another rank, which receives it by Recv into as many bytes, and before the next
// collective operation. It returns when b is written or copied, which waits while
// collective.MessageBuffer is on its way to that rank.
func (g *Group) Send(b []byte, to int) error {
	return g.withPeer(collective.Send, to, func(p *peer) error { return p.sendMessage(b) })
}

func (p *peer) sendMessage(b []byte) error {
	if err := p.writeFailure(); err != nil {
		return err
	}
	p.lastSent++
	s := p.g.message(p.lastSent, p.rank, len(b))
	if len(b) <= smallBytes && p.written.Load() == p.sent && p.hasRoom(headerSize+len(b)) {
		p.write(p.g.frame(b, s), nil, time.Now())
		return p.writeFailure()
	}
	for first := true; first || len(b) > 0; first = false {
		n := min(len(b), maxFrame)
		frame, err := p.acquireCopy()
		if err != nil {
			return err
		}
		header{kind: kindData, length: uint32(n), step: s}.encode(frame[:headerSize])
		b = b[copy(frame[headerSize:headerSize+n], b):]
		p.sent++
		p.copied.Add(1)
		p.sends <- sendJob{frame: frame[:headerSize+n]}
	}
	return nil
}

// hasRoom reports whether the socket surely takes so many bytes at once.
func (p *peer) hasRoom(n int) bool {
	if p.socket == nil || n > p.direct {
		return false
	}
	queued, known := p.socket.queued()
	return known && queued+n <= p.direct
}

// writeFailure is why nothing can be sent any more.
func (p *peer) writeFailure() error {
	if p.g.ended.Load() {
		return p.g.abortCause()
	}
	if w := p.stuck.Load(); w != nil {
		return w
	}
	if err := p.broken.Load(); err != nil {
		return p.leftError(*err)
	}
	return nil
}

// acquireCopy returns memory for a frame. It waits for the writer while all is in use.
func (p *peer) acquireCopy() ([]byte, error) {
	for watched := false; ; {
		select {
		case frame := <-p.copies:
			return frame[:headerSize+maxFrame], nil
		default:
		}
		if p.made < maxCopies {
			p.made++
			return make([]byte, headerSize+maxFrame), nil
		}
		if err := p.writeFailure(); err != nil {
			return nil, err
		}
		if !watched { // an abort may come over any stream
			p.g.postToReaders(nil)
			watched = true
			continue
		}
		<-p.g.events
	}
}

// Recv sets b to the next message from another rank, which must be of its length.
func (g *Group) Recv(b []byte, from int) error {
	return g.withPeer(collective.Recv, from, func(p *peer) error { return g.receiveMessage(b, p) })
}

func (g *Group) receiveMessage(b []byte, p *peer) error {
	now := time.Now()
	if err := g.drainReaders(); err != nil {
		return err
	}
	p.lastRecv++
	p.in, p.wants, p.now = b, true, g.message(p.lastRecv, g.rank, len(b))
	if len(b) <= smallBytes {
		return g.receiveAll(p.only[:], now)
	}
	g.postToReaders(p.only[:])
	return g.awaitAll()
}
