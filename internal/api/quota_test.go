package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
)

// TestQuota answers as many requests of one key at a time as are allowed, and others beside them.
func TestQuota(t *testing.T) {
	s := newServer(t, func(o *Options) {
		o.Config.Server.APIKeys = []string{"a", "b"}
		o.Config.Server.MaxRequestsPerKey = 2
	})
	gate := make(chan struct{})
	s.engine.play = func(n int, r *engine.Request) script {
		held := sayHello(n, r)
		if len(s.engine.requests) < 2 {
			held.gate = gate
		}
		return held
	}
	ask := func(key string) *httptest.ResponseRecorder {
		return s.do("POST", completionsPath, `{"prompt":"hi"}`, "Authorization", "Bearer "+key)
	}
	var first sync.WaitGroup
	for range 2 {
		first.Go(func() {
			if rec := ask("a"); rec.Code != http.StatusOK {
				t.Errorf("one of two: %d %s", rec.Code, rec.Body)
			}
		})
	}
	for s.InFlight() < 2 || s.engine.open.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	rec := ask("a")
	if rec.Code != http.StatusTooManyRequests || rec.Header().Get("Retry-After") == "" ||
		!strings.Contains(rec.Body.String(), "--max-requests-per-key") {
		t.Errorf("a third: %d %v %s", rec.Code, rec.Header(), rec.Body)
	}
	if rec := ask("b"); rec.Code != http.StatusOK {
		t.Errorf("another key: %d %s", rec.Code, rec.Body)
	}
	close(gate)
	first.Wait()
	if rec := ask("a"); rec.Code != http.StatusOK {
		t.Errorf("afterwards: %d %s", rec.Code, rec.Body)
	}
	if n := s.InFlight(); n != 0 {
		t.Errorf("%d are in flight", n)
	}
}
