package generate

import (
	"context"
	"slices"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/text/output"
)

// reading is how the answers to a conversation are divided into parts. It gives the prompt, which
// says all else of the request, what follows from that: the constraint that the tools are, the
// bound of the reasoning, and special tokens in the text that a parser must see.
func (s *Service) reading(ctx context.Context, from *call.Origin, req *Chat,
	p *Prompt) (output.Options, *wire.Error) {
	o := output.Options{Reasoning: s.Model.Thinking, Single: !req.Parallel, ID: from.CallID}
	if t := o.Reasoning; t != nil {
		if req.ContinueFinal {
			o.State = t.StateWithin(req.lastContent())
		} else {
			o.State = t.StateAfter(p.Text)
		}
	}
	if bad := s.constrainCalls(ctx, req, &p.Constraint, &o); bad != nil {
		return o, bad
	}
	s.boundThinking(req, &o, p)
	if o.Tools != nil {
		o.Types = parameterTypes(req.Tools)
		if o.Tools.ShortIDs {
			o.ID = from.ShortCallID
		}
	}
	if s.hides(&o) && !p.KeepSpecial {
		p.KeepSpecial = true
		o.Drop = s.dropped(&o)
	}
	return o, nil
}

// boundThinking has the reasoning of an answer end when its budget is spent. As in vLLM, what the
// prompt has of it counts.
func (s *Service) boundThinking(req *Chat, o *output.Options, p *Prompt) {
	t := o.Reasoning
	if req.thinkingBudget == nil || t == nil || o.State == output.Closed {
		return
	}
	tokens := func(tag []string) []int32 { return s.Model.Tokenizer.Encode(tag[0], false) }
	q := &p.Params
	q.ThinkingBudget, q.ThinkingEnd = *req.thinkingBudget, tokens(t.End)
	if len(t.Start) == 0 {
		return
	}
	switch start := tokens(t.Start); {
	case o.State == output.Open:
		for at := len(p.Prompt) - len(start); at >= 0; at-- {
			if after := p.Prompt[at:]; slices.Equal(after[:len(start)], start) {
				q.ThinkingBudget = max(0, q.ThinkingBudget-int32(len(after)-len(start)))
				return
			}
		}
	case !t.Always:
		q.ThinkingStart = start
	}
}

// tags are what a parser must see.
func tags(o *output.Options) []string {
	var list []string
	if o.Tools != nil {
		list = o.Tools.Tags()
	}
	if o.Reasoning != nil {
		list = append(list, o.Reasoning.Tags()...)
	}
	return list
}

// hides is whether a tag is a special token, which an answer's text leaves out.
func (s *Service) hides(o *output.Options) bool {
	return slices.ContainsFunc(tags(o),
		func(tag string) bool { return s.specials.match(tag) == tag })
}

// dropped are the other special tokens, which the text then has as well.
func (s *Service) dropped(o *output.Options) []string {
	kept := tags(o)
	var list []string
	for _, texts := range s.specials {
		for _, text := range texts {
			if !slices.Contains(kept, text) {
				list = append(list, text)
			}
		}
	}
	return list
}

// readBy divides a choice's answer into parts.
func (c *Choice) readBy(o output.Options) {
	c.Reader, c.reasoning.on = output.New(o), o.Reasoning != nil
}

// CloseReaders lets go of them.
func (g *Generation) CloseReaders() {
	for i := range g.Choices {
		if r := g.Choices[i].Reader; r != nil {
			r.Close()
		}
	}
}

// Parts are those of the next piece of a choice's text, and of its end.
func (c *Choice) Parts(text string) []output.Part {
	from := c.read
	c.read += len(text)
	if c.Reader == nil {
		if text == "" {
			return nil
		}
		return []output.Part{{Kind: output.Content, Text: text, From: from, To: c.read}}
	}
	list := c.Reader.Push(text)
	switch {
	case !c.Finished:
	case c.cut():
		list = append(list, c.Reader.Cut()...)
	default:
		list = append(list, c.Reader.Close()...)
	}
	c.reasoning.read(c.Reader)
	for _, p := range list {
		switch {
		case p.Kind == output.Call:
			c.Calls++
		case p.Kind == output.Reasoning && p.Text != "":
			c.Thought = true
		}
	}
	return list
}

// cut is whether the model had not come to the end of its answer.
func (c *Choice) cut() bool { return c.Finish != sample.FinishStop || c.StopString != "" }

// EachPart calls f with every part of the only answer of a generation, as they come, until it has
// ended. logprobs are entries of a list, of the tokens that a part of the content is made of: which
// they are altogether does not depend on how the answer came. Tokens after its last text, as the
// one that ended it, come with a part of no text.
func (s *Service) EachPart(ctx context.Context, g *Generation, req *Chat,
	f func(p output.Part, logprobs []byte) error) error {
	var scores []Score
	var held logprobBuffer
	return g.Each(ctx, func(i int, d *engine.Delta) error {
		c := &g.Choices[i]
		c.Add(d)
		if req.TopLogprobs != sample.NoLogprobs {
			scores = AppendScores(scores[:0], c, d)
			for i := range scores {
				held.add(d.TextOffsets, i, func(b []byte) []byte {
					return s.AppendTokenLogprobs(b, scores[i:i+1], req.Shown(s), req.AsTokenIDs)
				})
			}
		}
		for _, p := range c.Parts(string(d.Text)) {
			logprobs := held.of(&p)
			if p.Kind == output.Reasoning && !req.IncludeReasoning {
				continue
			}
			if err := f(p, logprobs); err != nil {
				return err
			}
		}
		if !c.Finished {
			held.discard(c)
			return nil
		}
		if tail := held.tail(c.read); len(tail) > 0 {
			return f(output.Part{Kind: output.Content}, tail)
		}
		return nil
	})
}

// Complete is an error if the only answer of a generation was broken off.
func (g *Generation) Complete() error {
	switch g.Choices[0].Finish {
	case sample.FinishStop, sample.FinishLength, sample.FinishRepetition:
		return nil
	}
	return wire.BrokenOff()
}

// FinishReason says why a choice ended: an answer that ends by itself with a call waits for what
// the tool says.
func (c *Choice) FinishReason() string {
	if c.Finish == sample.FinishStop && c.Calls > 0 && !c.named {
		return "tool_calls"
	}
	return c.Finish.String()
}
