package server

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
)

// testServer answers two routes with nothing.
type testServer struct{ *Server }

func newServer(t testing.TB, change ...func(*Options)) testServer {
	t.Helper()
	o := Options{Config: config.Default().Server}
	for _, f := range change {
		f(&o)
	}
	s := New(o)
	empty := func(w http.ResponseWriter, _ *Request) error {
		w.WriteHeader(http.StatusOK)
		return nil
	}
	s.Add(Route{Method: "GET", Path: "/v1/models", Handler: empty},
		Route{Method: "POST", Path: "/v1/completions", Handler: empty})
	return testServer{s}
}

// newRequest makes a request to a loopback host name.
func newRequest(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:8000"
	return r
}

// do sends one request through the handler and returns the response.
func (s testServer) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := newRequest(method, path, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	return rec
}
