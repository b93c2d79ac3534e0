package replicas

import (
	"context"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// stream is a Stream of an engine that counts as the engine's load until it is read to its end or
// closed.
type stream struct {
	engine.Stream
	router          *Router
	engine          *member
	load, sequences int
	// outputs counts tokens of finished requests; Next is called by one goroutine at a time.
	outputs int
	over    atomic.Bool
}

// Next implements engine.Stream.
func (s *stream) Next(ctx context.Context) (engine.Delta, error) {
	d, err := s.Stream.Next(ctx)
	switch {
	case err != nil && ctx.Err() == nil:
		s.end()
	case d.Finish != sample.Unfinished:
		s.outputs += d.OutputTokens
	}
	return d, err
}

// Close implements engine.Stream.
func (s *stream) Close() {
	s.Stream.Close()
	s.end()
}

func (s *stream) end() {
	if s.over.CompareAndSwap(false, true) {
		s.router.release(s.engine, s.load, s.sequences, s.outputs)
	}
}

var _ engine.Stream = (*stream)(nil)
