package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(
		deadline); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for: %s", what)
}

// noLeak fails when goroutines of this package outlive the test.
func noLeak(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		mine := func() int {
			buf := make([]byte, 1<<20)
			stacks := string(buf[:runtime.Stack(buf, true)])
			return strings.Count(stacks, "openai.(*generation)") + strings.Count(stacks,
				"openai.(*Server).serve(")
		}
		eventually(t, "goroutines of requests to end", func() bool { return mine() == 0 })
	})
}

// listen serves on a real socket.
func listen(t *testing.T, s *testServer) *httptest.Server {
	t.Helper()
	ts := httptest.NewUnstartedServer(s.Handler())
	ts.Config.ReadHeaderTimeout = time.Second
	ts.Start()
	t.Cleanup(ts.Close)
	return ts
}

func TestSubmitErrors(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		Kind   string
		retry  string
	}{
		{engine.ErrOverloaded, 503, "ServiceUnavailableError", "1"},
		{fmt.Errorf("%w: draining", engine.ErrStopped), 503, "ServiceUnavailableError", "1"},
		{fmt.Errorf("%w: rank 3 died", engine.ErrFailed), 500, "InternalServerError", ""},
		{io.ErrUnexpectedEOF, 500, "InternalServerError", ""},
	} {
		for _, body := range []string{`{` + hi + `,"n":3}`, `{` + hi + `,"n":3,"stream":true}`} {
			s := newServer(t)
			s.engine.submit = func(n int) error {
				if n == 2 { // the third sequence: none is queued
					return c.err
				}
				return nil
			}
			rec := s.post(completionsPath, body)
			e := at(t, object(t, rec.Body.Bytes()), "error").(map[string]any)
			if rec.Code != c.status || e["type"] != c.Kind ||
				rec.Header().Get("Retry-After") != c.retry {
				t.Errorf("%v: %d %v, Retry-After %q", c.err, rec.Code, e,
					rec.Header().Get("Retry-After"))
			}
			if c.err == io.ErrUnexpectedEOF && e["message"] != "internal server error" {
				t.Errorf("an unexpected error reached the client: %v", e)
			}
			if s.engine.open.Load() != 0 || len(s.engine.requests) != 0 {
				t.Errorf("%d sequences open, %d queued", s.engine.open.Load(),
					len(s.engine.requests))
			}
			rejected := strings.Contains(s.do("GET", "/metrics", "").Body.String(),
				`admission_rejections_total{engine="0",model_name="tiny",reason="queue_full"} 1`)
			if rejected != (c.err == engine.ErrOverloaded) {
				t.Errorf("%v: counted as rejected: %v", c.err, rejected)
			}
		}
	}
}

func TestErrorsWhileGenerating(t *testing.T) {
	fail := fmt.Errorf("%w: rank 1 on node b: out of memory", engine.ErrFailed)
	for _, n := range []int{1, 3} {
		s := newServer(t)
		s.engine.play = func(i int, r *engine.Request) script {
			if i != n-1 {
				return script{hang: true}
			}
			return script{deltas: sayHello(i, r).deltas[:1], err: fail}
		}
		rec := s.post(completionsPath, fmt.Sprintf(`{%s,"n":%d}`, hi, n))
		if rec.Code != 500 || !strings.Contains(rec.Body.String(), "out of memory") {
			t.Errorf("n=%d answered %d %s", n, rec.Code, rec.Body)
		}
		if s.engine.open.Load() != 0 {
			t.Errorf("n=%d left %d streams open", n, s.engine.open.Load())
		}

		// The status of a stream is out already: the error comes as an event, then the end.
		s.engine.requests = nil
		list := events(t, s.post(completionsPath, fmt.Sprintf(`{%s,"n":%d,"stream":true}`, hi,
			n)).Body.String())
		if len(list) != 3 || !strings.Contains(list[0], " hello") || list[2] != "[DONE]" {
			t.Fatalf("n=%d events %q", n, list)
		}
		e := at(t, object(t, []byte(list[1])), "error").(map[string]any)
		if e["code"] != 500.0 || !strings.Contains(e["message"].(string), "out of memory") {
			t.Errorf("n=%d error event %v", n, e)
		}
		if s.engine.open.Load() != 0 {
			t.Errorf("n=%d left %d streams open", n, s.engine.open.Load())
		}
	}
	// Before the first event a stream can still answer with the right status.
	s := newServer(t)
	s.engine.play = func(int, *engine.Request) script { return script{err: fail} }
	if rec := s.post(openai.ChatPath, `{`+hiChat+`,"stream":true}`); rec.Code != 500 {
		t.Errorf("answered %d", rec.Code)
	}
}

