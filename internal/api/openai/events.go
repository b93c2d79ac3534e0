package openai

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
)

// errClientGone marks a write that failed: the client no longer reads, and nothing more is written.
var errClientGone = errors.New("client stopped reading")

// eventWriter sends server-sent events. Its buffer is reused: in the steady state an event
// allocates nothing.
type eventWriter struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	// renewed is when the write deadline was last moved.
	renewed time.Time
	started bool
	buf     []byte
}

func newEventWriter(w http.ResponseWriter, timeout time.Duration) *eventWriter {
	return &eventWriter{w: w, rc: http.NewResponseController(w), timeout: timeout,
		buf: make([]byte, 0, 1024)}
}

// send writes the event in buf and flushes it, with the headers before the first one.
func (e *eventWriter) send() error {
	if !e.started {
		e.started = true
		h := e.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx would hold the events back
		e.w.WriteHeader(http.StatusOK)
	}
	// The deadline belongs to the single write, but moving it costs a timer: once per quarter is
	// enough.
	if now := time.Now(); now.Sub(e.renewed) > e.timeout/4 {
		if err := e.rc.SetWriteDeadline(now.Add(e.timeout)); err != nil &&
			!errors.Is(err, http.ErrNotSupported) {
			return fmt.Errorf("%w: %w", errClientGone, err)
		}
		e.renewed = now
	}
	if _, err := e.w.Write(e.buf); err != nil {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	if err := e.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("%w: %w", errClientGone, err)
	}
	return nil
}

// done ends the stream as OpenAI does.
func (e *eventWriter) done() error {
	e.buf = append(e.buf[:0], "data: [DONE]\n\n"...)
	return e.send()
}

// fail sends an error as an event, then ends the stream: the status is 200 already.
func (e *eventWriter) fail(err *wire.Error) error {
	e.buf = append(e.buf[:0], "data: "...)
	e.buf = err.Append(e.buf)
	e.buf = append(e.buf, "\n\n"...)
	if err := e.send(); err != nil {
		return err
	}
	return e.done()
}

// end closes a stream after the last delta or an error. An error before the first event is
// returned, to be answered with its own status.
func (s *Server) end(e *eventWriter, err error) error {
	switch {
	case err == nil:
		return e.done()
	case !e.started || errors.Is(err, errClientGone):
		return err
	}
	api := asAPIError(err)
	s.logError(err, api)
	return e.fail(api.OnWire())
}

// chunkHead is what every event of a stream begins with.
func chunkHead(g *generation, object string) []byte {
	b := append([]byte(nil), `data: {"id":`...)
	b = wire.AppendString(b, g.id)
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, g.created, 10)
	b = append(b, `,"model":`...)
	b = wire.AppendString(b, g.model)
	return append(b, `,"choices":[`...)
}

// appendFinish appends finish_reason, null while running.
func appendFinish(b []byte, c *choice) []byte {
	b = append(b, `,"finish_reason":`...)
	if !c.finished {
		return append(b, "null"...)
	}
	return wire.AppendString(b, c.finishReason())
}

// appendStopReason appends stop_reason: a stop string, a stop token, or null.
func appendStopReason(b []byte, c *choice) []byte {
	b = append(b, `,"stop_reason":`...)
	switch {
	case c.finish == sample.FinishRepetition:
		return wire.AppendString(b, repetitionDetected)
	case c.stopString != "":
		return wire.AppendString(b, c.stopString)
	case c.finished && c.stopToken >= 0:
		return strconv.AppendInt(b, int64(c.stopToken), 10)
	}
	return append(b, "null"...)
}

// appendTokenIDs appends a member with a list of ids, or null.
func appendTokenIDs(b []byte, name string, ids []int32, on bool) []byte {
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	if !on {
		return append(b, "null"...)
	}
	return wire.AppendInts(b, ids)
}

// appendUsage appends the usage object.
func (s *Server) appendUsage(b []byte, u usage) []byte {
	b = append(b, `"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.prompt+u.output), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(u.output), 10)
	if s.opt.Config.Server.EnablePromptTokensDetails {
		b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
		b = strconv.AppendInt(b, int64(u.cached), 10)
		b = append(b, '}')
	}
	if u.reasons {
		b = append(b, `,"completion_tokens_details":{"reasoning_tokens":`...)
		b = strconv.AppendInt(b, int64(u.reasoning), 10)
		b = append(b, '}')
	}
	return append(b, '}')
}

// usageOf counts the tokens of one choice, for continuous_usage_stats.
func (g *generation) usageOf(i int) usage {
	c := &g.choices[i]
	u := usage{prompt: len(g.prompts[i/g.n].Prompt), cached: c.cached}
	u.add(c)
	return u
}
