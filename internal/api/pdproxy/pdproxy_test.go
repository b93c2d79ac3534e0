package pdproxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
)

// backend is a scripted server.
type backend struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []string // bodies of completions
	header http.Header
	status int
	answer string
	well   bool
}

func newBackend(t *testing.T, answer string) *backend {
	b := &backend{status: 200, answer: answer, well: true}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		b.mu.Lock()
		defer b.mu.Unlock()
		if r.URL.Path == "/health" {
			if !b.well {
				w.WriteHeader(503)
			}
			return
		}
		b.asked, b.header = append(b.asked, string(body)), r.Header.Clone()
		w.Header().Set("X-From", "there")
		w.WriteHeader(b.status)
		io.WriteString(w, b.answer)
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *backend) set(status int, well bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.well = status, well
}

func (b *backend) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.asked
	b.asked = nil
	return all
}

func newProxy(t *testing.T, prefill, decode []*backend, on func(Times)) (*Proxy, string) {
	t.Helper()
	o := Options{OnSplit: on, MaxBody: 1000}
	for _, b := range prefill {
		o.Prefill = append(o.Prefill, b.URL)
	}
	for _, b := range decode {
		o.Decode = append(o.Decode, b.URL+"/")
	}
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	return p, s.URL
}

// lookAll asks every server for its health once.
func lookAll(t *testing.T, p *Proxy) {
	t.Helper()
	p.each(func(f *fleet, s *server) { p.look(t.Context(), f, s) })
}

