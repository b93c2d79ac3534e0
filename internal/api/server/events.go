package openai

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/eagleray/eagleray/internal/api/wire"
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

// events begins a stream.
func (s *Server) events(w http.ResponseWriter) *eventWriter {
	return &eventWriter{w: w, rc: http.NewResponseController(w), timeout: s.lim.WriteTimeout,
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
	api := s.statusOf(err)
	s.logError(err, api)
	return e.fail(api.OnWire())
}
