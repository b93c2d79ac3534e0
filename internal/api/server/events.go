package server

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/eagleray/eagleray/internal/api/wire"
)

// ErrClientGone marks a write that failed: the client no longer reads, and nothing more is written.
var ErrClientGone = errors.New("client stopped reading")

// EventWriter sends server-sent events. Its buffer is reused: in the steady state an event
// allocates nothing.
type EventWriter struct {
	out     http.ResponseWriter
	rc      *http.ResponseController
	timeout time.Duration
	// renewed is when the write deadline was last moved.
	renewed time.Time
	Started bool
	Buf     []byte
}

// Events begins a stream.
func (s *Server) Events(w http.ResponseWriter) *EventWriter {
	return &EventWriter{out: w, rc: http.NewResponseController(w), timeout: s.lim.WriteTimeout,
		Buf: make([]byte, 0, 1024)}
}

// Send writes the event in buf and flushes it, with the headers before the first one.
func (e *EventWriter) Send() error {
	if !e.Started {
		e.Started = true
		h := e.out.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no") // nginx would hold the events back
		e.out.WriteHeader(http.StatusOK)
	}
	// The deadline belongs to the single write, but moving it costs a timer: once per quarter is
	// enough.
	if now := time.Now(); now.Sub(e.renewed) > e.timeout/4 {
		if err := e.rc.SetWriteDeadline(now.Add(e.timeout)); err != nil &&
			!errors.Is(err, http.ErrNotSupported) {
			return fmt.Errorf("%w: %w", ErrClientGone, err)
		}
		e.renewed = now
	}
	if _, err := e.out.Write(e.Buf); err != nil {
		return fmt.Errorf("%w: %w", ErrClientGone, err)
	}
	if err := e.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("%w: %w", ErrClientGone, err)
	}
	return nil
}

// done ends the stream as OpenAI does.
func (e *EventWriter) done() error {
	e.Buf = append(e.Buf[:0], "data: [DONE]\n\n"...)
	return e.Send()
}

// fail sends an error as an event, then ends the stream: the status is 200 already.
func (e *EventWriter) fail(err *wire.Error) error {
	e.Buf = OpenAI.AppendEvent(e.Buf[:0], err.Append(nil))
	if err := e.Send(); err != nil {
		return err
	}
	return e.done()
}

// End closes the stream that answers a request, after the last delta or an error. An error before
// the first event is returned, to be answered with its own status.
func (s *Server) End(r *Request, e *EventWriter, err error) error {
	switch {
	case err == nil:
		return e.done()
	case !e.Started || errors.Is(err, ErrClientGone):
		return err
	}
	api := s.StatusOf(err)
	s.LogError(err, api, r.LogName())
	return e.fail(api.OnWire())
}
