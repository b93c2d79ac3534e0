package api

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// TestBeamsBrokenOff: a search of which a step is refused, fails, is aborted by the engine or given
// up by the client ends with that, and leaves no step behind.
func TestBeamsBrokenOff(t *testing.T) {
	const body = `{"prompt":"hi","use_beam_search":true,"n":2,"max_tokens":4}`
	goOn := func(r *engine.Request, finish sample.Finish) script {
		return script{deltas: say(r, []int32{300}, []string{""}, finish)}
	}
	for name, c := range map[string]struct {
		// later is what happens to the requests after the first step.
		later  func(r *engine.Request) script
		refuse bool
		status int
	}{
		"goes on": {func(r *engine.Request) script { return goOn(r, sample.FinishLength) }, false,
			200},
		"refused": {nil, true, 503},
		"failed": {func(*engine.Request) script { return script{err: engine.ErrFailed} }, false,
			500},
		"aborted": {func(r *engine.Request) script { return goOn(r, sample.FinishAbort) }, false,
			503},
		"given up": {func(*engine.Request) script { return script{hang: true} }, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			ctx, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			s.engine.play = func(n int, r *engine.Request) script {
				if n == 0 {
					return goOn(r, sample.FinishLength)
				}
				if c.status == 0 {
					giveUp()
				}
				return c.later(r)
			}
			s.engine.submit = func(n int) error {
				if n > 0 && c.refuse {
					return engine.ErrOverloaded
				}
				return nil
			}
			rec := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(ctx, "POST", openai.CompletionPath,
				strings.NewReader(body))
			r.Host = "localhost"
			r.Header.Set("Content-Type", "application/json")
			s.Handler().ServeHTTP(rec, r)
			if c.status != 0 && rec.Code != c.status {
				t.Errorf("status %d, want %d: %s", rec.Code, c.status, rec.Body)
			}
			if n := s.engine.open.Load(); n != 0 {
				t.Errorf("%d sequences of the engine are left", n)
			}
			want := 3 // one, then one for each of two beams
			switch name {
			case "goes on":
				want = 7
			case "refused":
				want = 1
			}
			if len(s.engine.requests) != want {
				t.Errorf("%d requests of one token, want %d", len(s.engine.requests), want)
			}
		})
	}
}
