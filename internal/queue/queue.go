// Package queue carries records between the driver and its ranks: steps and calls one way, results the
// other. A Conn is the driver's (or the rank's) end of one rank's channel; records arrive whole, in order,
// and each is valid until the next one is asked for.
package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// MaxRecord bounds a record's length, so that a hostile or corrupt length cannot exhaust memory.
const MaxRecord = 1 << 30

// ErrClosed is returned by operations on a channel whose other end has gone or that was closed here.
var ErrClosed = errors.New("queue is closed")

// Conn is one end of an ordered channel of records. Send may be called from several goroutines, Recv from
// one at a time.
type Conn interface {
	// Send delivers a copy of record; the caller may reuse it at once. It ends with ErrClosed (wrapped) when
	// the peer is gone.
	Send(record []byte) error
	// Recv returns the next record, valid until the next Recv. It ends with ErrClosed (wrapped) when the peer
	// is gone and everything it sent was received.
	Recv() ([]byte, error)
	// Close ends both directions and every wait; closing twice is harmless.
	Close() error
}

// stream is a Conn over a byte stream: each record is its length as 4 bytes little-endian, then its bytes.
type stream struct {
	conn net.Conn

	sending sync.Mutex
	out     []byte

	in       []byte
	from, to int
}

// Stream frames records over conn. Close closes conn.
func Stream(conn net.Conn) Conn {
	return &stream{conn: conn, in: make([]byte, 64<<10)}
}

func (s *stream) Send(record []byte) error {
	if len(record) > MaxRecord {
		return fmt.Errorf("queue: record of %d bytes is longer than %d", len(record), MaxRecord)
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	s.out = binary.LittleEndian.AppendUint32(s.out[:0], uint32(len(record)))
	s.out = append(s.out, record...)
	if _, err := s.conn.Write(s.out); err != nil {
		return closed(err)
	}
	return nil
}

func (s *stream) Recv() ([]byte, error) {
	head, err := s.take(4)
	if err != nil {
		return nil, err
	}
	n := int(binary.LittleEndian.Uint32(head))
	if n > MaxRecord {
		return nil, fmt.Errorf("queue: peer announced a record of %d bytes, more than %d", n, MaxRecord)
	}
	return s.take(n)
}

// take returns the next n bytes of the stream.
func (s *stream) take(n int) ([]byte, error) {
	if s.to-s.from < n {
		if n > len(s.in) {
			s.in = append(make([]byte, 0, n), s.in[s.from:s.to]...)[:n]
		} else {
			copy(s.in, s.in[s.from:s.to])
		}
		s.from, s.to = 0, s.to-s.from
	}
	for s.to-s.from < n {
		m, err := s.conn.Read(s.in[s.to:])
		s.to += m
		if err != nil && s.to-s.from < n {
			return nil, closed(err)
		}
	}
	b := s.in[s.from : s.from+n]
	s.from += n
	return b, nil
}

func (s *stream) Close() error { return s.conn.Close() }

// closed turns the many ways a socket says that its peer is gone into ErrClosed.
func closed(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrClosed, err)
}

// pipe is one end of a channel inside a process.
type pipe struct {
	out, in chan []byte
	free    chan []byte // buffers of out that the other end has done with
	back    chan []byte // where buffers of in go
	done    chan struct{}
	once    *sync.Once
	last    []byte
}

// pipeDepth is how many records each direction holds before Send waits.
const pipeDepth = 8

// Pipe returns the two ends of a channel inside the process. Records are copied, so that neither end sees
// the other's memory, exactly as between processes.
func Pipe() (driver, rank Conn) {
	ab, ba := make(chan []byte, pipeDepth), make(chan []byte, pipeDepth)
	fab, fba := make(chan []byte, pipeDepth+1), make(chan []byte, pipeDepth+1)
	done, once := make(chan struct{}), new(sync.Once)
	return &pipe{out: ab, in: ba, free: fab, back: fba, done: done, once: once},
		&pipe{out: ba, in: ab, free: fba, back: fab, done: done, once: once}
}

func (p *pipe) Send(record []byte) error {
	var b []byte
	select {
	case b = <-p.free:
	default:
	}
	b = append(b[:0], record...)
	select {
	case <-p.done:
		return ErrClosed
	default:
	}
	select {
	case p.out <- b:
		return nil
	case <-p.done:
		return ErrClosed
	}
}

func (p *pipe) Recv() ([]byte, error) {
	if p.last != nil {
		select {
		case p.back <- p.last:
		default:
		}
		p.last = nil
	}
	select {
	case p.last = <-p.in:
		return p.last, nil
	default:
	}
	select {
	case p.last = <-p.in:
		return p.last, nil
	case <-p.done:
	}
	select {
	case p.last = <-p.in:
		return p.last, nil
	default:
		return nil, ErrClosed
	}
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

var (
	_ Conn = (*stream)(nil)
	_ Conn = (*pipe)(nil)
)
