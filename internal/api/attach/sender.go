package attach

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/eagleray/eagleray/internal/ray/frame"
)

// sender writes frames from one goroutine: those that come while it writes go together in the next
// write. Senders wait while the program does not read.
type sender struct {
	mu      sync.Mutex
	changed sync.Cond // of pending, ended and err
	pending []byte
	ended   bool
	err     error
	done    chan struct{}
}

// maxPending is how many bytes wait for the program to read before senders do.
const maxPending = 4 << 20

func newSender(w io.Writer) *sender {
	s := &sender{done: make(chan struct{})}
	s.changed.L = &s.mu
	go s.write(w)
	return s
}

func (s *sender) write(w io.Writer) {
	defer close(s.done)
	var spare []byte
	for {
		s.mu.Lock()
		for len(s.pending) == 0 && !s.ended {
			s.changed.Wait()
		}
		if len(s.pending) == 0 {
			s.mu.Unlock()
			return
		}
		out := s.pending
		s.pending = spare[:0]
		s.changed.Broadcast()
		s.mu.Unlock()
		if _, err := w.Write(out); err != nil {
			s.mu.Lock()
			s.err = err
			s.changed.Broadcast()
			s.mu.Unlock()
			return
		}
		if spare = out; cap(spare) > maxPending { // one long answer keeps no memory
			spare = nil
		}
	}
}

// send queues the frame of a JSON object, which it copies.
func (s *sender) send(object []byte) error {
	if len(object) > math.MaxInt32 {
		return fmt.Errorf("%w: %d bytes", frame.ErrLength, len(object))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.pending) > maxPending && s.err == nil && !s.ended {
		s.changed.Wait()
	}
	switch {
	case s.err != nil:
		return s.err
	case s.ended:
		return io.ErrClosedPipe
	}
	s.pending = appendFrame(s.pending, object)
	s.changed.Broadcast()
	return nil
}

// message sends a value as JSON.
func (s *sender) message(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return s.send(raw)
}

// end queues a last frame, nil for none. Whatever is sent after it is dropped. done is closed when
// all is written, or cannot be.
func (s *sender) end(object []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object != nil {
		s.pending = appendFrame(s.pending, object)
	}
	s.ended = true
	s.changed.Broadcast()
}

func appendFrame(b, object []byte) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(object))), object...)
}
