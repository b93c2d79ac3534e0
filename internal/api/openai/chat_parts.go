package openai

import (
	"strconv"

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

// messageOf is the whole answer of a choice.
func messageOf(r *chatRequest, c *choice) chatMessage {
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
