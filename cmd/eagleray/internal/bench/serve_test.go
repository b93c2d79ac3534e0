package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fake is a server that streams words of an answer.
type fake struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []map[string]any
	ids    []string
	now    atomic.Int32
	most   atomic.Int32
	// script, when set, answers instead.
	script func(w http.ResponseWriter, n int) bool
	pause  time.Duration
	usage  bool
}

func newFake(t *testing.T) *fake {
	f := &fake{usage: true}
	f.Server = httptest.NewServer(http.HandlerFunc(f.answer))
	t.Cleanup(f.Close)
	return f
}

func (f *fake) answer(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f.mu.Lock()
	f.bodies, f.ids = append(f.bodies, body), append(f.ids, r.Header.Get("X-Request-Id"))
	n := len(f.bodies)
	f.mu.Unlock()
	now := f.now.Add(1)
	defer f.now.Add(-1)
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most,
		now); most = f.most.Load() {
	}
	if f.script != nil && f.script(w, n) {
		return
	}
	chat := strings.HasSuffix(r.URL.Path, "/chat/completions")
	if chat {
		fmt.Fprint(w, `data: {"choices":[{"delta":{"role":"assistant","content":""},`+
			`"finish_reason":null}]}`+"\n\n: ping\n\n")
	}
	for i, word := range []string{"a", "", " c"} {
		time.Sleep(f.pause)
		if chat {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", word)
		} else {
			fmt.Fprintf(w, "data: {\"choices\":[{\"text\":%q,\"index\":%d}]}\r\n\r\n", word, i)
		}
		w.(http.Flusher).Flush()
	}
	if f.usage {
		fmt.Fprint(w, `data: {"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":5}}`+
			"\n\n")
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func TestDo(t *testing.T) {
	for _, chat := range []bool{false, true} {
		f := newFake(t)
		f.pause = 5 * time.Millisecond
		target := Target{Client: f.Client(), URL: f.URL + "/v1/completions", Model: "m", Chat: chat,
			Extra:  map[string]any{"temperature": 0.0, "stream_options": nil},
			Header: http.Header{"Authorization": {"Bearer k"}}}
		s := Sample{Text: "hello", PromptLen: 1, OutputLen: 6}
		if chat {
			target.URL = f.URL + "/v1/chat/completions"
		}
		started := time.Now()
		o := target.Do(t.Context(), s, "id-1", started)
		if o.Err != "" || o.Text != "a c" || o.PromptLen != 11 || o.OutputLen != 5 ||
			len(o.ITL) != 2 {
			t.Fatalf("chat %v: %+v", chat, o)
		}
		// What comes is read when there is a processor: only the sums have a least time.
		if o.TTFT < f.pause || o.Latency < 3*f.pause || o.Latency != o.TTFT+o.ITL[0]+o.ITL[1] ||
			o.Start < 0 || o.Start+o.Latency > time.Since(started) {
			t.Errorf("chat %v: times %+v", chat, o)
		}
		body := f.bodies[0]
		if body["model"] != "m" || body["stream"] != true || body["temperature"] != 0.0 ||
			body["stream_options"] != nil || f.ids[0] != "id-1" {
			t.Errorf("body %v, ids %v", body, f.ids)
		}
		if chat {
			if fmt.Sprint(body["messages"]) != "[map[content:hello role:user]]" ||
				body["max_completion_tokens"] != 6.0 {
				t.Errorf("body %v", body)
			}
		} else if body["prompt"] != "hello" || body["max_tokens"] != 6.0 {
			t.Errorf("body %v", body)
		}
		// Without usage tokens are counted, or else pieces.
		f.usage = false
		if o := target.Do(t.Context(), s, "", started); o.OutputLen != 3 || o.PromptLen != 1 {
			t.Errorf("pieces: %+v", o)
		}
		target.Count = func(text string) int { return len(text) * 10 }
		if o := target.Do(t.Context(), Sample{Tokens: []int32{4, 2}, OutputLen: 1}, "",
			started); o.OutputLen != 30 {
			t.Errorf("count: %+v", o)
		}
		if !chat && fmt.Sprint(f.bodies[2]["prompt"]) != "[4 2]" {
			t.Errorf("body %v", f.bodies[2])
		}
	}
}

func TestDoFailures(t *testing.T) {
	for want, script := range map[string]func(w http.ResponseWriter){
		"status 404: no such model": func(w http.ResponseWriter) {
			w.WriteHeader(404)
			fmt.Fprint(w, `{"error":{"message":"no such model"}}`)
		},
		"status 500: plain text": func(w http.ResponseWriter) { http.Error(w, "plain text", 500) },
		"server: engine failed": func(w http.ResponseWriter) {
			fmt.Fprint(w,
				"data: {\"error\":{\"message\":\"engine failed\"}}\n\n")
		},
		"no output": func(w http.ResponseWriter) { fmt.Fprint(w, "data: [DONE]\n\n") },
		"not the JSON": func(w http.ResponseWriter) {
			fmt.Fprint(w,
				"data: {\"choices\":[{\n\n")
		},
		"unexpected EOF": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"a\"}]}\n\n")
		},
		"token too long": func(w http.ResponseWriter) {
			fmt.Fprint(w, "data: ", strings.Repeat("x",
				largestEvent))
		},
	} {
		f := newFake(t)
		f.script = func(w http.ResponseWriter, _ int) bool { script(w); return true }
		target := Target{Client: f.Client(), URL: f.URL + "/v1/completions"}
		if o := target.Do(t.Context(), Sample{Text: "x", OutputLen: 1}, "",
			time.Now()); !strings.Contains(o.Err, want) {
			t.Errorf("error %.200q, want %q", o.Err, want)
		}
	}
}

