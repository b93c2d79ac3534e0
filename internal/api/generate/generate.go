package generate

import (
	"context"
	"errors"
	"io"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/handover"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/text/output"
)

// Submitter is the part of *engine.Engine this package needs; tests have a scripted one.
type Submitter interface {
	// Submit queues sequences whose outputs belong together, all or none. It fails with
	// engine.ErrOverloaded, ErrStopped or ErrFailed.
	Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error)
	// Healthy returns nil if and only if a one-token request would succeed now.
	Healthy(ctx context.Context) error
}

// Generation is one request on its way: one sequence per choice of the answer.
type Generation struct {
	ID      string
	Model   string
	Created int64
	Prompts []Prompt
	// N is the number of choices per prompt; choice i belongs to prompt i / n.
	N       int
	Stream  engine.Stream
	Choices []Choice
	// Ticket is what an answer has for the server that goes on from its prompt.
	Ticket *kvtransfer.Ticket
	// broken, unless it is nil, is told what breaks the stream off.
	broken func(error)
	// observed is nil for nothing.
	observed *call.Observed
	// constraint is the field that states what the answer keeps to, "" for none.
	constraint string
	// done, unless it is nil, says that abort_requests cannot name the request any more.
	done func()
}

// Choice is what is known of one choice so far.
type Choice struct {
	// read is the length in bytes of the output whose parts are known.
	read int
	// EchoedRunes is the length of the prompt before the output, in characters.
	EchoedRunes int
	// Started is set by the first delta, finished by the last.
	Started, Finished bool
	PromptScores      []Score
	Finish            sample.Finish
	StopString        string
	StopToken         int32
	cached            int
	outputTokens      int
	times             engine.Times
	// reasoning is what is known of the tokens of its reasoning.
	reasoning reasoningTokens
	// Reader divides the text into parts; nil where all of it is content.
	Reader *output.Parser
	// Calls counts the calls among them; thought says that there is reasoning.
	Calls   int
	Thought bool
	// named says that the request named the tool: a call of it is no reason to end.
	named bool
}

// Start submits the sequences of a request, whose id begins with kind.
func (s *Service) Start(ctx context.Context, r *call.Call, kind string, req *Sampling,
	prompts []Prompt) (*Generation, error) {
	if bad := s.checkBeamWork(req, prompts); bad != nil {
		return nil, bad
	}
	g := &Generation{ID: kind + r.Name(req.requestID), Created: r.Origin.Time(),
		Prompts: prompts, N: req.N, constraint: req.constraintField}
	g.Model = req.Model
	g.Choices = make([]Choice, len(prompts)*req.N)
	adapter, release, err := s.adapter(ctx, req.Model)
	if err != nil {
		return nil, err
	}
	list := make([]*engine.Request, len(prompts))
	for i := range list {
		q := prompts[i].Request
		q.Seeds = make([]uint64, req.N)
		for n := range q.Seeds {
			q.Seeds[n] = s.seedFor(r.Origin, req, n)
		}
		q.Client, q.Background = r.Client, r.Row || req.Polled
		q.HandOver, q.Ticket = req.handOver, req.ticket
		q.Adapter = adapter
		q.Interval = req.streamInterval
		q.FinalOnly = !req.Stream && !req.Polled && r.Observed == nil
		list[i] = &q
	}
	if req.Beams != nil {
		search := newBeamSearch(s.opt.Engine, s.Model.Identity, s.Model.Tokenizer, *req.Beams, list)
		g.Stream, err = search, search.submit(ctx)
	} else {
		g.Stream, err = s.opt.Engine.Submit(ctx, list...)
	}
	if err != nil {
		release()
		breakOff(ctx, r, err)
		if errors.Is(err, engine.ErrOverloaded) && s.opt.Metrics != nil && !r.Row {
			s.opt.Metrics.Rejected("queue_full")
		}
		if bad := constraintError(req, err); bad != nil {
			return nil, bad
		}
		if wrong := (*handover.TicketError)(nil); errors.As(err, &wrong) {
			return nil, transferError(wrong.Field, wrong.Reason)
		}
		return nil, err
	}
	if adapter != 0 {
		g.Stream = &adapted{g.Stream, release}
	}
	if r.Origin != nil {
		g.Stream = newTokenwise(g.Stream, len(g.Choices))
		g.broken = func(err error) { breakOff(ctx, r, err) }
	}
	if s.opt.Abortable {
		g.done = s.inFlight.add(kind, g.ID, g.Stream)
	}
	g.observed = r.Observed
	g.observed.Submitted(func() call.Report { return g.report(req) })
	return g, nil
}

