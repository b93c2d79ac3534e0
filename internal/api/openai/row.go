package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"

	"github.com/eagleray/eagleray/internal/api/batch"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
)

// rowPaths are the routes that rows of a batch may ask, as far as the server has them.
var rowPaths = []string{chatPath, completionPath, "/v1/responses", "/v1/embeddings", "/v1/score",
	"/score", "/rerank", "/v1/rerank", "/v2/rerank", "/v1/messages"}

// rowKey is what the context of a row of a batch holds its client's name under.
type rowKey struct{}

// rowOf returns whose row of a batch a request is.
func rowOf(ctx context.Context) (client string, is bool) {
	client, is = ctx.Value(rowKey{}).(string)
	return client, is
}

// answersRows reports whether rows of a batch may ask a path.
func (s *Server) answersRows(path string) bool {
	r := s.routes[path]
	return r != nil && r.methods["POST"] != nil && slices.Contains(rowPaths, path)
}

// Row answers a row of a batch of a client as its route answers a request: the same checks of the
// same fields, and the answer without its connection. It fails with an error that wraps
// batch.ErrUnavailable where a client would be told to come again, and with ctx's.
func (s *Server) Row(ctx context.Context, client string, row *batch.Row) (batch.Answer, error) {
	id := newID()
	w := &rowWriter{header: http.Header{}}
	r := (&http.Request{Method: "POST", URL: &url.URL{Path: row.URL},
		Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {id}},
		Body:   io.NopCloser(bytes.NewReader(row.Body)), ContentLength: int64(len(row.Body)),
	}).WithContext(context.WithValue(ctx, rowKey{}, client))
	err := s.rowTo(w, r)
	a := batch.Answer{Status: w.status, RequestID: id, Body: bytes.TrimSpace(w.body.Bytes())}
	switch {
	case ctx.Err() != nil:
		return a, ctx.Err()
	case errors.Is(err, engine.ErrFailed), errors.Is(err, engine.ErrStopped):
		return a, fmt.Errorf("%w: %w", batch.ErrUnavailable, err)
	case err != nil:
		api := asAPIError(err).OnWire()
		if api.Status == http.StatusServiceUnavailable {
			return a, fmt.Errorf("%w: %w", batch.ErrUnavailable, err)
		}
		s.logError(err, api)
		a.Status, a.Body = api.Status, api.Append(nil)
	case !json.Valid(a.Body):
		return a, fmt.Errorf("the answer of %s is not JSON", row.URL)
	}
	return a, nil
}

func (s *Server) rowTo(w *rowWriter, r *http.Request) (err error) {
	defer func() {
		if v := recover(); v != nil {
			s.log.Error("handler panicked", "path", wire.Clip(r.URL.Path), "panic", v, "stack",
				string(debug.Stack()))
			err = &wire.Error{Status: http.StatusInternalServerError, Message: "internal server error"}
		}
	}()
	if !s.answersRows(r.URL.Path) {
		return wire.BadRequest("url", "`url` %s is none that rows of a batch may have", wire.Clip(r.URL.Path))
	}
	return s.routes[r.URL.Path].methods["POST"](w, r)
}

// rowWriter keeps an answer in memory.
type rowWriter struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *rowWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *rowWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
}

// Write implements io.Writer.
func (w *rowWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}
