package openai

import (
	"context"
	"slices"
	"strconv"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/text/output"
)

// toolCall is a call in a message.
type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// reading is how the answers to a conversation are divided into parts, and makes the constraint that
// its tools are; prompt is its text.
func (s *API) reading(ctx context.Context, from *call.Origin, req *chatRequest,
	prompt string) (output.Options, *wire.Error) {
	o := output.Options{Reasoning: s.model.thinking, Single: !req.parallel, ID: from.CallID}
	if t := o.Reasoning; t != nil {
		if req.continueFinal {
			o.State = t.StateWithin(req.lastContent)
		} else {
			o.State = t.StateAfter(prompt)
		}
	}
	if bad := s.constrainCalls(ctx, req, &o); bad != nil {
		return o, bad
	}
	if o.Tools != nil {
		o.Types = func(function, parameter string) output.Types {
			return req.types[function][parameter]
		}
		if o.Tools.ShortIDs {
			o.ID = from.ShortCallID
		}
	}
	if s.hides(&o) && !req.keepSpecial {
		req.keepSpecial = true
		o.Drop = s.dropped(&o)
	}
	return o, nil
}

// boundThinking has the reasoning of an answer end when its budget is spent.
func (s *API) boundThinking(req *chatRequest, o *output.Options, p *sample.Params) {
	t := o.Reasoning
	if req.thinkingBudget == nil || t == nil || o.State == output.Closed {
		return
	}
	tokens := func(tag []string) []int32 { return s.model.Tokenizer.Encode(tag[0], false) }
	p.ThinkingBudget, p.ThinkingEnd = *req.thinkingBudget, tokens(t.End)
	if o.State == output.Unsaid && !t.Always && len(t.Start) > 0 {
		p.ThinkingStart = tokens(t.Start)
	}
}

// tags are what a parser must see.
func tags(o *output.Options) []string {
	var list []string
	if o.Tools != nil {
		list = o.Tools.Tags()
	}
	if o.Reasoning != nil {
		list = slices.Concat(list, o.Reasoning.Start, o.Reasoning.End)
	}
	return list
}

// hides is whether a tag is a special token, which an answer's text leaves out.
func (s *API) hides(o *output.Options) bool {
	return slices.ContainsFunc(tags(o), func(tag string) bool { return s.specials.match(tag) == tag })
}

