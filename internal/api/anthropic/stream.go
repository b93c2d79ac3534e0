package anthropic

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
	"github.com/eagleray/eagleray/internal/text/output"
)

// Message is the object of the API.
type Message struct {
	ID           string            `json:"id"`
	Type         string            `json:"type"`
	Role         string            `json:"role"`
	Model        string            `json:"model"`
	Content      []json.RawMessage `json:"content"`
	StopReason   *string           `json:"stop_reason"`
	StopSequence *string           `json:"stop_sequence"`
	Usage        Usage             `json:"usage"`
	// Metrics are the times of the answer, nil for none. Anthropic's API has none.
	Metrics *wire.Metrics `json:"metrics,omitempty"`
}

// Usage counts tokens. Those of the input that were in the cache are not in InputTokens.
type Usage struct {
	InputTokens              int `json:"input_tokens"`
	CacheCreationInputTokens int `json:"cache_creation_input_tokens"`
	CacheReadInputTokens     int `json:"cache_read_input_tokens"`
	OutputTokens             int `json:"output_tokens"`
}

// Stream fills a Message with the parts of an answer, and tells of it in events: Open, then Part
// for each, then Close. Errors are those of Send.
type Stream struct {
	// M is what is filled. The caller sets ID, Model, and of Usage what is known.
	M *Message
	// Send takes one server-sent event, with its blank line, valid until it returns; nil where
	// no client listens.
	Send func(event []byte) error

	buf  []byte
	open *block
}

// block is the element of the content that is being written.
type block struct {
	kind     output.Kind // Reasoning, Content or Call
	call     int
	id, name string
	text     []byte
}

// signature is that of every thought: clients do not send back one without, and nothing checks it.
const signature = "unsigned"

// json is the block, which has its signature once it has text. A call's input that was cut off, and
// is no object, is an empty one.
func (t *block) json() json.RawMessage {
	switch t.kind {
	case output.Reasoning:
		b := appendString([]byte(`{"type":"thinking","thinking":`), t.text)
		b = append(b, `,"signature":"`...)
		if len(t.text) > 0 {
			b = append(b, signature...)
		}
		return append(b, `"}`...)
	case output.Content:
		return append(appendString([]byte(`{"type":"text","text":`), t.text), '}')
	}
	input := bytes.TrimSpace(t.text)
	if len(input) == 0 || input[0] != '{' || !json.Valid(input) {
		input = []byte("{}")
	}
	b := appendString([]byte(`{"type":"tool_use","id":`), t.id)
	b = appendString(append(b, `,"name":`...), t.name)
	b = append(append(b, `,"input":`...), input...)
	return append(b, '}')
}

// Open tells that there is a message.
func (s *Stream) Open() error {
	s.M.Type, s.M.Role, s.M.Content = "message", "assistant", []json.RawMessage{}
	return s.event("message_start", func(b []byte) ([]byte, error) {
		raw, err := json.Marshal(s.M)
		return append(append(b, `,"message":`...), raw...), err
	})
}

// Part adds a part.
func (s *Stream) Part(p output.Part) error {
	switch p.Kind {
	case output.Reasoning:
		return s.text(p, `{"type":"thinking_delta","thinking":`)
	case output.Content:
		return s.text(p, `{"type":"text_delta","text":`)
	case output.Call:
		if err := s.end(); err != nil {
			return err
		}
		return s.begin(&block{kind: output.Call, call: p.Index, id: p.ID, name: p.Name})
	case output.Arguments:
		if s.open == nil || s.open.kind != output.Call || s.open.call != p.Index {
			return fmt.Errorf("arguments of call %d, which is not open", p.Index)
		}
		s.open.text = append(s.open.text, p.Text...)
		return s.delta(p.Text, `{"type":"input_json_delta","partial_json":`)
	}
	return fmt.Errorf("part of kind %d", p.Kind)
}

// text adds to the block that is open, or begins another one.
func (s *Stream) text(p output.Part, delta string) error {
	if p.Text == "" {
		return nil
	}
	if s.open == nil || s.open.kind != p.Kind {
		if err := s.end(); err != nil {
			return err
		}
		if err := s.begin(&block{kind: p.Kind}); err != nil {
			return err
		}
	}
	s.open.text = append(s.open.text, p.Text...)
	return s.delta(p.Text, delta)
}

func (s *Stream) begin(t *block) error {
	s.open = t
	return s.event("content_block_start", func(b []byte) ([]byte, error) {
		return append(append(s.index(b), `,"content_block":`...), t.json()...), nil
	})
}

// delta tells of more of the block that is open.
func (s *Stream) delta(text, head string) error {
	if text == "" {
		return nil
	}
	return s.event("content_block_delta", func(b []byte) ([]byte, error) {
		b = append(append(s.index(b), `,"delta":`...), head...)
		return append(appendString(b, text), '}'), nil
	})
}

// end closes the block that is open, if one is.
func (s *Stream) end() error {
	if s.open == nil {
		return nil
	}
	if s.open.kind == output.Reasoning {
		if err := s.delta(signature, `{"type":"signature_delta","signature":`); err != nil {
			return err
		}
	}
	if err := s.event("content_block_stop", func(b []byte) ([]byte, error) {
		return s.index(b), nil
	}); err != nil {
		return err
	}
	s.M.Content = append(s.M.Content, s.open.json())
	s.open = nil
	return nil
}

// Close ends the message for a reason; sequence is the stop sequence that did, nil for none. M has
// its metrics by then.
func (s *Stream) Close(reason string, sequence *string, u Usage) error {
	if err := s.end(); err != nil {
		return err
	}
	s.M.StopReason, s.M.StopSequence, s.M.Usage = &reason, sequence, u
	if err := s.event("message_delta", func(b []byte) ([]byte, error) {
		raw, err := json.Marshal(ended{endDelta{reason, sequence}, u, s.M.Metrics})
		if err != nil {
			return nil, err
		}
		return append(append(b, ','), raw[1:len(raw)-1]...), nil
	}); err != nil {
		return err
	}
	return s.event("message_stop", func(b []byte) ([]byte, error) { return b, nil })
}

func (s *Stream) index(b []byte) []byte {
	return strconv.AppendInt(append(b, `,"index":`...), int64(len(s.M.Content)), 10)
}

// event sends an event with more members.
func (s *Stream) event(name string, members func([]byte) ([]byte, error)) error {
	if s.Send == nil {
		return nil
	}
	b := append(append(s.buf[:0], "event: "...), name...)
	b = append(append(b, "\ndata: {\"type\":\""...), name...)
	b, err := members(append(b, '"'))
	if err != nil {
		return err
	}
	s.buf = append(b, "}\n\n"...)
	return s.Send(s.buf)
}

func appendString[T string | []byte](b []byte, s T) []byte { return jsonx.AppendString(b, s) }
