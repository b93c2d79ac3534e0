package shm

import (
	"encoding/binary"

	"github.com/eagleray/eagleray/internal/link/collective"
)

const (
	// line is the unit of a ring, a cache line: a message takes whole ones.
	line = 64
	// stampBytes is the length of a message's header, its stamp.
	stampBytes = 16
	// pieceBytes is how much of a message is copied before the other side is told.
	pieceBytes = 64 << 10
)

// ring is this rank's end of the ring between two ranks. Positions are in lines and never wrap but
// with the type.
type ring struct {
	written, read *mark
	lines         []byte
	at            uint32 // where this end is: equal to its mark
}

func newRing(s *segment, from, to int) ring {
	written, read := s.ringMarks(from, to)
	return ring{written: written, read: read, lines: s.lines(from, to)}
}

// here returns the bytes from this end's position to the end of the ring, at most n.
func (r *ring) here(n int) []byte {
	b := r.lines[int(r.at)*line&(len(r.lines)-1):]
	return b[:min(n, len(b))]
}

// advance moves this end, which has the mark, and tells the other.
func (r *ring) advance(m *mark, bytes int) {
	r.at += uint32(bytes / line)
	m.word.Add(uint32(bytes / line * seqUnit))
	m.wake()
}

// messageSize is what a message takes of a ring.
func messageSize(b []byte) int { return (stampBytes + len(b) + line - 1) / line * line }

// Send sends b to another rank, which receives it by Recv into as many bytes. It returns when b is
// copied, which waits while the ring to that rank (collective.MessageBuffer) is full.
func (g *Group) Send(b []byte, to int) error {
	return g.do(collective.Send, func() error { return g.send(b, to) })
}

func (g *Group) send(b []byte, to int) error {
	if to < 0 || to >= g.ranks || to == g.rank {
		return collective.BadPeer(to, g.rank, g.ranks)
	}
	r, skip := &g.outs[to], stampBytes
	for left := messageSize(b); left > 0; {
		room := r.here(min(left, pieceBytes))
		// The room is free when the reader is at most the rest of the ring behind.
		free := (r.at + uint32((len(room)-len(r.lines))/line)) * seqUnit
		if err := g.await(r.read, to, free, &g.messages); err != nil {
			return err
		}
		left -= len(room)
		n := len(room)
		if skip > 0 {
			tag := collective.Tag(collective.Send, g.names.Of(to), len(b))
			binary.NativeEndian.PutUint64(room, tag)
			binary.NativeEndian.PutUint64(room[8:], g.guard)
			room, skip = room[stampBytes:], 0
		}
		b = b[copy(room, b):]
		r.advance(r.written, n)
	}
	if r.read.word.Load()&flagAborted != 0 {
		return g.abortCause()
	}
	return nil
}

// Recv sets b to the next message from another rank, which must be of its length.
func (g *Group) Recv(b []byte, from int) error {
	return g.do(collective.Recv, func() error { return g.recv(b, from) })
}

func (g *Group) recv(b []byte, from int) error {
	if from < 0 || from >= g.ranks || from == g.rank {
		return collective.BadPeer(from, g.rank, g.ranks)
	}
	r, first := &g.ins[from], true
	for left := messageSize(b); left > 0; {
		if err := g.await(r.written, from, (r.at+1)*seqUnit, &g.messages); err != nil {
			return err
		}
		there := int(r.written.word.Load()/seqUnit-r.at) & (1<<30 - 1)
		room := r.here(min(left, there*line))
		left -= len(room)
		n := len(room)
		if first {
			ours := stamp{collective.Tag(collective.Send, g.names.Of(g.rank), len(b)), g.guard}
			theirs := stamp{binary.NativeEndian.Uint64(room), binary.NativeEndian.Uint64(room[8:])}
			if ours != theirs {
				return g.mismatch(ours, theirs, from)
			}
			room, first = room[stampBytes:], false
		}
		b = b[copy(b, room):]
		r.advance(r.read, n)
	}
	return nil
}
