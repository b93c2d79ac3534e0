package openai

import (
	"context"
	"net/http"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/text/output"
)

// chatCompletions answers POST /v1/chat/completions.
func (s *API) chatCompletions(w http.ResponseWriter, r *server.Request, f *wire.Fields,
	req *generate.Chat) error {
	g, err := s.StartChat(r.Context(), &r.Call, "chatcmpl-", req)
	f.Done()
	if err != nil {
		return err
	}
	return s.answerChat(w, r, g, req)
}

// answerChat sends the pieces of an answer as events, or what they add up to.
func (s *API) answerChat(w http.ResponseWriter, r *server.Request, g *generate.Generation,
	req *generate.Chat) error {
	defer g.CloseReaders()
	a := chatAnswer{s, g, req}
	if !req.Stream {
		fold := &chatFold{chatAnswer: a}
		if err := a.read(r.Context(), fold); err != nil {
			return err
		}
		return s.WriteAround(w, fold.answer(), &fold.late)
	}
	out := s.Events(w)
	events := &chatEvents{chatAnswer: a, out: out, head: chunkHead(g, "chat.completion.chunk")}
	err := a.read(r.Context(), events)
	if err == nil && req.IncludeUsage {
		err = s.sendUsage(out, events.head, g, &req.Sampling)
	}
	return s.End(r, out, err)
}

// chatAnswer is an answer on its way.
type chatAnswer struct {
	s   *API
	g   *generate.Generation
	req *generate.Chat
}

// chatPiece is what a delta adds to one choice.
type chatPiece struct {
	choice int
	// part is nil where nothing is said; text is the content of a choice that is not divided into
	// parts, which then is the whole piece, and valid until the next one.
	part *output.Part
	text []byte
	// scores say how tokens were chosen, where the request asks for that; valid until the next
	// piece.
	scores []generate.Score
	tokens []int32
	// last says that the choice has ended.
	last bool
}

// chatSink takes the pieces of an answer: it sends them, or adds them up.
type chatSink interface {
	// open is called once, before the first piece.
	open() error
	add(p *chatPiece) error
}

// read hands the pieces of the answer to a sink as they come.
func (a *chatAnswer) read(ctx context.Context, sink chatSink) error {
	opened, piece := false, chatPiece{}
	var scores []generate.Score
	return a.g.Each(ctx, func(i int, d *engine.Delta) error {
		c := &a.g.Choices[i]
		first := !c.Started
		c.Add(d)
		if !a.req.Stream {
			a.s.ScorePrompt(a.g, i, d, a.req.TopPromptLogprobs)
		}
		if !opened {
			opened = true
			if err := sink.open(); err != nil {
				return err
			}
		}
		if first && d.Empty() {
			c.Started = false // prompt processing only: nothing to show yet
			return nil
		}
		piece = chatPiece{choice: i, tokens: d.Tokens}
		if a.req.TopLogprobs != sample.NoLogprobs {
			scores = generate.AppendScores(scores[:0], c, d)
			piece.scores = scores
		}
		if c.Reader == nil {
			piece.text, piece.last = d.Text, c.Finished
			return sink.add(&piece)
		}
		return a.readParts(sink, &piece, d)
	})
}

// readParts hands on the parts of a delta, a piece for each, and what ended the choice as one of
// its own. Tokens and how they were chosen go with the first.
func (a *chatAnswer) readParts(sink chatSink, piece *chatPiece, d *engine.Delta) error {
	c := &a.g.Choices[piece.choice]
	for _, p := range c.Parts(string(d.Text)) {
		if p.Kind == output.Reasoning && !a.req.IncludeReasoning {
			continue
		}
		piece.part = &p
		if err := sink.add(piece); err != nil {
			return err
		}
		piece.scores, piece.tokens = nil, nil
	}
	shown := a.req.ReturnTokenIDs || a.req.TopLogprobs != sample.NoLogprobs
	if !c.Finished && !(shown && len(piece.tokens) > 0) {
		return nil
	}
	piece.part, piece.last = nil, c.Finished
	return sink.add(piece)
}
