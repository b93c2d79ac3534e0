package api

import (
	"context"
	"errors"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/engine"
)

func TestModels(t *testing.T) {
	s := newServer(t)
	got := object(t, s.do("GET", "/v1/models", "").Body.Bytes())
	if got["object"] != "list" || len(got["data"].([]any)) != 2 {
		t.Fatalf("models %v", got)
	}
	for i, name := range []string{"tiny", "alias/tiny"} {
		card := at(t, got, "data", i).(map[string]any)
		if p := at(t, card, "permission", 0).(map[string]any); p["object"] != "model_permission" ||
			p["allow_sampling"] != true {
			t.Errorf("permission %v", p)
		}
		same(t, card, `{"id":"`+name+`","object":"model","created":1700000000,"owned_by":"eagleray","root":"/models/tiny","parent":null,"max_model_len":256}`, "permission")
	}
	if one := object(t, s.do("GET", "/v1/models/tiny", "").Body.Bytes()); one["id"] != "tiny" {
		t.Errorf("model %v", one)
	}
}

// TestHealth is the promise: 200 if and only if the engine would serve.
func TestHealth(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Limits.HealthTimeout = 20 * time.Millisecond })
	for _, path := range []string{"/health", "/ping"} {
		s.engine.health = nil
		if rec := s.do("GET", path, ""); rec.Code != 200 || rec.Body.Len() != 0 {
			t.Errorf("%s answered %d %q", path, rec.Code, rec.Body)
		}
		for err, message := range map[error]string{
			engine.ErrStopped:                        "stopped",
			errors.New("rank 1 on node b is silent"): "rank 1 on node b",
			context.DeadlineExceeded:                 "within 20ms",
		} {
			s.engine.health = err
			s.log.Reset()
			rec := s.do("GET", path, "")
			if rec.Code != 503 || !strings.Contains(rec.Body.String(), message) ||
				rec.Header().Get("Retry-After") == "" {
				t.Errorf("%s with %v answered %d %s", path, err, rec.Code, rec.Body)
			}
			// Draining is no failure: probes ask every few seconds while it lasts.
			draining := errors.Is(err, engine.ErrStopped)
			if strings.Contains(rec.Body.String(), "draining") != draining ||
				strings.Contains(s.log.String(), "level=ERROR") == draining {
				t.Errorf("%s with %v answered %s, and logged %q", path, err, rec.Body, s.log)
			}
		}
	}
}

