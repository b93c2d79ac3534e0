package openai

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/sample"
)

// Engine is the part of *engine.Engine this package needs; tests have a scripted one.
type Engine interface {
	// Submit queues a sequence. It fails with engine.ErrOverloaded, ErrStopped or ErrFailed.
	Submit(ctx context.Context, r *engine.Request) (engine.Stream, error)
	// Healthy returns nil if and only if a one-token request would succeed now.
	Healthy(ctx context.Context) error
}

// generation is one request on its way: one sequence per choice of the answer.
type generation struct {
	id      string
	model   string
	created int64
	prompts []prompt
	// n is the number of choices per prompt; choice i belongs to prompt i / n.
	n       int
	streams []engine.Stream
	choices []choice
}

// choice is what is known of one choice so far.
type choice struct {
	text []byte
	// bytes and runes measure the text delivered so far.
	bytes, runes int
	// echoed is the length in bytes of the prompt before the output.
	echoed int
	// started is set by the first delta, finished by the last.
	started, finished bool
	tokens            []int32
	scores            []score
	promptScores      []score
	finish            sample.Finish
	stopString        string
	stopToken         int32
	cached            int
	outputTokens      int
}

// start submits every sequence of a request, whose id begins with kind. When one is refused, those
// before it are given up.
func (s *Server) start(r *http.Request, kind string, req *sampling,
	prompts []prompt) (*generation, error) {
	g := &generation{id: kind + requestID(r, req.requestID), created: time.Now().Unix(),
		prompts: prompts, n: req.n}
	g.model = req.model
	g.choices = make([]choice, len(prompts)*req.n)
	for i := range g.choices {
		q := prompts[i/req.n].Request
		q.Params.Seed = s.seedFor(req, i%req.n)
		stream, err := s.opt.Engine.Submit(r.Context(), &q)
		if err != nil {
			g.close()
			if errors.Is(err, engine.ErrOverloaded) && s.opt.Metrics != nil {
				s.opt.Metrics.Rejected("queue_full")
			}
			return nil, err
		}
		g.streams = append(g.streams, stream)
	}
	if s.opt.Metrics != nil {
		s.opt.Metrics.ObserveParams(req.n, int(prompts[0].Params.MaxTokens))
	}
	return g, nil
}

// close gives up what is not finished.
func (g *generation) close() {
	for _, s := range g.streams {
		s.Close()
	}
}

// each calls f with every delta of every choice as they come, until all have finished. It returns
// the first error of a stream, of f or of ctx; then all streams are closed. One choice is read in
// this goroutine, several by one goroutine each, all ended when each returns.
func (g *generation) each(ctx context.Context, f func(i int, d *engine.Delta) error) error {
	defer g.close()
	if len(g.streams) == 1 {
		var d engine.Delta // escapes into f: one for the whole stream
		for {
			var err error
			if d, err = g.streams[0].Next(ctx); err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			if err := f(0, &d); err != nil {
				return err
			}
		}
	}
	return g.merge(ctx, f)
}

// event is one delta on its way from the goroutine of its choice.
type event struct {
	choice int
	delta  engine.Delta
	err    error
}

func (g *generation) merge(ctx context.Context, f func(i int, d *engine.Delta) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	events := make(chan event)
	taken := make([]chan struct{}, len(g.streams))
	for i, s := range g.streams {
		taken[i] = make(chan struct{}, 1)
		wg.Go(func() {
			for {
				d, err := s.Next(ctx)
				select {
				case events <- event{i, d, err}:
				case <-ctx.Done():
					return
				}
				if err != nil {
					return
				}
				select { // the delta's slices are the reader's until it has taken them
				case <-taken[i]:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	var e event // escapes into f: one for the whole stream
	for open := len(g.streams); open > 0; {
		select {
		case e = <-events:
			switch {
			case e.err == io.EOF:
				open--
				continue
			case e.err != nil:
				return e.err
			}
			if err := f(e.choice, &e.delta); err != nil {
				return err
			}
			taken[e.choice] <- struct{}{}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// take adds a delta to what is known of its choice.
func (c *choice) take(d *engine.Delta) {
	c.started = true
	c.cached = d.CachedTokens
	c.outputTokens = d.OutputTokens
	if d.Finish == sample.Unfinished {
		return
	}
	c.finished = true
	c.finish = d.Finish
	c.stopToken = -1
	if d.Finish == sample.FinishStop {
		c.stopString, c.stopToken = d.StopString, d.StopToken
	}
}

// deliver measures the text of a delta as delivered.
func (c *choice) deliver(text string) {
	c.bytes += len(text)
	c.runes += countRunes(text)
}

// usage counts the tokens of a request.
type usage struct {
	prompt, output, cached int
}

func (g *generation) usage() usage {
	var u usage
	for i := range g.choices {
		if i%g.n == 0 {
			u.prompt += len(g.prompts[i/g.n].Prompt)
			u.cached += g.choices[i].cached
		}
		u.output += g.choices[i].outputTokens
	}
	return u
}
