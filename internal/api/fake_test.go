package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/sys/synctext"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// script is what a fake stream does: give its deltas, then fail with err, or hang until it is
// closed.
type script struct {
	deltas []engine.Delta
	err    error
	hang   bool
	// gate holds the deltas back until it is closed; nil does not.
	gate chan struct{}
}

// fakeEngine plays scripts instead of a model. It keeps the requests it got and counts the streams
// still open.
type fakeEngine struct {
	play   func(n int, r *engine.Request) script
	submit func(n int) error
	check  func(r *engine.Request) error
	health error

	mu       sync.Mutex
	requests []*engine.Request
	open     atomic.Int64
	aborted  atomic.Int64
}

func (e *fakeEngine) Submit(_ context.Context, list ...*engine.Request) (engine.Stream, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var each []*engine.Request
	for _, r := range list {
		for n := range r.Outputs() {
			one := r.Output(n)
			each = append(each, &one)
		}
	}
	list = each
	if e.submit != nil {
		for i := range list {
			if err := e.submit(len(e.requests) + i); err != nil {
				return nil, err
			}
		}
	}
	if e.check != nil {
		if err := e.check(list[0]); err != nil {
			return nil, err
		}
	}
	s := &fakeStream{engine: e, closed: make(chan struct{})}
	for _, r := range list {
		play := e.play
		if play == nil {
			play = sayHello
		}
		s.choices = append(s.choices, &fakeChoice{script: play(len(e.requests), r)})
		e.requests = append(e.requests, r)
	}
	e.open.Add(int64(len(list)))
	return s, nil
}

func (e *fakeEngine) Healthy(ctx context.Context) error {
	if errors.Is(e.health, context.DeadlineExceeded) {
		<-ctx.Done()
		return ctx.Err()
	}
	return e.health
}

// last returns the newest request.
func (e *fakeEngine) last(t *testing.T) *engine.Request {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.requests) == 0 {
		t.Fatal("no request reached the engine")
	}
	return e.requests[len(e.requests)-1]
}

type fakeStream struct {
	engine  *fakeEngine
	choices []*fakeChoice
	turn    int
	once    sync.Once
	closed  chan struct{}
}

type fakeChoice struct {
	script
	next int
}

func (c *fakeChoice) gated() bool {
	if c.gate == nil {
		return false
	}
	select {
	case <-c.gate:
		return false
	default:
		return true
	}
}

// Next gives the choices their turns. What is gated waits; what hangs has no turn.
func (s *fakeStream) Next(ctx context.Context) (engine.Delta, error) {
	if err := ctx.Err(); err != nil {
		return engine.Delta{}, err
	}
	var gate chan struct{}
	hang := false
	for range s.choices {
		i := s.turn % len(s.choices)
		s.turn++
		switch c := s.choices[i]; {
		case c.gated():
			gate = c.gate
		case c.next < len(c.deltas):
			d := c.deltas[c.next]
			d.Choice = i
			c.next++
			return d, nil
		case c.err != nil:
			return engine.Delta{}, c.err
		case c.hang:
			hang = true
		}
	}
	if gate == nil && !hang {
		return engine.Delta{}, io.EOF
	}
	select {
	case <-gate:
		return s.Next(ctx)
	case <-ctx.Done():
		return engine.Delta{}, ctx.Err()
	case <-s.closed:
		return engine.Delta{}, errors.New("next after close")
	}
}

func (s *fakeStream) Close() {
	s.once.Do(func() {
		for _, c := range s.choices {
			s.engine.open.Add(-1)
			if c.next < len(c.deltas) || c.hang {
				s.engine.aborted.Add(1)
			}
		}
		close(s.closed)
	})
}

// sayHello answers " hello" and " world", one token each, and stops at EOS.
func sayHello(_ int, r *engine.Request) script {
	return script{deltas: say(r, []int32{300, 301}, []string{" hello", " world"},
		sample.FinishStop)}
}

// say makes one delta per token, with logprobs where the request asks for them, and a last one with
// the finish.
func say(r *engine.Request, ids []int32, texts []string, finish sample.Finish) []engine.Delta {
	var list []engine.Delta
	offset, runes := 0, 0
	for i, id := range ids {
		d := engine.Delta{Text: []byte(texts[i]), Tokens: []int32{id}, TextOffsets: []int{offset},
			StopToken:   -1,
			RuneOffsets: []int{runes}, TextEnds: []int{len(texts[i])}, PromptTokens: len(r.Prompt),
			CachedTokens: 2, OutputTokens: i + 1}
		if r.Params.Logprobs != sample.NoLogprobs {
			d.Logprobs = []step.Logprobs{scoreOf(id, r.Params.Logprobs)}
		}
		if i == 0 && r.Params.PromptLogprobs != sample.NoLogprobs {
			for j, id := range r.Prompt {
				l := step.Logprobs{}
				if j > 0 {
					l = scoreOf(id, r.Params.PromptLogprobs)
				}
				d.PromptLogprobs = append(d.PromptLogprobs, l)
			}
		}
		if i == len(ids)-1 {
			d.Finish = finish
		}
		list = append(list, d)
		offset += len(texts[i])
		runes += utf8.RuneCountInString(texts[i])
	}
	return list
}

