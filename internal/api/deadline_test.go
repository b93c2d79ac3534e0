package api

import (
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/engine"
)

// TestDeadline gives a request a time, in the header, in the field, or in both, of which the less
// counts. Its sequences are given up when it is over.
func TestDeadline(t *testing.T) {
	for _, c := range []struct {
		name, header, field string
		status              int
		says                string
	}{
		{"none", "", "", 200, ""},
		{"long", "1000", `,"timeout":1e9`, 200, ""},
		{"header", "0.05", "", 408, "the request's time is over: 0.05 s"},
		{"field", "", `,"timeout":0.05`, 408, "0.05 s"},
		{"the less", "100", `,"timeout":0.05`, 408, "0.05 s"},
		{"no number", "soon", "", 400, `X-Request-Timeout \"soon\"`},
		{"negative", "-1", "", 400, `\"-1\"`},
		{"zero", "", `,"timeout":0`, 400, "`timeout` of 0"},
		{"text", "", `,"timeout":"soon"`, 400, "timeout"},
	} {
		for _, path := range []string{completionsPath, openai.ChatPath} {
			s := newServer(t)
			if c.status == 408 {
				s.engine.play = func(int, *engine.Request) script { return script{hang: true} }
			}
			body := `{"prompt":"hi"` + c.field + `}`
			if path == openai.ChatPath {
				body = `{"messages":[{"role":"user","content":"hi"}]` + c.field + `}`
			}
			var header []string
			if c.header != "" {
				header = []string{"X-Request-Timeout", c.header}
			}
			begun := time.Now()
			rec := s.do("POST", path, body, header...)
			if rec.Code != c.status || !strings.Contains(rec.Body.String(), c.says) {
				t.Errorf("%s, %s: %d %s", c.name, path, rec.Code, rec.Body)
			}
			if c.status == 408 && time.Since(begun) < 50*time.Millisecond {
				t.Errorf("%s: ended after %v", c.name, time.Since(begun))
			}
			if n := s.engine.open.Load(); n != 0 {
				t.Errorf("%s: %d sequences are still open", c.name, n)
			}
		}
	}
}

// TestDeadlineOfTexts gives routes that count tokens less time than that takes.
func TestDeadlineOfTexts(t *testing.T) {
	s := newServer(t)
	for path, body := range map[string]string{
		"/tokenize":               `{"prompt":"` + strings.Repeat("many words ", 90000) + `"}`,
		anthropic.CountTokensPath: `{"messages":[{"role":"user","content":"hi"}],"timeout":1e-9}`,
	} {
		rec := s.do("POST", path, body, "X-Request-Timeout", "1e-9")
		if rec.Code != 408 || !strings.Contains(rec.Body.String(), "time is over") {
			t.Errorf("%s: %d %s", path, rec.Code, rec.Body)
		}
	}
}