func samples(n int) []Sample {
	s := make([]Sample, n)
	for i := range s {
		s[i] = Sample{Text: fmt.Sprint(i), OutputLen: 3}
	}
	return s
}

func options(f *fake, n int) ServeOptions {
	return ServeOptions{Target: Target{Client: f.Client(), URL: f.URL + "/v1/completions",
		Model: "m"}, Samples: samples(n),
		Arrival: Arrival{Rate: math.Inf(1), Burstiness: 1}, Percentiles: []float64{99}}
}

func TestServe(t *testing.T) {
	f := newFake(t)
	f.pause = 2 * time.Millisecond
	// The 10th request after the check and two warm-ups fails.
	f.script = func(w http.ResponseWriter, n int) bool {
		if n == 13 {
			http.Error(w, "unlucky", 500)
		}
		return n == 13
	}
	o := options(f, 20)
	o.MaxConcurrency, o.Warmups, o.ReadyWithin, o.RequestIDPrefix = 3, 2, time.Minute, "run-"
	var done []int
	o.Progress = func(d, total int) {
		done = append(done, d)
		if total != 20 {
			t.Errorf("total %d", total)
		}
	}
	r, err := Serve(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Completed != 19 || r.Failed != 1 || r.InputTokens != 19*11 || r.OutputTokens != 19*5 ||
		r.Failures(9)[0] != "status 500: unlucky" {
		t.Errorf("result %+v", r)
	}
	if f.most.Load() > 3 || r.PeakConcurrent > 3 {
		t.Errorf("%d requests at a time (%d by the figures), want at most 3", f.most.Load(),
			r.PeakConcurrent)
	}
	if len(f.bodies) != 23 || len(done) != 20 || done[19] != 20 {
		t.Errorf("%d requests, progress %v", len(f.bodies), done)
	}
	ids := map[string]bool{}
	for _, id := range f.ids[3:] {
		ids[id] = strings.HasPrefix(id, "run-")
	}
	if len(ids) != 20 || !ids["run-0"] || !ids["run-19"] {
		t.Errorf("request ids %v", f.ids)
	}
}

func TestServeRate(t *testing.T) {
	f := newFake(t)
	o := options(f, 20)
	o.Arrival.Rate = 100
	r, err := Serve(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Duration < 200*time.Millisecond {
		t.Errorf("20 requests at 100 a second took %v", r.Duration)
	}
}

func TestServeFailures(t *testing.T) {
	f := newFake(t)
	f.script = func(w http.ResponseWriter, _ int) bool {
		http.Error(w, "bad key", http.StatusUnauthorized)
		return true
	}
	if _, err := Serve(t.Context(), options(f, 3)); err == nil || !strings.Contains(err.Error(),
		"all 3 requests failed: status 401: bad key") {
		t.Errorf("error %v", err)
	}
	// A refusal is not waited out.
	o := options(f, 3)
	o.ReadyWithin = time.Hour
	if _, err := Serve(t.Context(), o); err == nil || !strings.Contains(err.Error(),
		"first request: status 401") {
		t.Errorf("error %v", err)
	}
	o = options(f, 3)
	o.Warmups = 1
	if _, err := Serve(t.Context(), o); err == nil || !strings.Contains(err.Error(),
		"warm-up request: status 401") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f.script = func(http.ResponseWriter, int) bool { cancel(); return false }
	if _, err := Serve(ctx, options(f, 3)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestWait(t *testing.T) {
	f := newFake(t)
	f.script = func(w http.ResponseWriter, n int) bool {
		if n < 3 {
			http.Error(w, "loading", http.StatusServiceUnavailable)
		}
		return n < 3
	}
	o := options(f, 1)
	o.ReadyWithin = time.Minute
	var why []string
	o.Waiting = func(_ time.Duration, err error) { why = append(why, err.Error()) }
	if r, err := Serve(t.Context(), o); err != nil || r.Completed != 1 {
		t.Fatalf("%+v, error %v", r, err)
	}
	if len(why) != 2 || why[0] != "status 503: loading" {
		t.Errorf("waited because of %q", why)
	}
	// No server listens: the time runs out.
	f.Close()
	o.ReadyWithin = 80 * time.Millisecond
	if _, err := Serve(t.Context(), o); err == nil || !strings.Contains(err.Error(),
		"not ready within 80ms") {
		t.Errorf("error %v", err)
	}
}

func TestFirstModel(t *testing.T) {
	answer := `{"object":"list","data":[{"id":"name","root":"org/repo","max_model_len":64},{"id":"other"}]}`
	status := 200
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/models" || r.Header.Get("X-Key") != "v" {
			status = 404
		}
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	defer s.Close()
	got, err := FirstModel(t.Context(), s.Client(), s.URL, http.Header{"X-Key": {"v"}})
	if want := (Served{"name", "org/repo", 64}); err != nil || got != want {
		t.Errorf("%+v, error %v", got, err)
	}
	for _, bad := range []string{`{"data":[]}`, `{`, strings.Repeat(" ", 2<<20) + "{}"} {
		answer = bad
		if got, err := FirstModel(t.Context(), s.Client(), s.URL,
			http.Header{"X-Key": {"v"}}); err == nil {
			t.Errorf("%.20q gave %+v", bad, got)
		}
	}
	if _, err := FirstModel(t.Context(), s.Client(), s.URL, nil); err == nil ||
		!strings.Contains(err.Error(), "404") {
		t.Errorf("error %v", err)
	}
}

// TestIdleConnectionClosed asks a server that closes each connection after its answer without
// saying so.
func TestIdleConnectionClosed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `data: {"choices":[{"text":"x","finish_reason":"stop"}]}`+
			"\n\ndata: [DONE]\n\n")
		http.NewResponseController(w).Flush()
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			// The end of the chunked body, then the end of the connection.
			conn.Write([]byte("0\r\n\r\n"))
			time.AfterFunc(5*time.Millisecond, func() { conn.Close() })
		}
	}))
	defer server.Close()
	target := Target{Client: server.Client(), URL: server.URL, Model: "m"}
	for i := range 20 {
		o := target.Do(t.Context(), Sample{Tokens: []int32{1}, OutputLen: 1}, "", time.Now())
		if o.Err != "" {
			t.Fatalf("request %d: %s", i, o.Err)
		}
		time.Sleep(time.Duration(i%3) * 3 * time.Millisecond)
	}
}