func TestVersionLoadMetrics(t *testing.T) {
	s := newServer(t)
	if body := s.do("GET", "/version", "").Body.String(); body != `{"version":"1.2.3"}`+"\n" {
		t.Errorf("version %q", body)
	}
	inside := make(chan string, 1)
	s.engine.play = func(_ int, r *engine.Request) script {
		inside <- s.do("GET", "/load", "").Body.String()
		return sayHello(0, r)
	}
	s.ok(t, completionsPath, `{`+hi+`,"n":1,"max_tokens":7}`)
	if r := s.engine.last(t); r.Params.MaxTokens != 7 {
		t.Errorf("the engine is told max_tokens %d", r.Params.MaxTokens)
	}
	if load := <-inside; load != `{"server_load":1}`+"\n" {
		t.Errorf("load inside a request %q", load)
	}
	if body := s.do("GET", "/load", "").Body.String(); body != `{"server_load":0}`+"\n" {
		t.Errorf("load %q", body)
	}
	s.do("DELETE", "/v1/models", "")
	s.do("GET", "/wp-admin/"+strings.Repeat("x", 50), "")
	text := s.do("GET", "/metrics", "").Body.String()
	for _, want := range []string{
		`http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1`,
		`http_requests_total{handler="/v1/models",method="other",status="4xx"} 1`,
		`http_requests_total{handler="other",method="other",status="4xx"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if bare := newServer(t, func(o *Options) { o.Metrics = nil }); bare.do("GET", "/metrics",
		"").Code != 404 || bare.post(completionsPath, `{`+hi+`}`).Code != 200 {
		t.Error("a server without metrics misbehaves")
	}
}

func TestTokenize(t *testing.T) {
	s := newServer(t)
	tok := s.Model.Tokenizer
	got := s.ok(t, "/tokenize",
		`{"model":"tiny","prompt":"func é<|im_end|>","return_token_strs":true}`)
	ids := tok.Encode("func é<|im_end|>", true)
	var want, strs []any
	for _, id := range ids {
		text, _ := tok.Token(id)
		want, strs = append(want, float64(id)), append(strs, text)
	}
	if !reflect.DeepEqual(got["tokens"], want) || !reflect.DeepEqual(got["token_strs"], strs) ||
		got["count"] != float64(len(ids)) || got["max_model_len"] != 256.0 {
		t.Errorf("got %v", got)
	}
	if got := s.ok(t, "/tokenize", `{"prompt":""}`); got["count"] != 0.0 ||
		got["token_strs"] != nil || !reflect.DeepEqual(got["tokens"], []any{}) {
		t.Errorf("empty prompt gave %v", got)
	}
	chat := s.ok(t, "/tokenize", `{`+hiChat+`}`)
	s.ok(t, openai.ChatPath, `{`+hiChat+`}`)
	if chat["count"] != float64(len(s.engine.last(t).Prompt)) {
		t.Errorf("chat counts %v", chat["count"])
	}
	if body := s.ok(t, "/detokenize", `{"tokens":[`+repeat("2047",
		1)+`,65]}`); body["prompt"] != tok.Decode([]int32{2047, 65}, false) {
		t.Errorf("detokenize gave %v", body)
	}
}

func TestAccessLog(t *testing.T) {
	s := newServer(t)
	s.do("POST", completionsPath, `{"prompt":"secret words"}`, "X-Request-Id", "abc")
	s.do("GET", "/health", "")
	log := s.log.String()
	if strings.Count(log, "msg=request") != 1 || !strings.Contains(log, "status=200") ||
		!strings.Contains(log, "path=/v1/completions") || !strings.Contains(log, "id=abc") {
		t.Errorf("log %q", log)
	}
	if strings.Contains(log, "secret") || strings.Contains(log, "hello") {
		t.Errorf("the log shows bodies: %q", log)
	}
	s.do("GET", "/x%0aINJECTED", "")
	if strings.Contains(s.log.String(), "\nINJECTED") {
		t.Error("a path broke the log line")
	}
	quiet := newServer(t, func(o *Options) { o.Config.Server.DisableAccessLog = true })
	quiet.engine.submit = func(int) error { return engine.ErrFailed }
	quiet.post(completionsPath, `{`+hi+`}`)
	if log := quiet.log.String(); strings.Contains(log, "msg=request ") || !strings.Contains(log,
		"request failed") {
		t.Errorf("log without the access log %q", log)
	}
}

// TestTokenizeIsBounded: texts that no model could take are refused, not counted.
func TestTokenizeIsBounded(t *testing.T) {
	s := newServer(t)
	ask := func(n int) *httptest.ResponseRecorder {
		return s.post("/tokenize", `{"prompt":"`+strings.Repeat(" ", n)+`"}`)
	}
	if rec := ask(generate.LeastTokenized); rec.Code != 200 {
		t.Errorf("the longest text: %d %s", rec.Code, rec.Body)
	}
	if rec := ask(generate.LeastTokenized + 1); rec.Code != 400 ||
		!strings.Contains(rec.Body.String(), "(at most 1048576 bytes)") {
		t.Errorf("a longer one: %d %s", rec.Code, rec.Body)
	}
	chat := `{"messages":[{"role":"user","content":"` + strings.Repeat(" ",
		generate.LeastTokenized) + `"}]}`
	if rec := s.post("/tokenize", chat); rec.Code != 400 {
		t.Errorf("a conversation that cannot fit: %d %s", rec.Code, rec.Body)
	}
}

// TestDetokenizeIsBounded: a list of numbers may not ask for a text a hundred times as long.
func TestDetokenizeIsBounded(t *testing.T) {
	s := newServer(t)
	if rec := s.post("/detokenize", `{"tokens":[`+repeat("5", 65536)+`]}`); rec.Code != 200 {
		t.Errorf("65536 tokens answered %d", rec.Code)
	}
	rec := s.post("/detokenize", `{"tokens":[`+repeat("5", 65537)+`]}`)
	if rec.Code != 400 || !strings.Contains(rec.Body.String(), "more than 65536") {
		t.Errorf("65537 tokens answered %d %s", rec.Code, wire.Clip(rec.Body.String()))
	}
}

// TestTokenizerInfo: the route is there when it is asked for, behind the key.
func TestTokenizerInfo(t *testing.T) {
	if rec := newServer(t).do("GET", "/tokenizer_info", ""); rec.Code != 404 {
		t.Errorf("without the flag: %d", rec.Code)
	}
	s := newServer(t, func(o *Options) {
		o.Config.Server.Answers.TokenizerInfo, o.Config.Server.APIKeys = true, []string{"k"}
	})
	if rec := s.do("GET", "/tokenizer_info", ""); rec.Code != 401 {
		t.Errorf("without the key: %d", rec.Code)
	}
	rec := s.do("GET", "/tokenizer_info", "", "Authorization", "Bearer k")
	answer := object(t, rec.Body.Bytes())
	template, _ := answer["chat_template"].(string)
	if rec.Code != 200 || answer["tokenizer_class"] == nil || !strings.Contains(template,
		"messages") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}
