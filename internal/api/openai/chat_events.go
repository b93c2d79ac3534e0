package openai

import (
	"strconv"

	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/text/output"
)

// chatEvents sends the pieces of an answer as chunks.
type chatEvents struct {
	chatAnswer
	out *server.EventWriter
	// head is what every chunk begins with.
	head []byte
}

// add sends a chunk.
func (e *chatEvents) add(p *chatPiece) error {
	c := &e.g.Choices[p.choice]
	b := e.begin(p.choice)
	switch {
	case p.part != nil:
		b = appendPart(b, p.part)
	case c.Reader == nil:
		b = wire.AppendString(append(b, `"content":`...), p.text)
	}
	b = append(b, `},"logprobs":`...)
	if e.req.TopLogprobs != sample.NoLogprobs {
		b = e.s.AppendChatLogprobs(b, p.scores, e.req.Shown(e.s.Service), e.req.AsTokenIDs)
	} else {
		b = append(b, "null"...)
	}
	if p.last {
		b = appendFinish(b, c)
		b = appendStopReason(b, c)
	} else {
		b = append(b, `,"finish_reason":null`...)
	}
	b = appendTokenIDs(b, "token_ids", p.tokens, e.req.ReturnTokenIDs)
	b = append(b, "}]"...)
	b = e.s.appendWeightVersion(b, p.last)
	if e.req.ContinuousUsage {
		b = append(b, ',')
		b = e.s.appendUsage(b, e.g.UsageOf(p.choice))
	}
	return e.send(b)
}

// begin begins a chunk of a choice, up to the members of its delta.
func (e *chatEvents) begin(choice int) []byte {
	b := append(e.out.Buf[:0], e.head...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(choice), 10)
	return append(b, `,"delta":{`...)
}

func (e *chatEvents) send(b []byte) error {
	e.out.Buf = append(b, "}\n\n"...)
	return e.out.Send()
}

// open sends the role of every choice, with what describes the prompt, then the echo.
func (e *chatEvents) open() error {
	for i := range e.g.Choices {
		b := wire.AppendString(append(e.begin(i), `"role":`...), e.req.Role())
		b = e.endTokenless(append(b, `,"content":""`...), i)
		b = appendTokenIDs(b, "prompt_token_ids", e.g.Prompts[0].Prompt, e.req.ReturnTokenIDs)
		if e.req.ReturnPromptText {
			b = append(b, `,"prompt_text":`...)
			b = wire.AppendString(b, e.g.Prompts[0].Text)
		}
		if err := e.send(b); err != nil {
			return err
		}
	}
	echo := e.req.ChatEcho()
	if echo == "" {
		return nil
	}
	for i := range e.g.Choices {
		b := wire.AppendString(append(e.begin(i), `"content":`...), echo)
		if err := e.send(e.endTokenless(b, i)); err != nil {
			return err
		}
	}
	return nil
}

// endTokenless ends the choice of a chunk that carries no tokens.
func (e *chatEvents) endTokenless(b []byte, choice int) []byte {
	b = append(b, `},"logprobs":null,"finish_reason":null}]`...)
	if e.req.ContinuousUsage {
		u := e.g.UsageOf(choice)
		u.Output = 0
		b = append(b, ',')
		b = e.s.appendUsage(b, u)
	}
	return b
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