// Each calls f with every delta of every choice as they come, until all have finished. It returns
// the first error of the stream or of f; then the stream is closed.
func (g *Generation) Each(ctx context.Context, f func(i int, d *engine.Delta) error) error {
	defer g.Stream.Close()
	if g.done != nil {
		defer g.done()
	}
	var d engine.Delta // escapes into f: one for the whole stream
	for {
		var err error
		if d, err = g.Stream.Next(ctx); err == io.EOF {
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
			g.Ticket = d.Ticket
		}
		g.observed.Tokens(len(d.Tokens))
		if err := f(d.Choice, &d); err != nil {
			return err
		}
	}
}

// Add adds a delta to what is known of its choice.
func (c *Choice) Add(d *engine.Delta) {
	c.Started = true
	c.cached = d.CachedTokens
	c.outputTokens = d.OutputTokens
	c.reasoning.add(d)
	if d.Finish == sample.Unfinished {
		return
	}
	c.Finished = true
	c.Finish, c.times = d.Finish, d.Times
	c.StopToken = -1
	if d.Finish == sample.FinishStop {
		c.StopString, c.StopToken = d.StopString, d.StopToken
	}
}

// Usage counts the tokens of a request.
type Usage struct {
	Prompt, Output, Cached int
	// Reasons says that the model's reasoning is told apart: reasoning counts its tokens.
	Reasons   bool
	Reasoning int
}

func (g *Generation) Usage() Usage {
	var u Usage
	for i := range g.Choices {
		if i%g.N == 0 {
			u.Prompt += len(g.Prompts[i/g.N].Prompt)
			u.Cached += g.Choices[i].cached
		}
		u.add(&g.Choices[i])
	}
	return u
}

// add counts the output of a choice.
func (u *Usage) add(c *Choice) {
	u.Output += c.outputTokens
	u.Reasons = u.Reasons || c.reasoning.on
	u.Reasoning += c.reasoning.count
}

// UsageOf counts the tokens of one choice, for continuous_usage_stats.
func (g *Generation) UsageOf(i int) Usage {
	c := &g.Choices[i]
	u := Usage{Prompt: len(g.Prompts[i/g.N].Prompt), Cached: c.cached}
	u.add(c)
	return u
}

// report is what observers are told of a generation.
func (g *Generation) report(req *Sampling) call.Report {
	p, u := &g.Prompts[0].Params, g.Usage()
	return call.Report{ID: g.ID, Model: g.Model, Prompts: len(g.Prompts), N: g.N,
		MaxTokens: int(p.MaxTokens), Sequences: len(g.Choices), Temperature: p.Temperature,
		TopP: p.TopP, Stream: req.Stream, Constrained: req.constraintField != "",
		PromptTokens: u.Prompt, CachedTokens: u.Cached, OutputTokens: u.Output,
		FinishReasons: g.finishReasons()}
}

// finishReasons are those of the choices that have ended, each once.
func (g *Generation) finishReasons() []string {
	var list []string
	seen := map[string]bool{}
	for i := range g.Choices {
		if c := &g.Choices[i]; c.Finished && !seen[c.FinishReason()] {
			seen[c.FinishReason()] = true
			list = append(list, c.FinishReason())
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

// RepetitionDetected is the stop reason of an output that repeats itself.
const RepetitionDetected = "repetition_detected"

// StopReason is a string, a token id, or nil.
func (c *Choice) StopReason() any {
	switch {
	case c.Finish == sample.FinishRepetition:
		return RepetitionDetected
	case c.StopString != "":
		return c.StopString
	case c.StopToken >= 0:
		return c.StopToken
	}
	return nil
}

// ScoredOnly leaves nothing of the output: echo with max_tokens 0.
func (c *Choice) ScoredOnly() {
	c.outputTokens = 0
	c.Finished, c.Finish, c.StopString, c.StopToken = true, sample.FinishLength, "", -1
}
