package server

import (
	"net/http"
	"strconv"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Shape is what all answers to the clients of one dialect have in common, whatever the route.
type Shape struct {
	// Begin sets headers of every answer; id is the request's.
	Begin func(h http.Header, id string)
	// Error is the status of an error, and its body. h has what Begin has set.
	Error func(h http.Header, e *wire.Error) (status int, body []byte)
	// ErrorEvent is the name of the event of an error within a stream; "" for one without.
	ErrorEvent string
}

// OpenAI is the shape where Options name no other.
var OpenAI = Shape{
	Begin: func(http.Header, string) {},
	Error: func(_ http.Header, e *wire.Error) (int, []byte) { return e.Status, e.Append(nil) },
}

// AppendEvent writes the event of an error within a stream, of which body is that of Error.
func (s *Shape) AppendEvent(b, body []byte) []byte {
	if s.ErrorEvent != "" {
		b = append(append(append(b, "event: "...), s.ErrorEvent...), '\n')
	}
	b = append(append(b, "data: "...), body...)
	return append(b, "\n\n"...)
}

// shapeOf is the shape of the answer to a request.
func (s *Server) shapeOf(r *http.Request) *Shape {
	if s.opt.Shape != nil {
		if shape := s.opt.Shape(s.path(r), r.Header); shape != nil {
			return shape
		}
	}
	return &OpenAI
}

// begin sets the headers that every answer to a request has.
func (s *Shape) begin(h http.Header) { s.Begin(h, call.NewID()) }

// Fail answers with an error. A failed write has no one to be reported to.
func (s *Shape) Fail(w http.ResponseWriter, e *wire.Error) {
	h := w.Header()
	status, body := s.Error(h, e)
	h.Set("Content-Type", "application/json")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	if e.Allow != "" {
		h.Set("Allow", e.Allow)
	}
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
