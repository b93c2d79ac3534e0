package api

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
)

// slowBody begins a request whose body stays one byte short, and returns its connection.
func slowBody(t *testing.T, addr string, size int, chunked bool) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	length := fmt.Sprintf("Content-Length: %d\r\n\r\n", size)
	if chunked {
		length = fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", size)
	}
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Type: application/json\r\n%s%s", completionsPath, length,
		strings.Repeat(" ", size-1))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestSlowLargeBodies: many large bodies one byte short hold a bounded part of the memory, are
// refused beyond it, and a small request is served meanwhile.
func TestSlowLargeBodies(t *testing.T) {
	noLeak(t)
	const size = 2 << 20
	s := newServer(t, func(o *Options) {
		o.Config.Server.MaxRequestBodyBytes = size + 1
		o.Limits.BodyWait = 50 * time.Millisecond
	})
	ts := listen(t, s)
	const clients = 12
	var conns []net.Conn
	refused := make(chan string, clients)
	for i := range clients {
		conn := slowBody(t, ts.Listener.Addr().String(), size, i%2 == 1)
		conns = append(conns, conn)
		go func() {
			line, _ := bufio.NewReader(conn).ReadString('\n')
			refused <- line
		}()
	}
	// Of four times the limit three quarters are for large bodies.
	for range clients - 3 {
		select {
		case line := <-refused:
			if !strings.Contains(line, "503") {
				t.Errorf("a large body got %q", line)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("all of them are held")
		}
	}
	if n := s.BodyBytes(); n == 0 || n > 4*(size+1) {
		t.Errorf("%d bytes are in use", n)
	}
	resp, err := http.Post(ts.URL+completionsPath, "application/json",
		strings.NewReader(`{`+hi+`}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("a small request got %d", resp.StatusCode)
	}
	// Bodies that hold a part each may keep one more out than whole ones would.
	_, count, _ := strings.Cut(s.do("GET", "/metrics", "").Body.String(), `reason="bodies"} `)
	count, _, _ = strings.Cut(count, "\n")
	if n, err := strconv.Atoi(count); err != nil || n < clients-3 || n > clients {
		t.Errorf("%q refused bodies are counted, want %d at least", count, clients-3)
	}
	for _, conn := range conns {
		conn.Close()
	}
	for s.BodyBytes() != 0 {
		time.Sleep(time.Millisecond)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestBodiesGiveTheirShareBack, however the request ends; while an answer is made nothing is held.
func TestBodiesGiveTheirShareBack(t *testing.T) {
	s := newServer(t)
	for path, bodies := range map[string][]string{
		completionsPath: {`{` + hi + `}`, `{`, `{"prompt":5}`, `{` + hi + `,"stream":true}`, ``},
		openai.ChatPath: {`{` + hiChat + `}`, `[]`, `{}`, `{` + hiChat + `,"stream":true}`},
		"/tokenize":     {`{` + hi + `}`, `{}`},
		"/detokenize":   {`{"tokens":[5]}`, `{}`},
	} {
		for _, body := range bodies {
			s.post(path, body)
			if n := s.BodyBytes(); n != 0 {
				t.Errorf("%s %s: %d bytes are still in use", path, body, n)
			}
		}
	}
}

// TestMalformedBodies: what breaks HTTP's rules is a bad request, not a slow one.
func TestMalformedBodies(t *testing.T) {
	s := newServer(t)
	ts := listen(t, s)
	for name, c := range map[string]struct{ rest, want string }{
		"chunk size": {"zz\r\n{}\r\n0\r\n\r\n", " 400 "},
		"chunk end":  {"2\r\n{}xx0\r\n\r\n", " 400 "},
		"good chunks": {"2\r\n{" + `"` + "\r\n" + "c\r\n" + `prompt":"a"}` + "\r\n0\r\n\r\n",
			" 200 "},
		"chunk too long": {"fffffffffffffffff\r\n", " 400 "},
	} {
		conn, err := net.Dial("tcp", ts.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
			"application/json\r\nTransfer-Encoding: chunked\r\n\r\n%s", completionsPath, c.rest)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		line, err := bufio.NewReader(conn).ReadString('\n')
		if !strings.Contains(line, c.want) {
			t.Errorf("%s: %q %v", name, line, err)
		}
		conn.Close()
	}
}

// TestTooLongBodies: a body that says itself that it is too long is not asked for.
func TestTooLongBodies(t *testing.T) {
	s := filing(t)
	ts := listen(t, s)
	for path, kind := range map[string]string{completionsPath: "application/json",
		"/v1/files": "multipart/form-data; boundary=B"} {
		conn, err := net.Dial("tcp", ts.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n"+
			"Content-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n", path, kind)
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		line, err := bufio.NewReader(conn).ReadString('\n')
		if !strings.Contains(line, " 413 ") {
			t.Errorf("%s: %q %v", path, line, err)
		}
		conn.Close()
	}
}

// TestLongTextsToTruncate: a text is not tokenized at any length only because its end is not
// wanted.
func TestLongTextsToTruncate(t *testing.T) {
	s := newServer(t)
	text := strings.Repeat("many words ", generate.LeastTokenized/11+1)
	refused(t, s, completionsPath, `{"prompt":"`+text+`","truncate_prompt_tokens":3}`, 400,
		"prompt", "in order to be truncated")
	refused(t, s, openai.ChatPath, `{"messages":[{"role":"user","content":"`+text+
		`"}],"truncate_prompt_tokens":3}`, 400, "messages", "in order to be truncated")
	s.ok(t, completionsPath, `{"prompt":"`+text[:generate.LeastTokenized]+`","truncate_prompt_tokens":3}`)
}

// TestStalledBodies: a body that does not come in time is answered with 408, wherever it stalls,
// also when a write may take less time than a body.
func TestStalledBodies(t *testing.T) {
	noLeak(t)
	s := newServer(t, func(o *Options) {
		o.Limits.BodyTimeout, o.Limits.WriteTimeout = 2*time.Second, time.Second
	})
	ts := listen(t, s)
	const chunked = "Transfer-Encoding: chunked\r\n\r\n"
	for name, rest := range map[string]string{
		"body":       "Content-Length: 100\r\n\r\n{",
		"no chunk":   chunked,
		"chunk size": chunked + "1",
		"chunk data": chunked + "20\r\n{",
		"chunk end":  chunked + "1\r\n{",
		"next chunk": chunked + "1\r\n{\r\n",
		"trailer":    chunked + "2\r\n{}\r\n0\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", ts.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\n"+
				"Content-Type: application/json\r\n%s", completionsPath, rest)
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusRequestTimeout || !resp.Close {
				t.Errorf("%d, error %v, closed: %v", resp.StatusCode, err, resp.Close)
			}
			if kind := at(t, object(t, raw), "error", "type"); kind != "RequestTimeoutError" {
				t.Errorf("answered %s", raw)
			}
		})
	}
}

// TestChunkedBodies of every size around the pieces in which they are read arrive whole.
func TestChunkedBodies(t *testing.T) {
	s := newServer(t)
	ts := listen(t, s)
	const firstPiece = 64 << 10 // how much of a body is read at first
	for _, size := range []int{100, firstPiece - 1, firstPiece, firstPiece + 1, 2 * firstPiece,
		5 * firstPiece} {
		text := `{` + hi + `,"user":"` + strings.Repeat("u", size-len(`{`+hi+`,"user":""}`)) + `"}`
		for _, r := range []io.Reader{strings.NewReader(text),
			io.MultiReader(strings.NewReader(text))} {
			resp, err := http.Post(ts.URL+completionsPath, "application/json", r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 200 || len(text) != size {
				t.Errorf("%d bytes got %d", size, resp.StatusCode)
			}
		}
	}
}

// TestRenderingStopsWithItsClient: a template that would run for long ends when the client goes.
func TestRenderingStopsWithItsClient(t *testing.T) {
	s := newServer(t, withTemplate(t, `{% for i in range(2000) %}{% for j in range(900) %}{% endfor %}{% endfor %}`))
	r := newRequest("POST", openai.ChatPath, `{`+hiChat+`}`)
	ctx, cancel := context.WithCancel(r.Context())
	cancel()
	began := time.Now()
	s.serveRequest(r.WithContext(ctx))
	stopped := time.Since(began)
	template, err := chattemplate.Parse(`{% for i in range(2000) %}{% for j in range(900) %}{% endfor %}{% endfor %}`)
	if err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	if _, err := template.Render(chattemplate.NewMap(), chattemplate.Options{}); err != nil {
		t.Fatal(err)
	}
	if whole := time.Since(began); stopped > whole/2 {
		t.Errorf("ended after %v, the whole rendering takes %v", stopped, whole)
	}
	if !strings.Contains(s.log.String(), "status=499") {
		t.Errorf("logged %s", s.log)
	}
}

// TestTokenizingStopsWithItsClient on every way to it.
func TestTokenizingStopsWithItsClient(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	text := strings.Repeat("a ", 1<<16)
	s.Model.MaxModelLen = len(text)
	r := newRequest("POST", "/tokenize", `{"prompt":"`+text+`"}`)
	s.serveRequest(r.WithContext(ctx))
	if !strings.Contains(s.log.String(), "status=499") {
		t.Errorf("logged %s", s.log)
	}
}
