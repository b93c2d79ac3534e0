package openai

import (
	"context"
	"errors"
	"io"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/text/output"
)

// Engine is the part of *engine.Engine this package needs; tests have a scripted one.
type Engine interface {
	// Submit queues sequences whose outputs belong together, all or none. It fails with
	// engine.ErrOverloaded, ErrStopped or ErrFailed.
	Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error)
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
	stream  engine.Stream
	choices []choice
	// ticket is what an answer has for the server that goes on from its prompt.
	ticket *kvtransfer.Ticket
	// broken, unless it is nil, is told what breaks the stream off.
	broken func(error)
	// observed is nil for nothing.
	observed *call.Observed
	// constraint is the field that states what the answer keeps to, "" for none.
	constraint string
	// done, unless it is nil, says that abort_requests cannot name the request any more.
	done func()
}

// choice is what is known of one choice so far.
type choice struct {
	// read is the length in bytes of the output whose parts are known.
	read int
	// echoedRunes is the length of the prompt before the output, in characters.
	echoedRunes int
	// started is set by the first delta, finished by the last.
	started, finished bool
	promptScores      []score
	finish            sample.Finish
	stopString        string
	stopToken         int32
	cached            int
	outputTokens      int
	// thoughts is what is known of the tokens of its reasoning.
	thoughts thoughts
	// reader divides the text into parts; nil where all of it is content.
	reader *output.Parser
	// calls counts the calls among them; thought says that there is reasoning.
	calls   int
	thought bool
	// named says that the request named the tool: a call of it is no reason to end.
	named bool
}

// start submits the sequences of a request, whose id begins with kind.
func (s *Service) start(ctx context.Context, r *call.Call, kind string, req *sampling,
	prompts []prompt) (*generation, error) {
	if bad := s.checkBeamWork(req, prompts); bad != nil {
		return nil, bad
	}
	g := &generation{id: kind + r.Name(req.requestID), created: r.Origin.Time(),
		prompts: prompts, n: req.n, constraint: req.constraintField}
	g.model = req.model
	g.choices = make([]choice, len(prompts)*req.n)
	list := make([]*engine.Request, len(prompts))
	for i := range list {
		q := prompts[i].Request
		q.Seeds = make([]uint64, req.n)
		for n := range q.Seeds {
			q.Seeds[n] = s.seedFor(r.Origin, req, n)
		}
		q.Client, q.Background = r.Client, r.Row || req.polled
		q.Constraint = req.constraint
		q.HandOver, q.Ticket = req.handOver, req.ticket
		q.FinalOnly = !req.stream && !req.polled && r.Observed == nil
		list[i] = &q
	}
	var err error
	if req.beams != nil {
		search := newBeamSearch(s.opt.Engine, s.model.Identity, s.model.Tokenizer, *req.beams, list)
		g.stream, err = search, search.submit(ctx)
	} else {
		g.stream, err = s.opt.Engine.Submit(ctx, list...)
	}
	if err != nil {
		breakOff(ctx, r, err)
		if errors.Is(err, engine.ErrOverloaded) && s.opt.Metrics != nil && !r.Row {
			s.opt.Metrics.Rejected("queue_full")
		}
		if bad := constraintError(req, err); bad != nil {
			return nil, bad
		}
		if wrong := (*engine.TransferError)(nil); errors.As(err, &wrong) {
			return nil, transferError(wrong.Field, wrong.Reason)
		}
		return nil, err
	}
	if r.Origin != nil {
		g.stream, g.broken = newTokenwise(g.stream, len(g.choices)), func(err error) { breakOff(ctx, r, err) }
	}
	if s.opt.Abortable {
		g.done = s.inFlight.add(kind, g.id, g.stream)
	}
	g.observed = r.Observed
	g.observed.Submitted(func() call.Report { return g.report(req) })
	return g, nil
}

// each calls f with every delta of every choice as they come, until all have finished. It returns
// the first error of the stream or of f; then the stream is closed.
func (g *generation) each(ctx context.Context, f func(i int, d *engine.Delta) error) error {
	defer g.stream.Close()
	if g.done != nil {
		defer g.done()
	}
	var d engine.Delta // escapes into f: one for the whole stream
	for {
		var err error
		if d, err = g.stream.Next(ctx); err == io.EOF {
			return nil
		}
		if err != nil {
			if g.broken != nil {
				g.broken(err)
			}
			if errors.Is(err, engine.ErrSpent) {
				err = wire.BadRequest(g.constraint, "`%s` is too complex: %v", g.constraint, err)
			}
			return errors.Join(call.Ended(ctx), err)
		}
		if d.Ticket != nil {
			g.ticket = d.Ticket
		}
		g.observed.Tokens(len(d.Tokens))
		if err := f(d.Choice, &d); err != nil {
			return err
		}
	}
}

// take adds a delta to what is known of its choice.
func (c *choice) take(d *engine.Delta) {
	c.started = true
	c.cached = d.CachedTokens
	c.outputTokens = d.OutputTokens
	c.thoughts.take(d)
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

// usage counts the tokens of a request.
type usage struct {
	prompt, output, cached int
	// reasons says that the model's reasoning is told apart: reasoning counts its tokens.
	reasons   bool
	reasoning int
}

func (g *generation) usage() usage {
	var u usage
	for i := range g.choices {
		if i%g.n == 0 {
			u.prompt += len(g.prompts[i/g.n].Prompt)
			u.cached += g.choices[i].cached
		}
		u.add(&g.choices[i])
	}
	return u
}

// report is what observers are told of a generation.
func (g *generation) report(req *sampling) call.Report {
	p, u := &g.prompts[0].Params, g.usage()
	return call.Report{ID: g.id, Model: g.model, Prompts: len(g.prompts), N: g.n,
		MaxTokens: int(p.MaxTokens), Sequences: len(g.choices), Temperature: p.Temperature,
		TopP: p.TopP, Stream: req.stream, Constrained: req.constraintField != "",
		PromptTokens: u.prompt, CachedTokens: u.cached, OutputTokens: u.output,
		FinishReasons: g.finishReasons()}
}

// finishReasons are those of the choices that have ended, each once.
func (g *generation) finishReasons() []string {
	var list []string
	seen := map[string]bool{}
	for i := range g.choices {
		if c := &g.choices[i]; c.finished && !seen[c.finishReason()] {
			seen[c.finishReason()] = true
			list = append(list, c.finishReason())
		}
	}
	return list
}

// breakOff leaves a request that this server cannot answer, as its engine has failed or ends, to
// another server that can.
func breakOff(ctx context.Context, r *call.Call, err error) {
	if r.LeaveToOthers != nil &&
		(errors.Is(err, engine.ErrFailed) || errors.Is(err, engine.ErrStopped)) {
		r.LeaveToOthers(ctx, err)
	}
}

// repetitionDetected is the stop reason of an output that repeats itself.
const repetitionDetected = "repetition_detected"

// stopReason is a string, a token id, or nil.
func (c *choice) stopReason() any {
	switch {
	case c.finish == sample.FinishRepetition:
		return repetitionDetected
	case c.stopString != "":
		return c.stopString
	case c.stopToken >= 0:
		return c.stopToken
	}
	return nil
}

// scoredOnly leaves nothing of the output: echo with max_tokens 0.
func (c *choice) scoredOnly() {
	c.outputTokens = 0
	c.finished, c.finish, c.stopString, c.stopToken = true, sample.FinishLength, "", -1
}
