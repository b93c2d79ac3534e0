package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// TestErrorsByClient walks what goes wrong on any route: Anthropic's clients find it in the shape
// of their API, others in OpenAI's.
func TestErrorsByClient(t *testing.T) {
	s := newServer(t, func(o *Options) {
		o.Config.Server.APIKeys = []string{"k"}
		o.Config.Server.MaxRequestBodyBytes = 100
		o.Config.Server.MaxRequestsPerKey = 1
	})
	s.engine.submit = func(int) error { return engine.ErrOverloaded }
	const version = "2023-06-01"
	message := `{` + hiMessage + `}`
	for _, c := range []struct {
		method, path, body, key string
		busy                    bool
		status, overloaded      int // of Anthropic's clients, if that is another one
		kind, anthropic         string
	}{
		{"GET", "/v1/models", "", "", false, 401, 401, "AuthenticationError",
			"authentication_error"},
		{"POST", "/v1/messages", message, "x", false, 401, 401, "", "authentication_error"},
		{"GET", "/v1/none", "", "k", false, 404, 404, "NotFoundError", "not_found_error"},
		{"GET", "/v1/messages/none", "", "k", false, 404, 404, "", "not_found_error"},
		{"POST", "/v1/audio/speech", "{}", "k", false, 404, 404, "NotFoundError",
			"not_found_error"},
		{"GET", "/v1/models/none", "", "k", false, 404, 404, "NotFoundError", "not_found_error"},
		{"DELETE", "/v1/models", "", "k", false, 405, 405, "MethodNotAllowedError",
			"invalid_request_error"},
		{"GET", "/v1/messages", "", "k", false, 405, 405, "", "invalid_request_error"},
		{"POST", "/v1/completions", `{"prompt":"` + strings.Repeat("x", 100) + `"}`, "k", false,
			413, 413, "RequestEntityTooLargeError", "request_too_large"},
		{"POST", "/v1/completions", `{"prompt":"x"}`, "k", true, 429, 429, "rate_limit_error",
			"rate_limit_error"},
		{"POST", "/v1/completions", `{"prompt":"x"}`, "k", false, 503, 529,
			"ServiceUnavailableError", "overloaded_error"},
		{"POST", "/v1/messages", message, "k", false, 503, 529, "", "overloaded_error"},
	} {
		for _, anthropic := range []bool{false, true} {
			headers := []string{"Authorization", "Bearer " + c.key}
			if anthropic {
				headers = []string{"X-Api-Key", c.key, "Anthropic-Version", version}
			}
			leave := func() {}
			if c.busy {
				leave = s.busy(t, "k")
			}
			rec := s.do(c.method, c.path, c.body, headers...)
			leave()
			name := c.method + " " + c.path
			theirs := anthropic || strings.HasPrefix(c.path, "/v1/messages")
			status, kind := c.status, c.kind
			if theirs {
				status, kind = c.overloaded, c.anthropic
			}
			v := object(t, rec.Body.Bytes())
			if rec.Code != status || at(t, v, "error", "type") != kind {
				t.Errorf("%s, Anthropic's %v: %d %s", name, anthropic, rec.Code, rec.Body)
			}
			id := rec.Header().Get("Request-Id")
			if theirs && (v["type"] != "error" || v["request_id"] != id ||
				!strings.HasPrefix(id, "req_")) || !theirs && (v["type"] != nil || id != "") {
				t.Errorf("%s, Anthropic's %v: %q %s", name, anthropic, id, rec.Body)
			}
			if retry := rec.Header().Get("Retry-After") != ""; retry != (status == 429 ||
				status >= 500) {
				t.Errorf("%s: Retry-After of %d: %v", name, status, retry)
			}
			if status == 429 && !theirs && at(t, v, "error", "code") != "rate_limit_exceeded" {
				t.Errorf("%s: %s", name, rec.Body)
			}
		}
	}
	if log := s.log.String(); !strings.Contains(log, "path=/v1/messages status=529") {
		t.Errorf("the log has another status than the client: %s", log)
	}
}

// busy has a key have as many requests as it may, until leave is called.
func (s *testServer) busy(t *testing.T, key string) (leave func()) {
	t.Helper()
	entered, over, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	submit := s.engine.submit
	s.engine.submit = func(int) error {
		close(entered)
		<-over
		return nil
	}
	go func() {
		s.do("POST", completionsPath, `{"prompt":"x"}`, "Authorization", "Bearer "+key)
		close(ended)
	}()
	<-entered
	return func() {
		close(over)
		<-ended
		s.engine.submit = submit
	}
}

