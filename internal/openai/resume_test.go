package openai

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/sample"
)

// sampled answers what the seed of a request draws: a call of a tool, then text. Its deltas are merged
// by chance, unlike on another server.
func sampled(chance *rand.Rand, tools bool) func(int, *engine.Request) script {
	return func(_ int, r *engine.Request) script {
		of := rand.New(rand.NewPCG(r.Params.Seed, 1))
		var ids []int32
		var texts []string
		if tools {
			ids, texts = []int32{5, 6}, []string{"<tool_call>\n{\"name\": \"f\", ", "\"arguments\": {}}\n</tool_call>"}
		}
		for range 6 + of.IntN(4) {
			ids = append(ids, 300+of.Int32N(500))
			texts = append(texts, fmt.Sprintf(" w%d", of.IntN(1000)))
		}
		return script{deltas: mergedBy(chance, say(r, ids, texts, sample.FinishLength))}
	}
}

// mergedBy puts some deltas that follow each other together, as a slow reader finds them.
func mergedBy(chance *rand.Rand, list []engine.Delta) []engine.Delta {
	var out []engine.Delta
	for _, d := range list {
		d.TextEnds = []int{len(d.Text)}
		if n := len(out) - 1; n >= 0 && chance.IntN(2) == 0 {
			last := out[n]
			d.Text = append(append([]byte(nil), last.Text...), d.Text...)
			d.Tokens = append(append([]int32(nil), last.Tokens...), d.Tokens...)
			d.TextOffsets = append(append([]int(nil), last.TextOffsets...), d.TextOffsets...)
			d.TextEnds = append(append([]int(nil), last.TextEnds...), len(d.Text))
			d.Logprobs, d.PromptLogprobs = append(last.Logprobs[:len(last.Logprobs):len(last.Logprobs)],
				d.Logprobs...), last.PromptLogprobs
			out[n] = d
			continue
		}
		out = append(out, d)
	}
	return out
}

