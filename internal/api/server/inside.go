package server

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Inside is a request that this program makes for a client: a row of a batch.
type Inside struct {
	ID, Client, Path string
	Body             []byte
}

// Posts reports whether a POST of a path is answered.
func (s *Server) Posts(path string) bool {
	r := s.resources[path]
	return r != nil && r.handler(http.MethodPost, nil) != nil
}

// Answer answers a request of this program as its route, which is there (Posts), answers a
// client's: the same checks of the same fields, and the answer without its connection. A client's
// limits are not those of its rows. Failure makes an answer of an error.
func (s *Server) Answer(ctx context.Context, q Inside) (status int, answer []byte, err error) {
	r := q.request().WithContext(ctx)
	w := &memory{header: http.Header{}}
	err = s.answerInside(w, &Request{Request: r, Owner: q.Client, shape: s.shapeOf(r),
		Call: call.Call{ID: q.ID, Client: q.Client, Row: true}})
	return w.status, bytes.TrimSpace(w.body.Bytes()), err
}

// Failure is an error as the route of a request of this program answers a client with it.
func (s *Server) Failure(q Inside, e *wire.Error) (status int, answer []byte) {
	shape, h := s.shapeOf(q.request()), http.Header{}
	shape.Begin(h, q.ID)
	return shape.Error(h, e)
}

func (q *Inside) request() *http.Request {
	return &http.Request{Method: http.MethodPost, URL: &url.URL{Path: q.Path},
		Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {q.ID}},
		Body:   io.NopCloser(bytes.NewReader(q.Body)), ContentLength: int64(len(q.Body))}
}

func (s *Server) answerInside(w *memory, r *Request) (err error) {
	defer func() {
		if v := recover(); v != nil {
			s.log.Error("handler panicked", "path", wire.Clip(r.URL.Path), "panic", v, "stack",
				string(debug.Stack()))
			err = &wire.Error{Status: http.StatusInternalServerError, Message: InternalError}
		}
	}()
	return s.resources[r.URL.Path].handler(http.MethodPost, r.shape)(w, r)
}

// memory keeps an answer.
type memory struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *memory) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *memory) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

// Write implements io.Writer.
func (w *memory) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