// together is what a slow reader finds of deltas that follow each other.
func together(list []engine.Delta) engine.Delta {
	all := list[len(list)-1]
	all.Text, all.Tokens, all.Logprobs, all.TextOffsets, all.RuneOffsets, all.TextEnds = nil, nil,
		nil, nil, nil, nil
	all.PromptLogprobs = list[0].PromptLogprobs
	for _, d := range list {
		for _, end := range d.TextEnds {
			all.TextEnds = append(all.TextEnds, len(all.Text)+end)
		}
		all.Text = append(all.Text, d.Text...)
		all.Tokens, all.Logprobs = append(all.Tokens, d.Tokens...), append(all.Logprobs,
			d.Logprobs...)
		all.TextOffsets = append(all.TextOffsets, d.TextOffsets...)
		all.RuneOffsets = append(all.RuneOffsets, d.RuneOffsets...)
	}
	return all
}

// scoreOf invents log-probabilities: the token itself second, its successors around it.
func scoreOf(id, count int32) step.Logprobs {
	l := step.Logprobs{Sampled: step.TokenLogprob{Token: id, Rank: 2, Logprob: -1.5}}
	for k := range count {
		l.Top = append(l.Top, step.TokenLogprob{Token: id + 1 - k, Rank: k + 1,
			Logprob: -0.5 - float32(k)})
	}
	return l
}

const tinyModel = "../../testdata/models/go-std-tiny"

var loadTiny = sync.OnceValues(func() (*tokenizer.Tokenizer,
	error) {
	return tokenizer.Load(tinyModel)
})

func tinyTokenizer(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := loadTiny()
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// swapEngine is an engine that a test changes while the server has it.
type swapEngine struct{ generate.Submitter }

// testServer is a Server over a fake engine.
type testServer struct {
	*API
	// engine answers unless swapped is given another.
	engine  *fakeEngine
	swapped *swapEngine
	log     *synctext.Buffer
}

func newServer(t testing.TB, change ...func(*Options)) *testServer {
	t.Helper()
	tok := tinyTokenizer(t)
	// The tiny model's, with a place for tools.
	template, err := chattemplate.Parse(tok.Config().ChatTemplates["default"] +
		"{% if tools %}{% endif %}")
	if err != nil {
		t.Fatal(err)
	}
	fake, log := &fakeEngine{}, &synctext.Buffer{}
	o := Options{
		Info: &open.Info{Names: []string{"tiny", "alias/tiny"}, Root: "/models/tiny",
			Tokenizer: tok, Template: template,
			Defaults: sample.Defaults{MaxModelLen: 256, VocabSize: tok.VocabSize(), EOS: 2047}},
		Config:  config.Default(),
		Engine:  fake,
		Log:     slog.New(slog.NewTextHandler(log, nil)),
		Metrics: metrics.New(metrics.Options{ModelName: "tiny", MaxModelLen: 256}),
		Version: "1.2.3",
		Created: 1700000000,
	}
	for _, f := range change {
		f(&o)
	}
	if f, ok := o.Engine.(*fakeEngine); ok {
		fake = f
	}
	swapped := &swapEngine{o.Engine}
	o.Engine = swapped
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &testServer{API: s, engine: fake, swapped: swapped, log: log}
}

// newRequest makes a request to a loopback host name.
func newRequest(method, path, body string) *http.Request {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Host = "localhost:8000"
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

func newRecorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }

func (s *testServer) serveRequest(r *http.Request) *httptest.ResponseRecorder {
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	return rec
}

// do sends one request through the handler and returns the response.
func (s *testServer) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := newRequest(method, path, body)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return s.serveRequest(r)
}

func (s *testServer) post(path, body string) *httptest.ResponseRecorder {
	return s.do("POST", path, body)
}

// ok posts and wants 200 with a JSON body.
func (s *testServer) ok(t *testing.T, path, body string) map[string]any {
	t.Helper()
	rec := s.post(path, body)
	if rec.Code != http.StatusOK {
		t.Fatalf("%s answered %d: %s", path, rec.Code, rec.Body)
	}
	return object(t, rec.Body.Bytes())
}

func object(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return v
}

// at walks a decoded JSON value by keys and indices.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for i, p := range path {
		switch p := p.(type) {
		case string:
			m, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("%v is not an object at %v", v, path[:i+1])
			}
			if v, ok = m[p]; !ok {
				t.Fatalf("%v has no member %v", m, path[:i+1])
			}
		case int:
			l, ok := v.([]any)
			if !ok || p >= len(l) {
				t.Fatalf("%v has no element %v", v, path[:i+1])
			}
			v = l[p]
		}
	}
	return v
}

// events splits a stream into its data lines and checks the framing.
func events(t *testing.T, body string) []string {
	t.Helper()
	var list []string
	for _, e := range strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		data, ok := strings.CutPrefix(e, "data: ")
		if !ok || strings.Contains(data, "\n") {
			t.Fatalf("bad event %q", e)
		}
		list = append(list, data)
	}
	return list
}

// chunks returns the JSON events of a stream that ends in [DONE].
func chunks(t *testing.T, rec *httptest.ResponseRecorder) []map[string]any {
	t.Helper()
	if rec.Code != http.StatusOK {
		t.Fatalf("stream answered %d: %s", rec.Code, rec.Body)
	}
	if ct := rec.Header().Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") {
		t.Errorf("content type %q", ct)
	}
	list := events(t, rec.Body.String())
	if list[len(list)-1] != "[DONE]" {
		t.Fatalf("stream ends in %q", list[len(list)-1])
	}
	var out []map[string]any
	for _, e := range list[:len(list)-1] {
		out = append(out, object(t, []byte(e)))
	}
	return out
}

// marshal is encoding/json without HTML escaping.
func marshal(t testing.TB, v any) string {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