// TestAnthropicModels: Anthropic's clients get the list in their fields, page by page.
func TestAnthropicModels(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Info.Names = []string{"a", "b", "c/d", "e"} })
	ask := func(path string) *httptest.ResponseRecorder {
		return s.do("GET", path, "", "Anthropic-Version", "2023-06-01", "X-Api-Key", "none")
	}
	same(t, object(t, ask("/v1/models/c/d").Body.Bytes()), `{"type":"model","id":"c/d",
		"display_name":"c/d","created_at":"2023-11-14T22:13:20Z","lifecycle":"active",
		"max_input_tokens":256,"max_tokens":256}`)
	for query, want := range map[string]string{
		"":                     "a b c/d e, more false, a to e",
		"?limit=2":             "a b, more true, a to b",
		"?limit=2&after_id=b":  "c/d e, more false, c/d to e",
		"?after_id=e":          ", more false, <nil> to <nil>",
		"?before_id=e&limit=2": "b c/d, more true, b to c/d",
		"?before_id=b":         "a, more false, a to a",
	} {
		rec := ask("/v1/models" + query)
		v := object(t, rec.Body.Bytes())
		var names []string
		for _, m := range v["data"].([]any) {
			names = append(names, m.(map[string]any)["id"].(string))
		}
		got := strings.Join(names, " ") + ", more " + marshal(t, v["has_more"]) + ", " +
			text(v["first_id"]) + " to " + text(v["last_id"])
		if got != want {
			t.Errorf("%q: %s instead of %s", query, got, want)
		}
	}
	for _, query := range []string{"?limit=0", "?limit=x", "?after_id=none", "?before_id=none",
		"?after_id=a&before_id=b"} {
		if rec := ask("/v1/models" + query); rec.Code != http.StatusBadRequest {
			t.Errorf("%q: %d %s", query, rec.Code, rec.Body)
		}
	}
	if v := object(t, s.do("GET", "/v1/models/a", "").Body.Bytes()); v["object"] != "model" {
		t.Errorf("others get %v", v)
	}
}

func text(v any) string {
	if v == nil {
		return "<nil>"
	}
	return v.(string)
}

// TestAbsentRoutes: what is not there is said by its feature.
func TestAbsentRoutes(t *testing.T) {
	s := newServer(t, keeping(t, store.Options{}))
	t.Cleanup(s.Close)
	for path, want := range map[string]string{
		"/v1/audio/transcriptions":      "this server has no speech and transcriptions",
		"/v1/audio":                     "no speech",
		"/v1/images/generations":        "no images",
		"/v1/moderations":               "/classify",
		"/v1/vector_stores":             "/v1/embeddings",
		"/v1/vector_stores/a/files":     "/v1/embeddings",
		"/v1/realtime":                  "no realtime sessions",
		"/v1/realtime/sessions":         "no realtime sessions",
		"/v1/load_lora_adapter":         "--enable-lora",
		"/v1/fine_tuning/jobs":          "--enable-rlhf",
		"/v1/assistants":                "/v1/responses",
		"/v1/threads/a/runs":            "/v1/responses",
		"/v1/chat/completions/render":   "/tokenize",
		"/v1/chat/completions/chatcmpl": "/v1/responses stores answers",
		"/v1/complete":                  "/v1/messages",
		"/v1/responses/compact":         "no compaction",
		"/api/tags":                     "Ollama",
		"/v1/audios":                    "no such route: /v1/audios",
		"/v1/moderations/a":             "no such route",
		"/v1/render":                    "no such route",
	} {
		for _, method := range []string{"GET", "POST"} {
			rec := s.do(method, path, "")
			if m, _ := at(t, object(t, rec.Body.Bytes()), "error",
				"message").(string); rec.Code != 404 || !strings.Contains(m, want) {
				t.Errorf("%s: %d %s", path, rec.Code, rec.Body)
			}
		}
	}
	if rec := s.do("GET", "/v1/chat/completions/batch", ""); rec.Code != 405 {
		t.Errorf("a route that there is: %d %s", rec.Code, rec.Body)
	}
}
