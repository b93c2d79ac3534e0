package engine

import (
	"context"
	"io"
	"math"
	"sync"

	"github.com/eagleray/eagleray/internal/compute/sample"
)

// Stream delivers the output of the requests that were submitted together.
type Stream interface {
	// Next waits for news of one of the requests, Delta.Choice, and returns everything since its
	// last one; its slices are valid until the next call. Requests with news take turns. After the
	// last delta of all it returns io.EOF; when the engine died, an error wrapping ErrFailed.
	Next(ctx context.Context) (Delta, error)
	// Close gives the stream up: unfinished requests are aborted, and tickets that were not read
	// are of no use. Closing twice is harmless.
	Close()
}

// stream is the Stream of requests on their way. The engine never waits for its reader: what a slow
// reader has not taken is merged, and is bounded by the requests' own length.
type stream struct {
	engine *Engine

	mu      sync.Mutex
	choices []choice
	// news is a ring of the choices whose delta waits for the reader, each once, oldest first.
	news        []int32
	first, many int
	open        int // choices whose last delta was not handed out
	err         error
	wake        chan struct{}
}

// choice is what a stream has of one request.
type choice struct {
	key uint64
	// every is how many tokens are news, but for the first ones, after which begun is true.
	every   int
	begun   bool
	pending Delta
	// given is the memory of the delta the reader holds, swapped with pending's.
	given Delta
	fresh bool
	over  bool // the last delta was handed out, or it failed
}

func newStream(e *Engine, choices int) *stream {
	s := &stream{engine: e, choices: make([]choice, choices), news: make([]int32, choices),
		open: choices, wake: make(chan struct{}, 1)}
	for i := range s.choices {
		s.choices[i].pending = Delta{Choice: i, StopToken: -1}
	}
	return s
}

// Next implements Stream.
func (s *stream) Next(ctx context.Context) (Delta, error) {
	for {
		s.mu.Lock()
		if s.many > 0 {
			d := s.pop()
			s.mu.Unlock()
			return d, nil
		}
		open, err := s.open, s.err
		s.mu.Unlock()
		if open == 0 {
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

// pop removes the oldest news. The caller holds mu.
func (s *stream) pop() Delta {
	i := int(s.news[s.first])
	s.first = (s.first + 1) % len(s.news)
	s.many--
	c := &s.choices[i]
	d := c.pending
	c.pending = Delta{Choice: i, Text: c.given.Text[:0], Tokens: c.given.Tokens[:0],
		TextOffsets: c.given.TextOffsets[:0], RuneOffsets: c.given.RuneOffsets[:0],
		TextEnds: c.given.TextEnds[:0], StopToken: -1}
	c.given, c.fresh = d, false
	if d.Finish != sample.Unfinished {
		c.over = true
		c.pending, c.given = Delta{}, Delta{}
		s.open--
	}
	return d
}

// Close implements Stream.
func (s *stream) Close() {
	var keys []uint64
	s.mu.Lock()
	for i := range s.choices {
		c := &s.choices[i]
		if !c.over && (c.pending.Finish == sample.Unfinished || c.pending.Ticket != nil) {
			keys = append(keys, c.key)
		}
	}
	s.mu.Unlock()
	if len(keys) > 0 {
		s.engine.post(aborted(keys))
	}
}

// publish makes the changes f made to a choice's pending delta visible to the reader.
func (s *stream) publish(choice int, f func(d *Delta)) {
	s.mu.Lock()
	c := &s.choices[choice]
	f(&c.pending)
	if c.begun && len(c.pending.Tokens) < c.every && c.pending.Finish == sample.Unfinished {
		s.mu.Unlock()
		return
	}
	c.begun = true
	s.push(choice)
	s.mu.Unlock()
	s.signal()
}

// push makes what is pending of a choice news. The caller holds mu.
func (s *stream) push(choice int) {
	if c := &s.choices[choice]; !c.fresh {
		c.fresh = true
		s.news[(s.first+s.many)%len(s.news)] = int32(choice)
		s.many++
	}
}

// buffer keeps the changes f made to a choice's pending delta for the news that follow.
func (s *stream) buffer(choice int, f func(d *Delta)) {
	s.mu.Lock()
	f(&s.choices[choice].pending)
	s.mu.Unlock()
}

// fail ends the stream with the error of a choice, after what is pending was read. Others go on
// until the reader closes it.
func (s *stream) fail(choice int, err error) {
	s.mu.Lock()
	s.err, s.choices[choice].over = err, true
	for i := range s.choices {
		if c := &s.choices[i]; c.every < math.MaxInt && len(c.pending.Tokens) > 0 {
			s.push(i) // what waited for more of it
		}
	}
	s.mu.Unlock()
	s.signal()
}

func (s *stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
