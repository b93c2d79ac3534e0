package responses

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
	"github.com/eagleray/eagleray/internal/text/output"
)

// Stream fills a Response with the parts of an answer, and tells of it in events: Open, then Part
// for each, then Close or Fail. Errors are those of Send.
type Stream struct {
	// R is what is filled: its members that come of the request are set by the caller.
	R *Response
	// Send takes one server-sent event, with its blank line, valid until it returns; nil where
	// no client listens.
	Send func(event []byte) error
	// NewID makes the id of an item, which begins with a prefix of its kind.
	NewID func(prefix string) string
	// Namespaces are those of functions that are in one, by the names that the model knows.
	Namespaces map[string]string
	// Final is called once R is as it will be, before that is told; nil for nothing.
	Final func(*Response)

	seq  int
	buf  []byte
	open *item
	call int // the index of the call that is open
}

// Open tells that there is a response, with what it has so far.
func (s *Stream) Open() error {
	if s.R.Output == nil {
		s.R.Output = []json.RawMessage{}
	}
	if err := s.whole("response.created"); err != nil {
		return err
	}
	if s.R.Status == Queued {
		if err := s.whole("response.queued"); err != nil {
			return err
		}
	}
	s.R.Status = InProgress
	return s.whole("response.in_progress")
}

// Part adds a part. logprobs are entries of a list, separated by commas, of the tokens of a Content
// part; they are left out for others.
func (s *Stream) Part(p output.Part, logprobs []byte) error {
	switch p.Kind {
	case output.Reasoning:
		return s.text("reasoning", "rs_", "response.reasoning_text.delta", p.Text, nil)
	case output.Content:
		return s.text("message", "msg_", "response.output_text.delta", p.Text, logprobs)
	case output.Call:
		if err := s.end(Completed); err != nil {
			return err
		}
		s.call = p.Index
		space := s.Namespaces[p.Name]
		return s.begin(&item{kind: "function_call", id: s.NewID("fc_"), callID: p.ID,
			namespace: space, name: strings.TrimPrefix(p.Name, generate.FlatName(space, ""))})
	case output.Arguments:
		if s.open == nil || s.open.kind != "function_call" || s.call != p.Index {
			return fmt.Errorf("arguments of call %d, which is not open", p.Index)
		}
		if p.Text == "" {
			return nil
		}
		s.open.text = append(s.open.text, p.Text...)
		return s.delta("response.function_call_arguments.delta", p.Text, nil)
	}
	return fmt.Errorf("part of kind %d", p.Kind)
}

// text adds to the item that is open, or begins another one.
func (s *Stream) text(kind, prefix, event, text string, logprobs []byte) error {
	if text == "" && len(logprobs) == 0 {
		return nil
	}
	if s.open == nil || s.open.kind != kind {
		if err := s.end(Completed); err != nil {
			return err
		}
		if err := s.begin(&item{kind: kind, id: s.NewID(prefix)}); err != nil {
			return err
		}
		if err := s.content("response.content_part.added"); err != nil {
			return err
		}
	}
	t := s.open
	t.text = append(t.text, text...)
	if len(logprobs) > 0 {
		if len(t.logprobs) > 0 {
			t.logprobs = append(t.logprobs, ',')
		}
		t.logprobs = append(t.logprobs, logprobs...)
	}
	return s.delta(event, text, logprobs)
}

func (s *Stream) begin(t *item) error {
	t.status = InProgress
	s.open = t
	return s.item("response.output_item.added", true)
}

// end closes the item that is open, if one is.
func (s *Stream) end(status Status) error {
	t := s.open
	if t == nil {
		return nil
	}
	t.status = status
	whole, err := t.json(false)
	if err != nil {
		return err
	}
	s.R.Output = append(s.R.Output, whole)
	if err := s.done(); err != nil {
		return err
	}
	err = s.item("response.output_item.done", false)
	s.open = nil
	return err
}

// done tells the whole text of the item that is open.
func (s *Stream) done() error {
	t := s.open
	switch t.kind {
	case "function_call":
		return s.event("response.function_call_arguments.done", func(b []byte) []byte {
			b = appendString(append(b, `,"name":`...), t.name)
			return appendString(append(b, `,"arguments":`...), t.text)
		})
	case "reasoning":
		if err := s.event("response.reasoning_text.done", func(b []byte) []byte {
			return appendString(append(b, `,"content_index":0,"text":`...), t.text)
		}); err != nil {
			return err
		}
	default:
		if err := s.event("response.output_text.done", func(b []byte) []byte {
			b = appendString(append(b, `,"content_index":0,"text":`...), t.text)
			b = append(append(b, `,"logprobs":[`...), t.logprobs...)
			return append(b, ']')
		}); err != nil {
			return err
		}
	}
	return s.content("response.content_part.done")
}

