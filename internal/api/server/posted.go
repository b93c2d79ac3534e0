package server

import (
	"cmp"
	"net/http"
	"time"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// timed is a request that may say how long its client waits for the answer, in seconds.
type timed interface{ Patience() *float64 }

// Post is a handler of requests with a JSON body. decode reads its fields; those that it leaves
// over are logged as unknown. respond has the time that the client gives, and may let go of the
// fields before it ends.
func Post[T any](s *Server, decode func(f *wire.Fields) (T, *wire.Error),
	respond func(w http.ResponseWriter, r *Request, f *wire.Fields, req T) error) Handler {
	return func(w http.ResponseWriter, r *Request) error {
		begun := time.Now()
		f, err := s.ReadBody(w, r)
		if err != nil {
			return err
		}
		defer f.Done()
		req, bad := decode(f)
		if bad != nil {
			return bad
		}
		s.LogUnknown(f)
		var given *float64
		if t, ok := any(req).(timed); ok {
			given = t.Patience()
		}
		r, cancel, err := Deadline(r, given, begun)
		if err != nil {
			return err
		}
		defer cancel()
		if err := respond(w, r, f, req); err != nil {
			return cmp.Or(call.Ended(r.Context()), err) // what was broken off does not say why
		}
		return nil
	}
}

// Posted is the route of a POST with a JSON body, which has the fields that decode reads: see Reads
// for the examples.
func Posted[T any](s *Server, path string, decode func(f *wire.Fields) (T, *wire.Error),
	respond func(w http.ResponseWriter, r *Request, f *wire.Fields, req T) error, doc Doc,
	examples ...string) Route {
	doc.Body = Reads(decode, examples...)
	doc.Body.Forms = doc.Forms
	return Route{Method: http.MethodPost, Path: path, Handler: Post(s, decode, respond), Doc: doc}
}

// Checked is a handler of requests that a check lets through.
func Checked(check func() error, h Handler) Handler {
	return func(w http.ResponseWriter, r *Request) error {
		if err := check(); err != nil {
			return err
		}
		return h(w, r)
	}
}