// TestResumes breaks answers of every route off after any number of bytes, and has another server go
// on: the client has the bytes of an answer that was not broken off.
func TestResumes(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	serverOf := func(tools bool) *testServer {
		return newServer(t, func(o *Options) {
			o.Engine = &fakeEngine{play: sampled(chance, tools)}
			o.Config.Model.ToolCallParser = "hermes"
			o.Config.Server.EnableRequestIDHeaders = tools
		})
	}
	const tool = `"tools":[{"type":"function","function":{"name":"f"}}]`
	for name, c := range map[string]struct {
		path, body string
		tools      bool
	}{
		"completion": {path: completionPath, body: `{"prompt":"a","stream":true,"temperature":1,"n":3,
			"logprobs":2,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
		"echo": {path: completionPath, body: `{"prompt":["a","b c"],"stream":true,"echo":true,"logprobs":1,
			"return_token_ids":true}`},
		"chat": {path: chatPath, body: `{"messages":[{"role":"user","content":"a"}],"stream":true,"n":2,
			"logprobs":true}`},
		"calls": {path: chatPath, tools: true, body: `{"messages":[{"role":"user","content":"a"}],
			"stream":true,"n":2,` + tool + `}`},
		"tokens":   {path: tokensPath, body: `{"token_ids":[1],"stream":true,"sampling_params":{"n":2}}`},
		"messages": {path: messagesPath, body: `{"messages":[{"role":"user","content":"a"}],"max_tokens":9,"stream":true}`},
		"response": {path: responsesPath, body: `{"input":"a","stream":true}`},
		"whole":    {path: completionPath, body: `{"prompt":"a","n":2}`},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := serverOf(c.tools), serverOf(c.tools)
			first := one.do("POST", c.path, c.body, ResumeHeader, "begin")
			token, full := first.Header().Get(ResumeHeader), first.Body.Bytes()
			if first.Code != http.StatusOK || token == "" {
				t.Fatalf("%d %q: %s", first.Code, token, full)
			}
			if other := two.do("POST", c.path, c.body, ResumeHeader, "begin"); other.Body.String() == string(full) {
				t.Fatalf("two requests have the same answer: nothing is drawn: %s", full)
			}
			// Responses say at their end when that was.
			before := len(full) - 1
			if at := strings.Index(string(full), "event: response.completed"); at >= 0 {
				before = at
			}
			for _, has := range []int{0, 1, before, 1 + chance.IntN(before), 1 + chance.IntN(before)} {
				sum := crc32.ChecksumIEEE(full[:has])
				rest := two.do("POST", c.path, c.body, ResumeHeader, fmt.Sprintf("%s;%d;%08x", token, has, sum))
				if rest.Code != http.StatusOK || rest.Body.String()[:before-has] != string(full[has:before]) {
					t.Errorf("after %d bytes: %d %s\ninstead of %s", has, rest.Code, rest.Body, full[has:])
				}
				if rest.Header().Get(ResumeHeader) != token {
					t.Errorf("after %d bytes the token is %q", has, rest.Header().Get(ResumeHeader))
				}
			}
		})
	}
}

// TestResumesNothingElse says so where the rest of an answer would not be that of the beginning.
func TestResumesNothingElse(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	s := newServer(t, func(o *Options) { o.Engine = &fakeEngine{play: sampled(chance, false)} })
	const body = `{"prompt":"a","stream":true}`
	first := s.do("POST", completionPath, body, ResumeHeader, "begin")
	token, full := first.Header().Get(ResumeHeader), first.Body.Bytes()
	sum := crc32.ChecksumIEEE(full[:500])
	ask := func(s *testServer, body, value string) (int, string) {
		rec := s.do("POST", completionPath, body, ResumeHeader, value)
		return rec.Code, rec.Body.String()
	}
	other := newServer(t, func(o *Options) { o.Version = "1.2.4" })
	for name, c := range map[string]struct {
		of          *testServer
		body, value string
		status      int
		want        string
	}{
		"another prompt's answer": {s, `{"prompt":"a","stream":true,"seed":7}`,
			fmt.Sprintf("%s;500;%08x", token, sum), 409, "different"},
		"a longer one":  {s, body, fmt.Sprintf("%s;%d;%08x", token, len(full)+1, sum), 409, "shorter"},
		"other weights": {other, body, fmt.Sprintf("%s;500;%08x", token, sum), 409, "weights"},
		"no token":      {s, body, "x;1;2", 400, ResumeHeader},
		"no bytes":      {s, body, token + ";-1;2", 400, "no number"},
		"no sum":        {s, body, token + ";1;x", 400, "no CRC-32"},
	} {
		if status, text := ask(c.of, c.body, c.value); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s", name, status, text)
		} else {
			at(t, object(t, []byte(text)), "error", "message")
		}
	}
	if rec := s.post(completionPath, body); rec.Header().Get(ResumeHeader) != "" {
		t.Error("an answer that nobody would resume has a token")
	}
}

// TestLeftToOthers breaks the connections of requests that an engine has failed or was stopped with,
// where somebody asks elsewhere; others are told.
func TestLeftToOthers(t *testing.T) {
	for name, c := range map[string]struct {
		cause  error
		broken bool
	}{"failed": {engine.ErrFailed, true}, "stopped": {engine.ErrStopped, true},
		"condemned": {engine.ErrCondemned, false}, "overloaded": {engine.ErrOverloaded, false}} {
		for _, at := range []string{"start", "middle"} {
			s := newServer(t, func(o *Options) {
				o.Engine = &fakeEngine{submit: func(int) error {
					if at == "start" {
						return c.cause
					}
					return nil
				}, play: func(n int, r *engine.Request) script {
					x := sayHello(n, r)
					x.deltas, x.err = x.deltas[:1], c.cause
					return x
				}}
			})
			for header, broken := range map[string]bool{"": false, "begin": c.broken} {
				if got := breaks(s, header); got != broken {
					t.Errorf("%s at the %s, %q: broken %v", name, at, header, got)
				}
			}
		}
	}
}

// breaks says whether a server breaks the connection of a request.
func breaks(s *testServer, header string) (broken bool) {
	defer func() { broken = recover() == http.ErrAbortHandler }()
	s.do("POST", completionPath, `{"prompt":"a","stream":true}`, ResumeHeader, header)
	return false
}