// TestHungHealth: a server that does not answer about its health does not hold up what is known of
// the others.
func TestHungHealth(t *testing.T) {
	asked, over := make(chan struct{}, 9), make(chan struct{})
	hung := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-over
	}))
	defer hung.Close()
	defer close(over)
	other := newBackend(t, "")
	p, err := New(Options{Decode: []string{hung.URL, other.URL}, HealthEvery: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { p.Watch(ctx) })
	defer watching.Wait()
	defer cancel()
	<-asked
	began := time.Now()
	for _, well := range []bool{false, true} {
		other.set(200, well)
		for p.decode.servers[1].down() == well {
			if time.Since(began) > healthTimeout {
				t.Fatalf("that it is well = %t is not known", well)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func post(t *testing.T, url, body string) (int, string, http.Header) {
	t.Helper()
	q, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer key")
	q.Header.Set("Connection", "X-Hop")
	q.Header.Set("X-Hop", "1")
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text), r.Header
}

// TestRenounced wants a prefill server to have its blocks back as soon as it is clear that no
// server comes for them: the decode server refuses the request, is not there, or breaks its answer
// off, or the client goes. An answer that is complete has had its blocks, or not.
func TestRenounced(t *testing.T) {
	agent, err := kvtransfer.Listen(kvtransfer.Options{Host: "127.0.0.1",
		Blocks: 1,
		Shape:  kvtransfer.Shape{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(agent.Close)
	at := agent.Address()
	for what, decode := range map[string]func(w http.ResponseWriter, gone chan struct{}){
		"refused": func(w http.ResponseWriter, _ chan struct{}) { w.WriteHeader(400) },
		"broken off": func(w http.ResponseWriter, _ chan struct{}) {
			io.WriteString(w, "data: 1")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"the client goes": func(w http.ResponseWriter, gone chan struct{}) {
			io.WriteString(w, "data: 1")
			http.NewResponseController(w).Flush()
			<-gone
		},
		"not there": nil,
		"complete":  func(w http.ResponseWriter, _ chan struct{}) { io.WriteString(w, "{}") },
	} {
		h := kvtransfer.Pin{Secret: kvtransfer.NewSecret()}
		if err := agent.Pin(h); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(
			map[string]any{"kv_transfer_params": kvtransfer.Ticket{DoRemotePrefill: true,
				Host: at.Host, Port: at.Port, Fingerprint: at.Fingerprint, Secret: h.Secret}})
		if err != nil {
			t.Fatal(err)
		}
		dec := newBackend(t, "")
		gone := make(chan struct{})
		dec.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			decode(w, gone)
		})
		if decode == nil {
			dec.Close()
		}
		p, url := newProxy(t, []*backend{newBackend(t, string(text))}, []*backend{dec}, nil)
		r, err := http.Post(url+"/v1/completions", "application/json",
			strings.NewReader(`{"prompt":"a"}`))
		if err != nil {
			t.Fatal(err)
		}
		if what == "the client goes" {
			r.Body.Close()
		} else {
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
		}
		if what != "complete" {
			if !agent.AwaitFetched(t.Context(), h.Secret) {
				t.Errorf("%s: the blocks were not given up", what)
			}
			close(gone)
			continue
		}
		p.partings.Wait()
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if agent.AwaitFetched(over, h.Secret) {
			t.Errorf("%s: the blocks were given up", what)
		}
	}
}

const ticket = `{"kv_transfer_params":{"do_remote_prefill":true,"x":1}}`

// TestSplit asks for a prompt and then for the answer, with the client's own text and key.
func TestSplit(t *testing.T) {
	pre, dec := newBackend(t, ticket), newBackend(t, "the answer")
	var trace bytes.Buffer
	tr, err := NewTrace(&trace)
	if err != nil {
		t.Fatal(err)
	}
	_, url := newProxy(t, []*backend{pre}, []*backend{dec}, tr.Add)
	const body = `{"prompt": "a<b", "max_tokens": 7, "max_completion_tokens":9, "stream": true, ` +
		`"n": 2, "logprobs": 1, "logprob_token_ids": [5], "seed": 12345678901234567}`
	status, text, header := post(t, url+"/v1/completions?x=1", body)
	if status != 200 || text != "the answer" || header.Get("X-From") != "there" {
		t.Errorf("%d %q %v", status, text, header)
	}
	if got := dec.take(); len(got) != 1 || got[0] !=
		`{"kv_transfer_params":{"do_remote_prefill":true,"x":1},`+body[1:] {
		t.Errorf("the decode server is asked %q", got)
	}
	var fields map[string]any
	asked := pre.take()
	if len(asked) != 1 || json.Unmarshal([]byte(asked[0]), &fields) != nil {
		t.Fatalf("the prefill server is asked %q", asked)
	}
	if fields["prompt"] != "a<b" || fields["max_tokens"] != 1.0 || len(fields) != 4 ||
		!strings.Contains(asked[0], `"seed":12345678901234567`) {
		t.Errorf("the prefill server is asked %s", asked[0])
	}
	for _, b := range []*backend{pre, dec} {
		if b.header.Get("Authorization") != "Bearer key" || b.header.Get("X-Hop") != "" {
			t.Errorf("headers %v", b.header)
		}
	}
	if n := strings.Count(trace.String(), `"ph":"X"`); n != 3 {
		t.Errorf("%d events: %s", n, &trace)
	}
}

// TestNotSplit passes on what is not for a prefill server, or of which that has nothing.
func TestNotSplit(t *testing.T) {
	pre, dec := newBackend(t, ticket), newBackend(t, "{}")
	_, url := newProxy(t, []*backend{pre}, []*backend{dec}, nil)
	for _, c := range []struct{ path, body string }{
		{"/v1/embeddings", `{"input":"a"}`}, {"/v1/completions",
			`{"prompt":"a","use_beam_search":true}`},
		{"/v1/completions", `{"prompt":"a","kv_transfer_params":{}}`}, {"/v1/completions",
			`{"prompt`},
		{"/v1/completions", `[]`}, {"/v1/completions", `{}`},
	} {
		if status, _, _ := post(t, url+c.path, c.body); status != 200 {
			t.Errorf("%+v: %d", c, status)
		}
		if got := dec.take(); len(got) != 1 || got[0] != c.body || len(pre.take()) != 0 {
			t.Errorf("%+v: %q", c, got)
		}
	}
	for _, answer := range []string{`{"kv_transfer_params":null}`, `{`, `{"error":{}}`} {
		pre.answer = answer
		post(t, url+"/v1/completions", `{"prompt":"a"}`)
		if got := dec.take(); len(got) != 1 || got[0] != `{"prompt":"a"}` {
			t.Errorf("%s: %q", answer, got)
		}
	}
	if status, _, _ := post(t, url+"/v1/completions", strings.Repeat("x", 1001)); status != 413 {
		t.Errorf("a body that is too long: %d", status)
	}
}

// TestServersFail loses servers of both kinds: what has not begun another one takes.
func TestServersFail(t *testing.T) {
	pre := []*backend{newBackend(t, ticket), newBackend(t, ticket)}
	dec := []*backend{newBackend(t, "a"), newBackend(t, "b")}
	p, url := newProxy(t, pre, dec, nil)
	ask := func() int {
		status, _, _ := post(t, url+"/v1/completions", `{"prompt":"a"}`)
		return status
	}
	count := func(b []*backend) int { return len(b[0].take()) + len(b[1].take()) }
	pre[0].Close()
	for i := range 4 {
		dec[0].set([]int{503, overloaded}[i%2], true)
		if status := ask(); status != 200 {
			t.Errorf("%d while one of each is left", status)
		}
	}
	if n := len(dec[1].take()); n != 4 || count(pre) != 4 {
		t.Errorf("%d of 4 answers", n)
	}
	dec[0].take()
	lookAll(t, p)
	if got := []int{p.prefill.up(), p.decode.up()}; got[0] != 1 || got[1] != 2 {
		t.Errorf("%v servers are well", got)
	}
	pre[1].Close()
	if status := ask(); status != 200 {
		t.Errorf("%d without a prefill server", status)
	}
	dec[0].set(200, false)
	dec[1].set(200, false)
	lookAll(t, p)
	if r, err := http.Get(url + "/health"); err != nil || r.StatusCode != 503 {
		t.Errorf("health without a decode server: %v, %v", r, err)
	}
	dec[1].set(200, true)
	lookAll(t, p)
	count(dec)
	for range 4 {
		ask()
	}
	if n := len(dec[1].take()); n != 4 {
		t.Errorf("%d of 4 answers are of the server that is well", n)
	}
	dec[0].Close()
	dec[1].Close()
	if status := ask(); status != 503 {
		t.Errorf("%d without a server", status)
	}
	status, text, header := post(t, url+"/v1/messages", `{}`)
	var e anthropic.ErrorBody
	if err := json.Unmarshal([]byte(text), &e); err != nil || status != overloaded ||
		e.Type != "error" || e.Error.Type != "overloaded_error" ||
		e.RequestID != header.Get("Request-Id") || e.RequestID == "" {
		t.Errorf("an Anthropic client without a server: %d %s, %v", status, text, err)
	}
}

// TestHungPrefill: a prefill server that is not well holds up no request, neither one that it has
// nor those that come later.
func TestHungPrefill(t *testing.T) {
	var well atomic.Bool
	well.Store(true)
	asked := make(chan struct{}, 10)
	hung := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/health":
			_, _ = io.ReadAll(r.Body)
			asked <- struct{}{}
			<-r.Context().Done()
		case !well.Load():
			w.WriteHeader(503)
		}
	}))
	t.Cleanup(hung.Close)
	pre, dec := &backend{Server: hung}, newBackend(t, "the answer")
	p, url := newProxy(t, []*backend{pre}, []*backend{dec}, nil)
	ask := func() <-chan string {
		answer := make(chan string, 1)
		go func() {
			_, text, _ := post(t, url+"/v1/completions", `{"prompt":"a"}`)
			answer <- text
		}()
		return answer
	}
	first := ask()
	<-asked
	well.Store(false)
	lookAll(t, p)
	for i, answer := range []<-chan string{first, ask()} {
		select {
		case text := <-answer:
			if text != "the answer" {
				t.Errorf("request %d: %q", i, text)
			}
		case <-asked:
			t.Fatal("a server that is not well is asked")
		case <-time.After(10 * time.Second):
			t.Fatalf("request %d waits", i)
		}
	}
	if n := p.prefill.servers[0].busy.Load(); n != 0 {
		t.Errorf("the server has %d requests", n)
	}
	well.Store(true)
	lookAll(t, p)
	last := ask()
	<-asked
	p.mark(p.prefill, p.prefill.servers[0], io.EOF)
	<-last
}

// TestStreams passes on events as they come, and a break as one; a client that goes away ends the
// request behind, which says nothing of the server.
func TestStreams(t *testing.T) {
	next, gone := make(chan string), make(chan struct{}, 1)
	dec := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case text := <-next:
				if text == "" {
					panic(http.ErrAbortHandler)
				}
				io.WriteString(w, text)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				gone <- struct{}{}
				return
			}
		}
	}))
	defer dec.Close()
	p, err := New(Options{Decode: []string{dec.URL}})
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []bool{false, true} {
		s := httptest.NewServer(p)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		q, _ := http.NewRequestWithContext(ctx, "POST", s.URL+"/v1/completions",
			strings.NewReader(`{}`))
		go func() { next <- "one" }()
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 3)
		for _, want := range []string{"one", "two"} {
			if _, err := io.ReadFull(r.Body, buf); err != nil || string(buf) != want {
				t.Fatalf("%q instead of %q, %v", buf, want, err)
			}
			if want == "one" {
				next <- "two"
			}
		}
		if cut {
			next <- ""
			if n, err := r.Body.Read(buf); err == nil || err == io.EOF {
				t.Errorf("a break is read as %d bytes, %v", n, err)
			}
		} else {
			cancel()
			<-gone
		}
		r.Body.Close()
		s.Close() // waits for the proxy's answer
		if up := p.decode.up() == 1; up == cut {
			t.Errorf("cut by the server: %v, which is well: %v", cut, up)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, o := range []Options{{}, {Prefill: []string{"http://a"}}, {Decode: []string{"a:1"}},
		{Decode: []string{"http://a"}, Prefill: []string{"ftp://b"}}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
}

// resuming is a server with an answer that it breaks off after each of some numbers of bytes. It
// goes on as servers do.
func resuming(t *testing.T, answer string, breaks ...int) (url string, asked func() []string) {
	var mu sync.Mutex
	var list []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body, _ := io.ReadAll(r.Body)
		value := r.Header.Get(resumeHeader)
		list = append(list, value+" "+string(body))
		has := 0
		if value != "begin" {
			var sum uint32
			if n, err := fmt.Sscanf(value, "token;%d;%x", &has, &sum); n != 2 || err != nil ||
				sum != crc32.ChecksumIEEE([]byte(answer[:has])) {
				w.WriteHeader(http.StatusConflict)
				io.WriteString(w, `{"error":"another one"}`)
				return
			}
		}
		w.Header().Set(resumeHeader, "token")
		w.Header().Set("Content-Type", "text/event-stream")
		to := len(answer)
		if len(breaks) > 0 {
			to, breaks = breaks[0], breaks[1:]
		}
		if to >= 0 {
			io.WriteString(w, answer[has:max(has, to)])
			w.(http.Flusher).Flush()
		}
		if to < len(answer) {
			panic(http.ErrAbortHandler)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return list
	}
}

// TestGoesOn has another server go on with an answer that one has broken off, as often as it may be
// the servers' fault.
func TestGoesOn(t *testing.T) {
	const answer = "data: one\n\ndata: two\n\ndata: three\n\n"
	for name, c := range map[string]struct {
		breaks []int
		want   string
		asks   int
	}{
		"whole":            {nil, answer, 1},
		"in an event":      {[]int{3}, answer, 2},
		"twice":            {[]int{11, 25}, answer, 3},
		"before the first": {[]int{-1, 0}, answer, 3},
		"poison":           {[]int{11, 12, 13, 14}, "has ended", 3},
		"poison, unbegun":  {[]int{-1, -1, -1, -1}, `"code":503`, 3},
	} {
		t.Run(name, func(t *testing.T) {
			url, asked := resuming(t, answer, c.breaks...)
			p, err := New(Options{Decode: []string{"http://127.0.0.1:1", url, url, url, url}})
			if err != nil {
				t.Fatal(err)
			}
			s := httptest.NewServer(p)
			defer s.Close()
			_, text, header := post(t, s.URL+"/v1/completions", `{"prompt":"a"}`)
			if text != c.want && (c.want == answer || !strings.Contains(text, c.want)) ||
				len(asked()) != c.asks {
				t.Errorf("%q after %q", text, asked())
			}
			if header.Get(resumeHeader) != "" {
				t.Error("the client has the token")
			}
		})
	}
	t.Run("another answer", func(t *testing.T) {
		one, _ := resuming(t, answer, 11)
		two, _ := resuming(t, strings.ToUpper(answer))
		p, err := New(Options{Decode: []string{two, one}}) // the second has the first turn
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(p)
		defer s.Close()
		want := answer[:11] + "\n\ndata: {\"error\":\"another one\"}\n\n"
		if _, text, _ := post(t, s.URL+"/v1/completions", `{}`); text != want {
			t.Errorf("%q", text)
		}
	})
	t.Run("Anthropic's client", func(t *testing.T) {
		url, _ := resuming(t, answer, 11, 12, 13, 14)
		p, err := New(Options{Decode: []string{url, url, url}})
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(p)
		defer s.Close()
		_, text, _ := post(t, s.URL+"/v1/messages", `{}`)
		_, event, _ := strings.Cut(text, "\n\nevent: error\ndata: ")
		var e anthropic.ErrorBody
		if err := json.Unmarshal([]byte(event), &e); err != nil ||
			e.Error.Type != "overloaded_error" {
			t.Errorf("%q ends with %q, %v", text, event, err)
		}
	})
}

// TestVanishes has another server go on when the machine of one vanishes, which closes nothing:
// what is sent to it is dropped.
func TestVanishes(t *testing.T) {
	const answer = "data: one\n\ndata: two\n\n"
	type connection struct{}
	for _, begun := range []int{0, 11} {
		over := make(chan struct{})
		vanishing := httptest.NewUnstartedServer(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				w.Header().Set(resumeHeader, "token")
				if begun > 0 {
					_, _ = io.WriteString(w, answer[:begun])
					_ = http.NewResponseController(w).Flush()
				}
				raw, err := r.Context().Value(connection{}).(*net.TCPConn).SyscallConn()
				drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
				if err == nil {
					err = raw.Control(func(fd uintptr) {
						err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET,
							unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
					})
				}
				if err != nil {
					t.Error(err)
				}
				<-over
			}))
		vanishing.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connection{}, c)
		}
		vanishing.Start()
		defer vanishing.Close()
		defer close(over)
		other, _ := resuming(t, answer)
		// The second has the first turn.
		p, err := New(Options{Decode: []string{other, vanishing.URL}, Silence: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(p)
		defer s.Close()
		began := time.Now()
		if _, text, _ := post(t, s.URL+"/v1/completions", `{}`); text != answer {
			t.Errorf("%q", text)
		}
		if took := time.Since(began); took < time.Second || took > 20*time.Second {
			t.Errorf("the answer has taken %v", took)
		}
	}
}

// TestDroppedInServe: the two that split requests, this proxy and the app of Ray Serve, ask prefill
// servers for the same.
func TestDroppedInServe(t *testing.T) {
	app, err := os.ReadFile("../../../python/eagleray/serve/_handover.py")
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(app), "_DROPPED = frozenset(")
	list, _, _ = strings.Cut(list, ".split()")
	theirs := strings.Fields(strings.NewReplacer(`"`, "", "(", "", ")", "").Replace(list))
	ours := slices.Clone(dropped)
	slices.Sort(ours)
	slices.Sort(theirs)
	if !slices.Equal(ours, theirs) {
		t.Errorf("dropped here:  %v\nby the app:    %v", ours, theirs)
	}
}
