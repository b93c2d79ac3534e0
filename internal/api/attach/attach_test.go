package attach_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/attach"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// program is the other side of a connection.
type program struct {
	net.Conn
	t *testing.T
	// served is what Serve returned.
	served chan error
}

const mostBody = 1000

func start(t *testing.T, ctx context.Context, open attach.Open) *program {
	t.Helper()
	ours, theirs := net.Pipe()
	p := &program{ours, t, make(chan error, 1)}
	go func() { p.served <- attach.Serve(ctx, theirs, mostBody, open) }()
	t.Cleanup(func() { ours.Close() })
	return p
}

// serve is what handler answers, once it is ready.
func serve(t *testing.T, handler http.HandlerFunc) *program {
	p := start(t, t.Context(), func(context.Context) (http.Handler, any, error) {
		return handler, "yes", nil
	})
	if got := p.read(); got != `{"ready":"yes"}` {
		t.Fatalf("got %s first", got)
	}
	return p
}

func (p *program) write(objects ...string) {
	p.t.Helper()
	for _, o := range objects {
		if err := frame.Write(p, json.RawMessage(o)); err != nil {
			p.t.Fatal(err)
		}
	}
}

// read returns the next frame, "" for the end.
func (p *program) read() string {
	p.t.Helper()
	p.SetReadDeadline(time.Now().Add(10 * time.Second))
	raw, err := frame.Read(p)
	if err == io.EOF {
		return ""
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return string(raw)
}

func (p *program) end() error {
	p.t.Helper()
	select {
	case err := <-p.served:
		return err
	case <-time.After(10 * time.Second):
		p.t.Fatal("it does not end")
		return nil
	}
}

func TestAnswers(t *testing.T) {
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/echo":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"was": %q, "by": %q, "query": %q, "type": %q}`+"\n", body, r.Method,
				r.URL.RawQuery, r.Header.Get("Content-Type"))
		case "/text":
			io.WriteString(w, "a \"line\"\n")
		case "/empty":
		case "/teapot":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusTeapot)
			io.WriteString(w, `{"error":{}}`)
		case "/abort":
			io.WriteString(w, "begun")
			panic(http.ErrAbortHandler)
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			// A named event, a comment, one in two pieces, two at once, the mark of the end.
			for _, s := range []string{"event: a\ndata: {\"n\":1}\n\n", ": beat\n\n",
				"data: {\"n\"", ":2}\n", "\n", "data: {\"n\":3}\n\ndata: {\"n\":4}\n\n",
				"data: [DONE]\n\n"} {
				io.WriteString(w, s)
				w.(http.Flusher).Flush()
			}
		}
	})
	for _, test := range []struct {
		request string
		want    []string
	}{
		{`{"id":1,"route":"/echo?a=b","body":{"x":1}}`, []string{
			`{"id":1,"status":200,"body":{"was": "{\"x\":1}", "by": "POST", "query": "a=b", "type": "application/json"}}`}},
		{`{"id":7,"route":"/echo","method":"GET"}`, []string{
			`{"id":7,"status":200,"body":{"was": "", "by": "GET", "query": "", "type": ""}}`}},
		{`{"id":1,"route":"/text"}`, []string{`{"id":1,"status":200,"body":"a \"line\""}`}},
		{`{"id":9007199254740993,"route":"/empty"}`,
			[]string{`{"id":9007199254740993,"status":200}`}},
		{`{"id":2,"route":"/teapot"}`, []string{`{"id":2,"status":418,"body":{"error":{}}}`}},
		{`{"id":2,"route":"/abort"}`, []string{`{"id":2,"status":500,"body":{"error":{"message":` +
			`"the answer broke off","type":"InternalServerError","param":null,"code":500}}}`}},
		{`{"id":3,"route":"/events"}`, []string{`{"id":3,"event":{"n":1}}`,
			`{"id":3,"event":{"n":2}}`,
			`{"id":3,"event":{"n":3}}`, `{"id":3,"event":{"n":4}}`, `{"id":3,"status":200}`}},
	} {
		p.write(test.request)
		for _, want := range test.want {
			if got := p.read(); got != want {
				t.Errorf("%s: got %s, want %s", test.request, got, want)
			}
		}
	}
	p.Close()
	if err := p.end(); err != nil {
		t.Errorf("the end of the program is an error: %v", err)
	}
}

// Requests run side by side, and each ends alone: cancelled, or answered.
func TestCancel(t *testing.T) {
	running := make(chan string)
	p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		running <- r.URL.Path
		<-r.Context().Done()
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	p.write(`{"id":1,"route":"/a"}`, `{"id":2,"route":"/b"}`, `{"cancel":3}`)
	seen := map[string]bool{<-running: true, <-running: true}
	if !seen["/a"] || !seen["/b"] {
		t.Fatalf("running: %v", seen)
	}
	p.write(`{"cancel":2}`)
	if got := p.read(); got != `{"id":2,"status":503}` {
		t.Errorf("got %s", got)
	}
	p.write(`{"id":2,"route":"/again"}`) // the id is free
	if got := <-running; got != "/again" {
		t.Errorf("running: %s", got)
	}
	p.Close() // cancels what is left: else Serve waited for it
	if err := p.end(); err != nil {
		t.Error(err)
	}
}