// TestSpent: an answer whose constraint takes too much is its request's fault, which names the
// field, at once and in a stream.
func TestSpent(t *testing.T) {
	for field, ask := range map[string]string{
		"guided_grammar":  `"guided_grammar":"root ::= root root | [a-z]"`,
		"response_format": `"response_format":{"type":"json_object"}`,
	} {
		s := newServer(t)
		s.engine.play = func(i int, r *engine.Request) script {
			return script{deltas: sayHello(i, r).deltas[:1],
				err: fmt.Errorf("%w: after 1 tokens of output", engine.ErrSpent)}
		}
		check := func(e map[string]any) {
			if e["code"] != 400.0 || e["param"] != field || !strings.Contains(e["message"].(string),
				"`"+field+"` is too complex: ") {
				t.Errorf("%s: %v", field, e)
			}
		}
		rec := s.post(openai.ChatPath, `{`+hiChat+`,`+ask+`}`)
		check(at(t, object(t, rec.Body.Bytes()), "error").(map[string]any))
		list := events(t, s.post(openai.ChatPath,
			`{`+hiChat+`,`+ask+`,"stream":true}`).Body.String())
		check(at(t, object(t, []byte(list[len(list)-2])), "error").(map[string]any))
		if rec.Code != 400 || list[len(list)-1] != "[DONE]" || s.engine.open.Load() != 0 {
			t.Errorf("%s: answered %d, events %q", field, rec.Code, list)
		}
	}
}

