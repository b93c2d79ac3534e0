package api

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/tracing"
)

// TestObserved: the log and the spans of requests name the trace, lengths and parameters, and have
// nothing of prompts and answers.
func TestObserved(t *testing.T) {
	var mu sync.Mutex
	var spans []map[string]any
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var m struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []map[string]any }
			}
		}
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Errorf("%v: %s", err, raw)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		spans = append(spans, m.ResourceSpans[0].ScopeSpans[0].Spans...)
	}))
	defer collector.Close()
	tracer, err := tracing.New(t.Context(), collector.URL, "1", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, func(o *Options) {
		o.Config.Server.Observe.LogRequests = true
		o.Tracer = tracer
	})
	s.engine.submit = func(n int) error {
		if n == 2 {
			return engine.ErrOverloaded
		}
		return nil
	}
	const id = "0af7651916cd43dd8448eb211c80319c"
	const parent = "00-" + id + "-b7ad6b7169203331-01"
	s.do("POST", completionsPath, `{`+hi+`,"request_id":"r1","max_tokens":7}`, "Traceparent",
		parent)
	s.do("POST", openai.ChatPath, `{`+hiChat+`,"request_id":"r2","stream":true}`, "Traceparent",
		parent)
	s.post(completionsPath, `{`+hi+`,"request_id":"r3"}`) // refused
	s.post(completionsPath, `{"prompt":5}`)
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	log := s.log.String()
	for _, want := range []string{
		`msg="request received" id=r1 model=tiny prompts=1 n=1 prompt_tokens=`, "max_tokens=7",
		`msg="request finished" id=r1 ms=`, "output_tokens=2 finish=[stop] ttft_ms=",
		`msg="request finished" id=r2`, `trace_id=` + id, "error=",
		// The access log has it, too.
		"path=/v1/completions status=200",
		" id=r1 trace_id=" + id, `msg="request finished" id=r3 ms=`, " id=r3\n",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("no %q in\n%s", want, log)
		}
	}
	if n := strings.Count(log, "trace_id="+id); n != 6 {
		t.Errorf("%d lines name the trace, want 3 of each request", n)
	}
	for _, text := range []string{"hello", "world"} {
		if strings.Contains(log, text) {
			t.Errorf("the log has the text %q", text)
		}
	}
	if len(spans) != 4 {
		t.Fatalf("%d spans", len(spans))
	}
	first, err := json.Marshal(spans[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"traceId":"` + id + `"`, `"parentSpanId":"b7ad6b7169203331"`,
		`{"key":"gen_ai.request.id","value":{"stringValue":"cmpl-r1"}}`,
		`{"key":"gen_ai.usage.completion_tokens","value":{"intValue":"2"}}`,
		`{"key":"gen_ai.request.max_tokens","value":{"intValue":"7"}}`,
		`"gen_ai.latency.time_to_first_token"`, `"gen_ai.latency.e2e"`} {
		if !strings.Contains(string(first), want) {
			t.Errorf("no %s in %s", want, first)
		}
	}
	for _, span := range spans[2:] {
		if at(t, span, "status", "code") != 2.0 {
			t.Errorf("a request that failed has %v", span["status"])
		}
	}
}