// What no program sends ends the connection, and the program is told why.
func TestProtocolErrors(t *testing.T) {
	for _, test := range []struct {
		requests []string
		want     string
	}{
		{[]string{`{"id":1,"route":"/hang"}`, `{"id":1,"route":"/hang"}`},
			"request 1 is asked while it is being answered"},
		{[]string{`{"id":0,"route":"/hang"}`}, "request: 0 is no id"},
		{[]string{`{"id":-1,"route":"/hang"}`}, "request: -1 is no id"},
		{[]string{`{"id":1}`}, `request 1: "" is no route`},
		{[]string{`{"id":1,"route":"http://example.com/"}`},
			`request 1: "http://example.com/" is no route`},
		{[]string{`[]`}, "request: json: cannot unmarshal array"},
		{[]string{`{"id":"1"}`}, "request: json: cannot unmarshal string"},
		{[]string{`{"id":1,"route":"/x","body":"` + strings.Repeat("x", 10*mostBody) + `"}`},
			"request: frame length out of range"},
	} {
		p := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		go func() {
			for _, o := range test.requests {
				_ = frame.Write(p, json.RawMessage(o)) // one that is refused is not read to its end
			}
		}()
		last := ""
		for got := p.read(); got != ""; got = p.read() {
			last = got
		}
		want, _ := json.Marshal(test.want)
		if !strings.HasPrefix(last, `{"failed":{"message":`+strings.TrimSuffix(string(want), `"`)) {
			t.Errorf("%.60s: got %s, want %s", test.requests, last, want)
		}
		if err := p.end(); err == nil {
			t.Errorf("%.60s: no error", test.requests)
		}
	}
}

// The program learns why there is no engine, and whose fault it is.
func TestOpenFails(t *testing.T) {
	for err, want := range map[error]string{
		errors.New("no model"): `{"failed":{"message":"no model","usage":false}}`,
		fmt.Errorf("start: %w", attach.Usage{Err: errors.New("unknown flag: --x")}): `{"failed":` +
			`{"message":"start: unknown flag: --x","usage":true}}`,
	} {
		p := start(t, t.Context(), func(context.Context) (http.Handler, any, error) {
			return nil, nil, err
		})
		if got := p.read(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := p.read(); got != "" {
			t.Errorf("%s after the last frame", got)
		}
		if got := p.end(); !errors.Is(got, err) {
			t.Errorf("got %v, want %v", got, err)
		}
	}
}

// A program that goes while the engine starts has the start ended.
func TestGoesDuringStart(t *testing.T) {
	starting := make(chan bool)
	p := start(t, t.Context(), func(ctx context.Context) (http.Handler, any, error) {
		close(starting)
		<-ctx.Done()
		return nil, nil, ctx.Err()
	})
	<-starting
	p.Close()
	if err := p.end(); err != nil {
		t.Error(err)
	}
}

func TestAsksBeforeReady(t *testing.T) {
	p := start(t, t.Context(), func(ctx context.Context) (http.Handler, any, error) {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	})
	p.write(`{"id":1,"route":"/x"}`)
	want := `{"failed":{"message":"request 1 is asked before the engine is ready","usage":false}}`
	if got := p.read(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// When the engine fails, that is what the program is told, and nothing after it.
func TestEnds(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	running := make(chan bool)
	p := start(t, ctx, func(context.Context) (http.Handler, any, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(running)
			<-r.Context().Done()
		}), nil, nil
	})
	p.read()
	p.write(`{"id":1,"route":"/x"}`)
	<-running
	lost := errors.New("rank 1 is lost")
	cancel(lost)
	if got := p.read(); got != `{"failed":{"message":"rank 1 is lost","usage":false}}` {
		t.Errorf("got %s", got)
	}
	if got := p.read(); got != "" {
		t.Errorf("%s after the last frame", got)
	}
	if err := p.end(); !errors.Is(err, lost) {
		t.Error(err)
	}
}

// A program that does not read holds up its own requests, not the end.
func TestDoesNotRead(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var once sync.Once
	full := make(chan bool)
	p := start(t, ctx, func(context.Context) (http.Handler, any, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			event := "data: {\"x\":\"" + strings.Repeat("x", 1<<20) + "\"}\n\n"
			for i := range 100 {
				if i == 4 {
					once.Do(func() { close(full) })
				}
				if _, err := io.WriteString(w, event); err != nil {
					return
				}
			}
			t.Error("100 MB are kept for a program that does not read")
		}), nil, nil
	})
	p.read()
	p.write(`{"id":1,"route":"/x"}`)
	<-full
	cancel()
	if err := p.end(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Whatever bytes come, Serve ends with them, and every request that was read has one answer or
// the connection a reason.
func FuzzServe(f *testing.F) {
	one := func(s string) []byte { b, _ := frame.Append(nil, json.RawMessage(s)); return b }
	f.Add(one(`{"id":1,"route":"/echo","body":{}}`))
	f.Add(append(one(`{"id":1,"route":"/events"}`), one(`{"cancel":1}`)...))
	f.Add([]byte("\x00\x00\x00\x02{}\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, theirs := net.Pipe()
		served := make(chan error, 1)
		go func() {
			served <- attach.Serve(t.Context(), theirs, mostBody,
				func(context.Context) (http.Handler, any, error) {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/events" {
							w.Header().Set("Content-Type", "text/event-stream")
							io.WriteString(w, "data: {}\n\n")
						}
					}), nil, nil
				})
		}()
		if _, err := frame.Read(ours); err != nil {
			t.Fatal(err)
		}
		read := make(chan bool)
		go func() {
			defer close(read)
			for {
				raw, err := frame.ReadAtMost(ours, 1<<20)
				if err != nil {
					return
				}
				if !json.Valid(raw) {
					t.Errorf("%q is not JSON", raw)
				}
			}
		}()
		ours.Write(data) // fails where it is refused
		ours.Close()
		<-served
		<-read
	})
}
