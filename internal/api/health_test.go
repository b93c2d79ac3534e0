package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// TestHealthRoutes walks the states of an engine: what says that it serves, and what that it is not
// to be restarted.
func TestHealthRoutes(t *testing.T) {
	for _, c := range []struct {
		name         string
		state        error
		ready, alive int
		says         string
	}{
		{"serving", nil, 200, 200, ""},
		{"recovering", fmt.Errorf("%w: rank 1: killed", engine.ErrRecovering), 503, 200,
			"recovering: rank 1"},
		{"stalled", fmt.Errorf("%w: rank 0", engine.ErrStalled), 503, 200, "stalled: rank 0"},
		{"draining", engine.ErrStopped, 503, 200, "draining"},
		{"failed", fmt.Errorf("%w: rank 1", engine.ErrFailed), 503, 500, "failed: rank 1"},
	} {
		s := newServer(t)
		s.engine.health = c.state
		for _, path := range []string{"/health", "/ping", "/readyz", "/health?generate"} {
			rec := s.do("GET", path, "")
			if rec.Code != c.ready || !strings.Contains(rec.Body.String(), c.says) ||
				(rec.Header().Get("Retry-After") == "") != (c.ready == 200) {
				t.Errorf("%s, %s: %d %v %s", c.name, path, rec.Code, rec.Header(), rec.Body)
			}
		}
		if rec := s.do("GET", "/livez", ""); rec.Code != c.alive {
			t.Errorf("%s, /livez: %d %s", c.name, rec.Code, rec.Body)
		}
	}
}

// TestHealthOfSeveral says which engine does not serve while others do, by its number among those
// of all servers.
func TestHealthOfSeveral(t *testing.T) {
	list := []error{nil, nil, nil}
	s := newServer(t, func(o *Options) {
		o.Info.First, o.Health = 2, func(context.Context) []error { return list }
	})
	if rec := s.do("GET", "/health", ""); rec.Code != 200 || rec.Body.Len() != 0 {
		t.Errorf("all serve: %d %q", rec.Code, rec.Body)
	}
	list[1] = fmt.Errorf("%w: rank 0 died", engine.ErrFailed)
	rec := s.do("GET", "/health", "")
	if rec.Code != 200 || rec.Body.String() != "engine 3: engine failed: rank 0 died\n" ||
		rec.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("one has failed: %d %v %q", rec.Code, rec.Header(), rec.Body)
	}
}

// TestHealthGenerates asks for a real token, and needs a key for it.
func TestHealthGenerates(t *testing.T) {
	s := newServer(t)
	if rec := s.do("GET", "/health?generate=1", ""); rec.Code != 200 ||
		s.engine.last(t).Params.MaxTokens != 1 {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
	s.engine.submit = func(int) error { return errors.New("no luck") }
	if rec := s.do("GET", "/health?generate=1", ""); rec.Code != 503 {
		t.Errorf("an engine that has no token: %d %s", rec.Code, rec.Body)
	}
	s = newServer(t, func(o *Options) { o.Config.Server.APIKeys = []string{"key"} })
	if rec := s.do("GET", "/health?generate=1", ""); rec.Code != 401 {
		t.Errorf("without a key: %d", rec.Code)
	}
}

// TestHealthWaitsForStores: a server that is handed a socket is ready once the one before has let
// go of what is stored.
func TestHealthWaitsForStores(t *testing.T) {
	dir := t.TempDir()
	before := store.New(dir, store.Options{})
	if err := before.Open(); err != nil {
		t.Fatal(err)
	}
	kept := store.New(dir, store.Options{})
	t.Cleanup(func() { kept.Close() })
	s := newServer(t, func(o *Options) { o.Responses = kept })
	for _, path := range []string{"/health", "/ping", "/readyz"} {
		if rec := s.do("GET", path, ""); rec.Code != 503 ||
			rec.Header().Get("Retry-After") != "1" || !strings.Contains(rec.Body.String(),
			"what is stored cannot be had yet: ") {
			t.Errorf("%s while another has it: %d %s", path, rec.Code, rec.Body)
		}
	}
	if rec := s.do("GET", "/livez", ""); rec.Code != 200 {
		t.Errorf("/livez: %d %s", rec.Code, rec.Body)
	}
	before.Close()
	if rec := s.do("GET", "/health", ""); rec.Code != 200 {
		t.Errorf("/health once it is there: %d %s", rec.Code, rec.Body)
	}
	s.ok(t, responses.ResponsesPath, `{`+hiInput+`}`)
}
