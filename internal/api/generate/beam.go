package generate

import (
	"cmp"
	"context"
	"io"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// beamSearch is the Stream of requests that ask for beam search, as vLLM's server does it: each
// step asks the engine for one token after every beam, with the 2 × width most likely ones, and
// keeps the best; the prefix cache makes that cheap. Its scores are the model's log-probabilities,
// which no parameter of sampling changes, so that equal requests have equal answers. A choice is
// one delta. The engine decides over each step alone: one that it refuses fails the search.
type beamSearch struct {
	engine Submitter
	// identity names the model's files of the moment, began is what it was: see engine.ErrReplaced.
	identity func() string
	began    string
	tok      *tokenizer.Tokenizer
	opt      beams
	prompts  []*beamPrompt
	// step is the engine's Stream of the step on its way.
	step   engine.Stream
	deltas []engine.Delta
	// searched says that deltas are complete; given is how many of them were handed out.
	searched bool
	given    int
}

// beamPrompt is the search after one prompt.
type beamPrompt struct {
	*engine.Request
	opt beams
	// open go on, ended have their end; both are best first and at most opt.width.
	open, ended []*beam
	first       bool
	scores      []step.Logprobs // of the prompt, where they are asked for
	cached      int
}

// beam is an output, told from its end: its last token and the beam before it.
type beam struct {
	before *beam
	// last is the token and its rivals, end the token that ended the output or -1; that one counts
	// in sum and score only.
	last   step.Logprobs
	end    int32
	length int
	// sum is the log-probability of the whole output, score what beams are compared by.
	sum, score float64
}

// newBeamSearch returns the search after the prompts of requests.
func newBeamSearch(e Submitter, identity func() string, tok *tokenizer.Tokenizer, opt beams,
	list []*engine.Request) *beamSearch {
	s := &beamSearch{engine: e, identity: identity, began: identity(), tok: tok, opt: opt}
	for _, r := range list {
		s.prompts = append(s.prompts, &beamPrompt{Request: r, opt: opt, first: true,
			open: []*beam{{end: -1}}})
	}
	return s
}

// Close implements engine.Stream.
func (s *beamSearch) Close() {
	if s.step != nil {
		s.step.Close()
	}
}

// Next implements engine.Stream.
func (s *beamSearch) Next(ctx context.Context) (engine.Delta, error) {
	for !s.searched {
		if s.step == nil {
			if err := s.submit(ctx); err != nil {
				return engine.Delta{}, err
			}
		}
		if err := s.extend(ctx); err != nil {
			return engine.Delta{}, err
		}
		if s.identity() != s.began {
			return engine.Delta{}, engine.ErrReplaced
		}
	}
	if s.given == len(s.deltas) {
		return engine.Delta{}, io.EOF
	}
	s.given++
	return s.deltas[s.given-1], nil
}

// submit asks for the next token of every open beam.
func (s *beamSearch) submit(ctx context.Context) error {
	var list []*engine.Request
	for _, p := range s.prompts {
		for _, b := range p.open {
			list = append(list, p.request(b))
		}
	}
	var err error
	s.step, err = s.engine.Submit(ctx, list...)
	return err
}

// request asks for the tokens that may follow a beam.
func (p *beamPrompt) request(b *beam) *engine.Request {
	q := p.Output(0)
	q.Prompt = append(make([]int32, 0, len(p.Prompt)+b.length), p.Prompt...)
	q.Prompt = b.appendTokens(q.Prompt)
	q.Params = sample.Params{TopP: 1, RepetitionPenalty: 1, MaxTokens: 1, EOS: -1,
		Logprobs: p.Params.Logprobs, PromptLogprobs: sample.NoLogprobs}
	if q.Params.Logprobs != sample.AllLogprobs {
		q.Params.Logprobs = max(q.Params.Logprobs, int32(2*p.opt.width))
	}
	if p.first {
		q.Params.PromptLogprobs = p.Params.PromptLogprobs
	}
	q.Raw = true
	return &q
}

// extend waits for the step, and goes on with the best of what it brought.
func (s *beamSearch) extend(ctx context.Context) error {
	var owners []*beamPrompt
	var from []*beam
	for _, p := range s.prompts {
		for _, b := range p.open {
			owners, from = append(owners, p), append(from, b)
		}
	}
	tops := make([][]step.TokenLogprob, len(from))
	for {
		d, err := s.step.Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if d.Finish != sample.Unfinished && d.Finish != sample.FinishLength ||
			len(d.Logprobs) != 1 {
			return wire.BrokenOff()
		}
		tops[d.Choice] = slices.Clone(d.Logprobs[0].Top)
		owners[d.Choice].begin(&d)
	}
	s.step.Close()
	s.step = nil
	at := 0
	s.searched = true
	for _, p := range s.prompts {
		n := len(p.open)
		p.choose(from[at:at+n], tops[at:at+n])
		at += n
		s.searched = s.searched && len(p.open) == 0
	}
	if s.searched {
		s.finish()
	}
	return nil
}

// begin keeps what the first step says of the prompt.
func (p *beamPrompt) begin(d *engine.Delta) {
	if !p.first {
		return
	}
	p.first, p.cached = false, d.CachedTokens
	for _, l := range d.PromptLogprobs {
		l.Top = slices.Clone(l.Top)
		p.scores = append(p.scores, l)
	}
}

// choose keeps the best of the beams that are one token longer, apart those that end with it. When
// the search is over, none is open and ended are the answers.
func (p *beamPrompt) choose(from []*beam, tops [][]step.TokenLogprob) {
	if len(from) == 0 {
		return
	}
	var open []*beam
	for i, b := range from {
		for _, t := range tops[i][:min(len(tops[i]), 2*p.opt.width)] {
			next := &beam{before: b, end: -1, length: b.length + 1,
				last: step.Logprobs{Sampled: t, Top: tops[i]}, sum: b.sum + float64(t.Logprob)}
			if p.ends(t.Token) {
				next.end, next.length = t.Token, b.length
				p.ended = append(p.ended, next)
			} else {
				open = append(open, next)
			}
			next.score = p.score(next.sum, b.length+1)
		}
	}
	p.open, p.ended = p.best(open), p.best(p.ended)
	if !p.decided() {
		if len(p.open) > 0 && p.open[0].length < int(p.Params.MaxTokens) {
			return
		}
		p.ended = p.best(append(p.ended, p.open...))
	}
	p.open = nil
}

// ends tells whether a token ends the output.
func (p *beamPrompt) ends(token int32) bool {
	return token == p.Params.EOS && !p.Params.IgnoreEOS ||
		slices.Contains(p.Params.StopTokens, token)
}

// score divides a sum by a power of the output's length, in which as in vLLM its end counts.
func (p *beamPrompt) score(sum float64, length int) float64 {
	return sum / math.Pow(float64(length), p.opt.penalty)
}

// best are the best beams, best first; of equal ones those that stand first.
func (p *beamPrompt) best(list []*beam) []*beam {
	slices.SortStableFunc(list, func(a, b *beam) int {
		return -cmp.Compare(a.score, b.score)
	})
	return list[:min(len(list), p.opt.width)]
}

// decided tells whether no open beam can be among the answers any more: its sum can only fall. With
// early_stopping that many ends are enough.
func (p *beamPrompt) decided() bool {
	if len(p.ended) < p.opt.width {
		return false
	}
	worst := p.ended[len(p.ended)-1]
	return p.opt.early || !slices.ContainsFunc(p.open, func(b *beam) bool {
		length := b.length
		if p.opt.penalty > 0 {
			length = int(p.Params.MaxTokens)
		}
		return p.score(b.sum, length) > worst.score
	})
}

// path are the beams that lead to b, one per token of its output but for the end.
func (b *beam) path() []*beam {
	list := make([]*beam, b.length)
	if b.end >= 0 {
		b = b.before
	}
	for ; b.before != nil; b = b.before {
		list[b.length-1] = b
	}
	return list
}

// appendTokens appends the output but for the end.
func (b *beam) appendTokens(ids []int32) []int32 {
	for _, b := range b.path() {
		ids = append(ids, b.last.Sampled.Token)
	}
	return ids
}

// finish makes the answers of the beams.
func (s *beamSearch) finish() {
	for i, p := range s.prompts {
		for j, b := range p.ended {
			d := engine.Delta{Choice: i*s.opt.width + j, StopToken: b.end,
				Finish:         sample.FinishLength,
				PromptLogprobs: p.scores, PromptTokens: len(p.Prompt), CachedTokens: p.cached}
			path := b.path()
			s.write(&d, p, path)
			if b.end >= 0 {
				d.Finish = sample.FinishStop
				if p.IncludeStop {
					path = append(path, b)
					d.TextOffsets = append(d.TextOffsets, len(d.Text))
					d.RuneOffsets = append(d.RuneOffsets, CountRunes(d.Text))
				}
			}
			for _, b := range path {
				d.Tokens = append(d.Tokens, b.last.Sampled.Token)
				d.Logprobs = append(d.Logprobs, b.last)
			}
			d.OutputTokens = len(d.Tokens)
			s.deltas = append(s.deltas, d)
		}
	}
}

// write adds the text of an output, and where in it each token begins.
func (s *beamSearch) write(d *engine.Delta, p *beamPrompt, path []*beam) {
	if p.Raw || s.tok == nil {
		return
	}
	stream := s.tok.NewStream(p.Prompt, !p.KeepSpecial)
	runes := 0
	for _, b := range path {
		d.TextOffsets = append(d.TextOffsets, len(d.Text))
		d.RuneOffsets = append(d.RuneOffsets, runes)
		piece := stream.Push(b.last.Sampled.Token)
		d.Text = append(d.Text, piece...)
		runes += CountRunes(piece)
	}
	d.Text = append(d.Text, stream.Flush()...)
}
