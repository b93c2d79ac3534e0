package engine

import (
	"context"
	"io"
	"sync"

	"github.com/eagleray/eagleray/internal/sample"
)

// Stream delivers one request's output.
type Stream interface {
	// Next waits for news and returns everything since the last call; its slices are valid until
	// the next call. After the delta whose Finish is set it returns io.EOF; when the engine died,
	// an error wrapping ErrFailed.
	Next(ctx context.Context) (Delta, error)
	// Close gives the stream up; an unfinished request is aborted. Closing twice is harmless.
	Close()
}

// stream is the Stream of a running request. The engine never waits for its reader: what a slow
// reader has not taken is merged, and is bounded by the request's own length.
type stream struct {
	engine *Engine
	key    uint64

	mu      sync.Mutex
	pending Delta
	// given is the memory of the delta the reader holds, swapped with pending's.
	given Delta
	fresh bool
	over  bool // the last delta was handed out
	err   error
	wake  chan struct{}
}

func newStream(e *Engine) *stream { return &stream{engine: e, wake: make(chan struct{}, 1)} }

// Next implements Stream.
func (s *stream) Next(ctx context.Context) (Delta, error) {
	for {
		s.mu.Lock()
		if s.fresh {
			d := s.pending
			s.pending = Delta{Tokens: s.given.Tokens[:0], TextOffsets: s.given.TextOffsets[:0],
				StopToken: -1}
			s.given, s.fresh = d, false
			s.over = d.Finish != sample.Unfinished
			s.mu.Unlock()
			return d, nil
		}
		over, err := s.over, s.err
		s.mu.Unlock()
		if over {
			return Delta{}, io.EOF
		}
		if err != nil {
			return Delta{}, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Delta{}, ctx.Err()
		}
	}
}

// Close implements Stream.
func (s *stream) Close() {
	s.mu.Lock()
	ended := s.over || s.err != nil || s.pending.Finish != sample.Unfinished
	s.mu.Unlock()
	if !ended {
		s.engine.abort(s.key)
	}
}

// publish makes the changes f made to the pending delta visible to the reader.
func (s *stream) publish(f func(d *Delta)) {
	s.mu.Lock()
	f(&s.pending)
	s.fresh = true
	s.mu.Unlock()
	s.signal()
}

// fail ends the stream with an error, after what is pending was read.
func (s *stream) fail(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.signal()
}

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
