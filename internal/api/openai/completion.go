package openai

import (
	"context"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// completions answers POST /v1/completions, with events or with what they add up to.
func (s *API) completions(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *generate.Completion) error {
	return s.complete(w, r, f, req, func(f *completionFold) any { return f.answer() },
		func(a completionAnswer, out *server.EventWriter) (completionSink, []byte) {
			head := chunkHead(a.g, "text_completion")
			return &completionEvents{completionAnswer: a, out: out, head: head}, head
		})
}

// complete answers by a completion: with what its pieces add up to, or with events that have a
// head.
func (s *API) complete(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *generate.Completion, whole func(*completionFold) any,
	events func(completionAnswer, *server.EventWriter) (sink completionSink, head []byte)) error {
	g, err := s.StartCompletion(r.Context(), &r.Call, req)
	f.Done()
	if err != nil {
		return err
	}
	a := completionAnswer{s, g, req, generate.ShownLogprobs(req.TopLogprobs, s.Model.VocabSize)}
	if !req.Stream {
		fold := newCompletionFold(a)
		if err := a.read(r.Context(), fold); err != nil {
			return err
		}
		return s.WriteAround(w, whole(fold), &fold.late)
	}
	out := s.Events(w)
	sink, head := events(a, out)
	err = a.read(r.Context(), sink)
	if err == nil && req.IncludeUsage {
		err = s.sendUsage(out, head, g, &req.Sampling)
	}
	return s.End(r, out, err)
}

// completionAnswer is an answer on its way.
type completionAnswer struct {
	s   *API
	g   *generate.Generation
	req *generate.Completion
	// shown is how many of the most likely tokens it shows.
	shown int
}

// completionPiece is what a delta adds to one choice. All of it is valid until the next piece.
type completionPiece struct {
	choice int
	// first says that nothing of the choice came before.
	first  bool
	text   []byte
	scores []generate.Score
	tokens []int32
}

// completionSink takes the pieces of an answer: it sends them, or adds them up.
type completionSink interface {
	add(p *completionPiece) error
}

// read hands the pieces of the answer to a sink, the choices interleaved as their tokens come.
func (a *completionAnswer) read(ctx context.Context, sink completionSink) error {
	s, req := a.s, a.req
	var scores []generate.Score
	var text []byte
	piece := completionPiece{}
	return a.g.Each(ctx, func(i int, d *engine.Delta) error {
		c, p := &a.g.Choices[i], &a.g.Prompts[i/a.g.N]
		first := !c.Started
		c.Add(d)
		if req.Echo || !req.Stream {
			s.ScorePrompt(a.g, i, d, req.TopPromptLogprobs)
		}
		scores, text = scores[:0], text[:0]
		if first && req.Echo {
			text = append(text, p.Text...)
			c.EchoedRunes = generate.CountRunes(p.Text)
			if req.TopLogprobs != sample.NoLogprobs {
				scores = append(scores, c.PromptScores...)
			}
		}
		piece = completionPiece{choice: i, first: first}
		switch {
		case req.ScoreOnly:
			c.ScoredOnly()
			if !first {
				return nil
			}
		case first && !req.Echo && d.Empty():
			c.Started = false // prompt processing only: nothing to show yet
			return nil
		default:
			text, piece.tokens = append(text, d.Text...), d.Tokens
			if req.TopLogprobs != sample.NoLogprobs {
				scores = generate.AppendScores(scores, c, d)
			}
		}
		piece.text, piece.scores = text, scores
		return sink.add(&piece)
	})
}