// dropped are the other special tokens, which the text then has as well.
func (s *API) dropped(o *output.Options) []string {
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

// read divides the answers of a generation into parts, where there is anything to tell apart.
func (g *generation) read(o output.Options, named bool) {
	if o.Tools == nil && o.Reasoning == nil {
		return
	}
	for i := range g.choices {
		g.choices[i].readBy(o)
		g.choices[i].named = named
	}
}

// readBy divides a choice's answer into parts.
func (c *choice) readBy(o output.Options) {
	c.reader, c.thoughts.on = output.New(o), o.Reasoning != nil
}

// closeReaders lets go of them.
func (g *generation) closeReaders() {
	for i := range g.choices {
		if r := g.choices[i].reader; r != nil {
			r.Close()
		}
	}
}

// parts are those of the next piece of a choice's text, and of its end.
func (c *choice) parts(text string) []output.Part {
	from := c.read
	c.read += len(text)
	if c.reader == nil {
		if text == "" {
			return nil
		}
		return []output.Part{{Kind: output.Content, Text: text, From: from, To: c.read}}
	}
	list := c.reader.Push(text)
	if c.finished {
		list = append(list, c.reader.Close()...)
	}
	c.thoughts.read(c.reader)
	for _, p := range list {
		if p.Kind == output.Call {
			c.calls++
		}
	}
	return list
}

// eachPart calls f with every part of the only answer of a generation, as they come, until it has
// ended. logprobs are entries of a list, of the tokens that a part of the content is made of: which
// they are altogether does not depend on how the answer came. Tokens after its last text, as the one
// that ended it, come with a part of no text.
func (s *API) eachPart(ctx context.Context, g *generation, req *chatRequest,
	f func(p output.Part, logprobs []byte) error) error {
	var scores []score
	var w written
	return g.each(ctx, func(i int, d *engine.Delta) error {
		c := &g.choices[i]
		c.take(d)
		if req.logprobs != sample.NoLogprobs {
			scores = appendScores(scores[:0], c, d, false)
			for i := range scores {
				w.add(d.TextOffsets, i, func(b []byte) []byte {
					return s.appendTokenLogprobs(b, scores[i:i+1], req.shown(s), req.asTokenIDs)
				})
			}
		}
		for _, p := range c.parts(string(d.Text)) {
			logprobs := w.of(&p)
			if p.Kind == output.Reasoning && !req.includeReasoning {
				continue
			}
			if err := f(p, logprobs); err != nil {
				return err
			}
		}
		if !c.finished {
			w.forget(c)
			return nil
		}
		if tail := w.tail(c.read); len(tail) > 0 {
			return f(output.Part{Kind: output.Content}, tail)
		}
		return nil
	})
}

// complete is an error if the only answer of a generation was broken off.
func (g *generation) complete() error {
	switch g.choices[0].finish {
	case sample.FinishStop, sample.FinishLength, sample.FinishRepetition:
		return nil
	}
	return wire.Draining()
}

// finishReason says why a choice ended: an answer that ends by itself with a call waits for what
// the tool says.
func (c *choice) finishReason() string {
	if c.finish == sample.FinishStop && c.calls > 0 && !c.named {
		return "tool_calls"
	}
	return c.finish.String()
}

// message is the whole answer of a choice.
func (r *chatRequest) message(c *choice) chatMessage {
	m := chatMessage{Role: r.role()}
	if c.reader == nil {
		m.Content = new(string(c.text))
		return m
	}
	content, reasoning := string(c.text[:c.echoed]), ""
	for _, p := range c.parts(string(c.text[c.echoed:])) {
		switch p.Kind {
		case output.Reasoning:
			reasoning += p.Text
		case output.Content:
			content += p.Text
		case output.Call:
			m.ToolCalls = append(m.ToolCalls, toolCall{ID: p.ID, Type: "function",
				Function: functionCall{Name: p.Name}})
		case output.Arguments:
			m.ToolCalls[p.Index].Function.Arguments += p.Text
		}
	}
	if reasoning != "" && r.includeReasoning {
		m.Reasoning = &reasoning
	}
	if content != "" || reasoning == "" && c.calls == 0 {
		m.Content = &content
	}
	return m
}

// sendParts sends the parts of a delta, a chunk for each, and what ended the answer in one of its
// own. Tokens and how they were chosen go with the first.
func (s *API) sendParts(out *server.EventWriter, head []byte, g *generation, req *chatRequest, i int,
	d *engine.Delta, scores []score) error {
	c := &g.choices[i]
	tokens := d.Tokens
	send := func(delta func([]byte) []byte, last bool) error {
		err := s.sendChunk(out, head, g, req, i, delta, scores, tokens, last)
		scores, tokens = nil, nil
		return err
	}
	for _, p := range c.parts(string(d.Text)) {
		if p.Kind == output.Reasoning && !req.includeReasoning {
			continue
		}
		if err := send(func(b []byte) []byte { return appendPart(b, &p) }, false); err != nil {
			return err
		}
	}
	shown := len(tokens) > 0 && (req.returnTokenIDs || req.logprobs != sample.NoLogprobs)
	if !c.finished && !shown {
		return nil
	}
	return send(func(b []byte) []byte { return b }, c.finished)
}

// appendPart appends the members of a delta with a part.
func appendPart(b []byte, p *output.Part) []byte {
	switch p.Kind {
	case output.Reasoning:
		return wire.AppendString(append(b, `"reasoning":`...), p.Text)
	case output.Content:
		return wire.AppendString(append(b, `"content":`...), p.Text)
	}
	b = append(b, `"tool_calls":[{"index":`...)
	b = strconv.AppendInt(b, int64(p.Index), 10)
	if p.Kind == output.Call {
		b = wire.AppendString(append(b, `,"id":`...), p.ID)
		b = append(b, `,"type":"function"`...)
	}
	b = append(b, `,"function":{`...)
	if p.Kind == output.Call {
		b = append(wire.AppendString(append(b, `"name":`...), p.Name), ',')
	}
	return append(wire.AppendString(append(b, `"arguments":`...), p.Text), "}}]"...)
}