// End is how an answer ended.
type End struct {
	// Cut says that max_output_tokens were not enough.
	Cut bool
	// At is the time in seconds of Unix time.
	At    int64
	Usage Usage
	// Metrics are its times, nil for none.
	Metrics *wire.Metrics
}

// Close ends the response. An answer without parts is an empty message.
func (s *Stream) Close(e End) error {
	status := Completed
	if e.Cut {
		status = Incomplete
		s.R.IncompleteDetails = &IncompleteDetails{Reason: "max_output_tokens"}
	}
	if s.open == nil && len(s.R.Output) == 0 {
		if err := s.begin(&item{kind: "message", id: s.NewID("msg_")}); err != nil {
			return err
		}
		if err := s.content("response.content_part.added"); err != nil {
			return err
		}
	}
	if err := s.end(status); err != nil {
		return err
	}
	s.R.Usage, s.R.Metrics = &e.Usage, e.Metrics
	if status == Completed {
		s.R.CompletedAt = &e.At
	}
	s.final(status)
	return s.whole("response." + string(status))
}

// Fail ends the response with an error. What there is of it stays.
func (s *Stream) Fail(e Error) error {
	s.R.Error = &e
	if err := s.end(Incomplete); err != nil {
		return err
	}
	s.final(Failed)
	return s.whole("response.failed")
}

// Cancel ends the response because its client wants it so. The API has no event for that.
func (s *Stream) Cancel() error {
	err := s.end(Incomplete)
	s.final(Cancelled)
	return err
}

func (s *Stream) final(status Status) {
	s.R.Status = status
	if s.Final != nil {
		s.Final(s.R)
	}
}

// whole sends an event with the response.
func (s *Stream) whole(name string) error {
	if s.Send == nil {
		return nil
	}
	raw, err := jsonx.Marshal(s.R)
	if err != nil {
		return err
	}
	s.head(name)
	s.buf = append(append(s.buf, `,"response":`...), raw...)
	return s.send()
}

// item sends an event with the item that is open.
func (s *Stream) item(name string, added bool) error {
	if s.Send == nil {
		return nil
	}
	raw, err := s.open.json(added)
	if err != nil {
		return err
	}
	s.head(name)
	s.index()
	s.buf = append(append(s.buf, `,"item":`...), raw...)
	return s.send()
}

// content sends an event with the part of the item that is open: its first part, and only one.
func (s *Stream) content(name string) error {
	return s.event(name, func(b []byte) []byte {
		b = append(b, `,"content_index":0,"part":`...)
		return append(b, s.open.part()...)
	})
}

// delta sends more of the text of the item that is open.
func (s *Stream) delta(name, text string, logprobs []byte) error {
	return s.event(name, func(b []byte) []byte {
		if s.open.kind != "function_call" {
			b = append(b, `,"content_index":0`...)
		}
		b = appendString(append(b, `,"delta":`...), text)
		if s.open.kind == "message" {
			b = append(append(b, `,"logprobs":[`...), logprobs...)
			b = append(b, ']')
		}
		return b
	})
}

// event sends an event of the item that is open, with more members.
func (s *Stream) event(name string, members func([]byte) []byte) error {
	if s.Send == nil {
		return nil
	}
	s.head(name)
	s.buf = appendString(append(s.buf, `,"item_id":`...), s.open.id)
	s.index()
	s.buf = members(s.buf)
	return s.send()
}

// head begins an event.
func (s *Stream) head(name string) {
	s.buf = append(append(s.buf[:0], "event: "...), name...)
	s.buf = append(append(s.buf, "\ndata: {\"type\":\""...), name...)
	s.buf = append(s.buf, `","sequence_number":`...)
	s.buf = strconv.AppendInt(s.buf, int64(s.seq), 10)
}

// index appends the place of the item that is open. It is not in the output yet, or its last.
func (s *Stream) index() {
	at := len(s.R.Output)
	if s.open.status != InProgress {
		at--
	}
	s.buf = append(s.buf, `,"output_index":`...)
	s.buf = strconv.AppendInt(s.buf, int64(at), 10)
}

func (s *Stream) send() error {
	s.seq++
	s.buf = append(s.buf, "}\n\n"...)
	return s.Send(s.buf)
}

func appendString[T string | []byte](b []byte, s T) []byte { return jsonx.AppendString(b, s) }
