package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http"
	"strconv"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Request is a request with what the server knows of it.
type Request struct {
	*http.Request
	call.Call
	// Owner names whose responses, files and batches are whose: those of an API key are found with
	// it alone, those of a server without keys by everyone. A row has the owner of its batch.
	Owner string
	shape *Shape
	// resume is nil for a request that no other server may go on with.
	resume *resumption
}

// URL is the address of a path of this server as the client of a request calls it, through a proxy
// that says so.
func (s *Server) URL(r *Request, path string) string {
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return scheme + "://" + r.Host + s.opt.Config.RootPath + path
}

// LogName is what the request is called, for the log; one without a name leaves nothing there.
func (r *Request) LogName() slog.Attr {
	id := r.Header.Get("X-Request-Id")
	if r.Named != nil {
		id = cmp.Or(*r.Named, id)
	}
	if id == "" {
		return slog.Attr{}
	}
	return slog.String("id", wire.Clip(id))
}

// WithContext returns the request with another context.
func (r *Request) WithContext(ctx context.Context) *Request {
	c := *r
	c.Request = r.Request.WithContext(ctx)
	return &c
}

// newRequest finds out whose request it is.
func (s *Server) newRequest(r *http.Request) *Request {
	q := &Request{Request: r, Owner: "all"}
	if n, found := s.keys.find(r.Header); found {
		q.Client = "key " + strconv.Itoa(n)
		sum := sha256.Sum256(s.keys[n][:])
		q.Owner = hex.EncodeToString(sum[:8])
		return q
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	q.Client = host
	return q
}