// TestInterleaving: choices of one stream come as they are made, none waits for another.
func TestInterleaving(t *testing.T) {
	s := newServer(t)
	gate := make(chan struct{})
	s.engine.play = func(i int, r *engine.Request) script {
		hello := sayHello(i, r)
		if i == 0 {
			hello.gate = gate
		}
		return hello
	}
	ts := listen(t, s)
	resp, err := http.Post(ts.URL+completionsPath, "application/json",
		strings.NewReader(`{"prompt":["a","b"],"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	var order []float64
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: {")
		if !ok {
			continue
		}
		i := at(t, object(t, []byte("{"+data)), "choices", 0, "index").(float64)
		order = append(order, i)
		if len(order) == 2 { // choice 1 is complete while choice 0 has not begun
			close(gate)
		}
	}
	if !reflect.DeepEqual(order, []float64{1, 1, 0, 0}) {
		t.Errorf("order %v", order)
	}
}

type submitFunc func(ctx context.Context, list ...*engine.Request) (engine.Stream, error)

func (f submitFunc) Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error) {
	return f(ctx, list...)
}
func (f submitFunc) Healthy(context.Context) error { return nil }

type gateStream struct {
	engine.Stream
	gate chan struct{}
}

func (s *gateStream) Next(ctx context.Context) (engine.Delta, error) {
	<-s.gate
	return s.Stream.Next(ctx)
}

// TestDisconnect: a client that goes away aborts its sequences, whatever the stage, and leaves
// nothing behind.
func TestDisconnect(t *testing.T) {
	noLeak(t)
	s := newServer(t)
	s.engine.play = func(i int, r *engine.Request) script {
		return script{deltas: sayHello(i, r).deltas[:1], hang: true}
	}
	ts := listen(t, s)
	client := &http.Client{}
	t.Cleanup(client.CloseIdleConnections)
	var started int64
	for _, body := range []string{`{` + hi + `}`, `{` + hi + `,"n":4}`, `{` + hi +
		`,"stream":true}`, `{` + hi + `,"stream":true,"n":4}`} {
		for range 10 {
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", ts.URL+completionsPath,
				strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			n := int64(1)
			if strings.Contains(body, `"n":4`) {
				n = 4
			}
			started += n
			go func() {
				eventually(t, "the sequences to start",
					func() bool { return s.engine.open.Load() == n })
				cancel()
			}()
			resp, err := client.Do(req)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			cancel()
			eventually(t, "the sequences to be aborted",
				func() bool { return s.engine.open.Load() == 0 })
		}
	}
	if got := s.engine.aborted.Load(); got != started {
		t.Errorf("%d of %d sequences aborted", got, started)
	}
	eventually(t, "the load to go to 0", func() bool { return s.InFlight() == 0 })
	eventually(t, "the access log", func() bool {
		return strings.Count(s.log.String(),
			"status=499") == 40
	})
	if strings.Contains(s.log.String(), "request failed") {
		t.Error("a client that goes away is logged as a failure")
	}
}

// TestCancelledByTheServer: when the server cancels a request whose client is still there, the
// client hears of it.
func TestCancelledByTheServer(t *testing.T) {
	for _, c := range []struct {
		fields string
		status int
	}{{``, 503}, {`,"stream":true`, 200}} {
		s := newServer(t)
		ctx, cancel := context.WithCancel(t.Context())
		s.engine.play = func(i int, r *engine.Request) script {
			time.AfterFunc(20*time.Millisecond, cancel)
			return script{deltas: sayHello(i, r).deltas[:1], hang: true}
		}
		rec := s.serveRequest(newRequest("POST", completionsPath,
			`{`+hi+c.fields+`}`).WithContext(ctx))
		if rec.Code != c.status || !strings.Contains(rec.Body.String(), `"code":503`) {
			t.Errorf("answered %d %s", rec.Code, rec.Body)
		}
	}
}

// TestSlowReader: a client that stops reading is cut off and its request aborted.
func TestSlowReader(t *testing.T) {
	noLeak(t)
	s := newServer(t, func(o *Options) { o.Limits.WriteTimeout = 200 * time.Millisecond })
	s.engine.play = func(_ int, r *engine.Request) script {
		d := say(r, []int32{300}, []string{strings.Repeat("long text ", 10_000)}, sample.Unfinished)
		list := make([]engine.Delta, 1000) // 100 MB, more than sockets hold
		for i := range list {
			list[i] = d[0]
		}
		return script{deltas: list, hang: true}
	}
	ts := listen(t, s)
	var sequences int64
	for _, body := range []string{`{` + hi + `,"stream":true}`, `{` + hi +
		`,"stream":true,"n":2}`} {
		conn, err := net.Dial("tcp", ts.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
			"application/json\r\nContent-Length: %d\r\n\r\n%s", completionsPath, len(body), body)
		sequences += 1 + int64(strings.Count(body, `"n":2`))
		eventually(t, "the sequences to be aborted",
			func() bool { return s.engine.aborted.Load() == sequences })
	}
}

// TestSlowStreamSurvives: the write limit is for one write, not for the whole stream, and a stale
// one does not hurt the next request on the connection.
func TestSlowStreamSurvives(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(o *Options) { o.Limits.WriteTimeout = 600 * time.Millisecond })
	gate := make(chan struct{})
	inner := s.engine
	s.swapped.Submitter = submitFunc(func(ctx context.Context, list ...*engine.Request) (
		engine.Stream, error) {
		st, err := inner.Submit(ctx, list...)
		return &gateStream{st, gate}, err
	})
	go func() {
		for range 3 {
			time.Sleep(700 * time.Millisecond)
			gate <- struct{}{}
		}
		close(gate)
	}()
	ts := listen(t, s)
	client := ts.Client()
	for _, body := range []string{`{` + hi + `,"stream":true}`, `{` + hi + `}`} {
		resp, err := client.Post(ts.URL+completionsPath, "application/json",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || !strings.Contains(string(raw), "world") {
			t.Fatalf("%v %q", err, raw)
		}
		time.Sleep(700 * time.Millisecond)
	}
}

// TestSlowBody: a body that does not arrive is answered 408; a slow one within the limit is not.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	noLeak(t)
	s := newServer(t, func(o *Options) { o.Limits.BodyTimeout = time.Second })
	ts := listen(t, s)
	body := `{` + hi + `}`
	for wait, want := range map[time.Duration]string{2 * time.Second: "408",
		20 * time.Millisecond: "200"} {
		conn, err := net.Dial("tcp", ts.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
			"application/json\r\nContent-Length: %d\r\n\r\n%s", completionsPath, len(body),
			body[:5])
		time.AfterFunc(wait, func() { _, _ = io.WriteString(conn, body[5:]) })
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.Contains(line, want) {
			t.Errorf("after %v: %q, %v", wait, line, err)
		}
		conn.Close()
	}
}

// TestBodyLimitOutlivesGeneration: once the body is there, its time limit must not end the request.
func TestBodyLimitOutlivesGeneration(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(o *Options) { o.Limits.BodyTimeout = time.Second })
	gate := make(chan struct{})
	inner := s.engine
	s.swapped.Submitter = submitFunc(func(ctx context.Context, list ...*engine.Request) (
		engine.Stream, error) {
		st, err := inner.Submit(ctx, list...)
		return &gateStream{st, gate}, err
	})
	time.AfterFunc(1100*time.Millisecond, func() { close(gate) })
	ts := listen(t, s)
	resp, err := http.Post(ts.URL+completionsPath, "application/json",
		strings.NewReader(`{`+hi+`}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("answered %d", resp.StatusCode)
	}
}

func TestHeaderLimits(t *testing.T) {
	serve := func(timeout time.Duration) string {
		s := newServer(t, func(o *Options) {
			o.Limits.HeaderTimeout, o.Limits.Header = timeout, 4096
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		h := s.HTTPServer(l.Addr().String())
		go func() { _ = h.Serve(l) }()
		t.Cleanup(func() { _ = h.Close() })
		return l.Addr().String()
	}
	hasty, patient := serve(100*time.Millisecond), serve(time.Minute)

	resp := func(addr, send string) string {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, send)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		line, _ := bufio.NewReader(conn).ReadString('\n')
		return line
	}
	if line := resp(patient, "GET /health HTTP/1.1\r\nHost: localhost\r\nX: "+strings.Repeat("x",
		20_000)+"\r\n\r\n"); !strings.Contains(line, "431") {
		t.Errorf("a large header got %q", line)
	}
	if line := resp(hasty, "GET /health HTTP/1.1\r\nHost: localho"); strings.Contains(line, "200") {
		t.Errorf("a slow header got %q", line)
	}
	if line := resp(patient, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health "+
		"HTTP/1.1\r\nHost: localhost\r\n\r\n"); !strings.Contains(line, "200") {
		t.Errorf("pipelined requests got %q", line)
	}
}

func TestPanicInTheEngine(t *testing.T) {
	s := newServer(t)
	s.swapped.Submitter = submitFunc(func(context.Context, ...*engine.Request) (
		engine.Stream, error) {
		panic("boom")
	})
	if rec := s.post(completionsPath, `{`+hi+`}`); rec.Code != 500 ||
		strings.Contains(rec.Body.String(), "boom") {
		t.Errorf("answered %d %s", rec.Code, rec.Body)
	}
	if !strings.Contains(s.log.String(), "boom") {
		t.Error("the panic was not logged")
	}
	// Once the response has begun it is cut off: it must not look complete.
	s.swapped.Submitter = submitFunc(func(context.Context, ...*engine.Request) (
		engine.Stream, error) {
		return &panicking{endless{engine.Delta{Text: []byte("x"), Tokens: []int32{1},
			StopToken: -1}}, 1}, nil
	})
	resp, err := http.Post(listen(t, s).URL+completionsPath, "application/json",
		strings.NewReader(`{`+hi+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the broken stream ended like a whole one")
	}
}

// endless is a stream that repeats one delta, and a response writer that keeps nothing.
type endless struct{ delta engine.Delta }

func (e *endless) Next(context.Context) (engine.Delta, error) { return e.delta, nil }
func (e *endless) Close()                                     {}

type discard struct{ header http.Header }

func (d *discard) Header() http.Header              { return d.header }
func (d *discard) Write(b []byte) (int, error)      { return len(b), nil }
func (d *discard) WriteHeader(int)                  {}
func (d *discard) Flush()                           {}
func (d *discard) SetWriteDeadline(time.Time) error { return nil }

// panicking is a stream that panics after some deltas.
type panicking struct {
	endless
	left int
}

func (p *panicking) Next(context.Context) (engine.Delta, error) {
	if p.left--; p.left < 0 {
		panic("boom")
	}
	return p.delta, nil
}

// errStop ends the measured stream.
var errStop = fmt.Errorf("%w: enough", server.ErrClientGone)

// counting makes a delta stream of n events that then fails.
type counting struct {
	endless
	left int
}

func (c *counting) Next(context.Context) (engine.Delta, error) {
	if c.left == 0 {
		return engine.Delta{}, errStop
	}
	c.left--
	return c.delta, nil
}

// TestChunksDoNotAllocate compares a stream of many events with one of few: the difference is the
// steady state.
func TestChunksDoNotAllocate(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Log = nil })
	delta := engine.Delta{Text: []byte(" naïve \"text\"\n"), Tokens: []int32{300},
		TextOffsets: []int{0}, StopToken: -1, OutputTokens: 1}
	for _, fields := range []string{``,
		`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
		`,"return_token_ids":true`, `,"n":2`} {
		for _, path := range []string{completionsPath, openai.ChatPath} {
			measure := func(events int) float64 {
				s.swapped.Submitter = submitFunc(func(context.Context,
					...*engine.Request) (engine.Stream, error) {
					return &counting{endless{delta}, events}, nil
				})
				body := `{` + hi + `,"stream":true` + fields + `}`
				if path == openai.ChatPath {
					body = `{` + hiChat + `,"stream":true` + fields + `}`
				}
				return testing.AllocsPerRun(10, func() {
					s.Handler().ServeHTTP(&discard{http.Header{}}, newRequest("POST", path, body))
				})
			}
			few, many := measure(10), measure(2010)
			if perEvent := (many - few) / 2000; perEvent > 0.01 {
				t.Errorf("%s%s: %.3f allocations per event", path, fields, perEvent)
			}
		}
	}
}

// TestChunkMatchesEncodingJSON compares a hand-written chunk with the one encoding/json writes.
func TestChunkMatchesEncodingJSON(t *testing.T) {
	s := newServer(t)
	text := "a\"\\\b\f\n\r\t\x00\x1f\x7f<&>é日本😀\u2028\u2029\xff end"
	s.engine.play = func(_ int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300}, []string{text}, sample.FinishLength)}
	}
	type choice struct {
		Index          int             `json:"index"`
		Text           string          `json:"text"`
		Logprobs       json.RawMessage `json:"logprobs"`
		FinishReason   string          `json:"finish_reason"`
		StopReason     *string         `json:"stop_reason"`
		PromptTokenIDs []int32         `json:"prompt_token_ids"`
		TokenIDs       []int32         `json:"token_ids"`
	}
	type chunk struct {
		ID      string   `json:"id"`
		Object  string   `json:"object"`
		Created int64    `json:"created"`
		Model   string   `json:"model"`
		Choices []choice `json:"choices"`
	}
	got := events(t, s.post(completionsPath,
		`{"prompt":[1,2],"stream":true,"return_token_ids":true,"request_id":"q\"<"}`).Body.String())[0]
	var c chunk
	if err := json.Unmarshal([]byte(got), &c); err != nil {
		t.Fatal(err)
	}
	want := marshal(t, chunk{ID: `cmpl-q"<`, Object: "text_completion", Created: c.Created, Model: "tiny", Choices: []choice{
		{Text: text, FinishReason: "length", PromptTokenIDs: []int32{1, 2},
			TokenIDs: []int32{300}}}})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func BenchmarkChunk(b *testing.B) {
	s := newServer(b, func(o *Options) { o.Log = nil })
	c := &counting{endless{engine.Delta{Text: []byte(" token"), Tokens: []int32{300},
		TextOffsets: []int{0}, StopToken: -1}}, b.N}
	s.swapped.Submitter = submitFunc(func(context.Context, ...*engine.Request) (
		engine.Stream, error) {
		return c, nil
	})
	b.ReportAllocs()
	b.ResetTimer()
	s.Handler().ServeHTTP(&discard{http.Header{}}, newRequest("POST", openai.ChatPath, `{`+hiChat+`,"stream":true}`))
}
