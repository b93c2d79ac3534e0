package api

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/api/server"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/store"
)

// sampled answers what the seed of a request draws, after pieces of text. Its deltas are merged by
// chance, unlike on another server.
func sampled(chance *rand.Rand, begin ...string) func(int, *engine.Request) script {
	return func(_ int, r *engine.Request) script {
		of := rand.New(rand.NewPCG(r.Params.Seed, 1))
		var ids []int32
		var texts []string
		for i, text := range begin {
			ids, texts = append(ids, int32(5+i)), append(texts, text)
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
		if n := len(out) - 1; n >= 0 && chance.IntN(2) == 0 {
			out[n] = together([]engine.Delta{out[n], d})
			continue
		}
		out = append(out, d)
	}
	return out
}

// resumeParsers are parsers of answers, with pieces of an answer that they take apart.
var resumeParsers = map[string]struct {
	tools, reasoning string
	begin            []string
}{
	"": {},
	"hermes": {tools: "hermes", begin: []string{"<tool_call>\n{\"name\": \"f\", ",
		"\"arguments\": {}}\n</tool_call>"}},
	"mistral": {tools: "mistral", begin: []string{"[TOOL_CALLS]f{\"x\"", ": 1}"}},
	"qwen3": {tools: "hermes", reasoning: "qwen3", begin: []string{"<think>", "so", " be it",
		"</thi", "nk>yes ", "<tool_call>\n{\"name\": \"f\", ",
		"\"arguments\": {\"x\": 1}}\n</tool_call>",
		"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"}},
	"thoughts": {tools: "hermes", reasoning: "qwen3", begin: []string{"<think>so", " be it"}},
}

// TestResumes breaks answers of every route off after any number of bytes, and has another server
// go on: the client has the bytes of an answer that was not broken off.
func TestResumes(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	serverOf := func(parser string) *testServer {
		p := resumeParsers[parser]
		return newServer(t, func(o *Options) {
			o.Engine = &fakeEngine{play: sampled(chance, p.begin...)}
			o.Config.Model.ToolCallParser, o.Config.Model.ReasoningParser = p.tools, p.reasoning
			o.Config.Server.EnableRequestIDHeaders = p.tools != ""
		}, func(o *Options) {
			if p.reasoning != "" {
				hermesTemplate(o)
			}
		}, keeping(t, store.Options{}))
	}
	const (
		chat  = `{"messages":[{"role":"user","content":"a"}],"stream":true`
		tool  = `,"tools":[{"type":"function","function":{"name":"f"}}]`
		usage = `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`
		shape = `{"type":"object","properties":{"a":{"type":"integer"}}}`
		flat  = `,"tools":[{"type":"function","name":"f","parameters":` + shape + `}]`
		other = `,"tools":[{"name":"f","input_schema":` + shape + `}]`
	)
	for name, c := range map[string]struct{ path, body, parser string }{
		"completion": {openai.CompletionPath,
			`{"prompt":"a","stream":true,"temperature":1,"n":3,"logprobs":2` + usage + `}`, ""},
		"echo": {openai.CompletionPath, `{"prompt":["a","b c"],"stream":true,"echo":true,"logprobs":1,
			"return_token_ids":true}`, ""},
		"structured": {openai.CompletionPath,
			`{"prompt":"a","stream":true,"structured_outputs":{"regex":"( w[0-9]+)*"}}`, ""},
		"chat": {openai.ChatPath, chat + `,"n":2,"logprobs":true}`, ""},
		"schema": {openai.ChatPath, chat +
			`,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":` + shape +
			`}}}`, ""},
		"calls":     {openai.ChatPath, chat + tool + `,"n":2}`, "hermes"},
		"short ids": {openai.ChatPath, chat + tool + `,"n":2}`, "mistral"},
		"one call": {openai.ChatPath, chat + tool +
			`,"parallel_tool_calls":false,"tool_choice":"required"}`, "hermes"},
		"reasoning": {openai.ChatPath, chat + tool +
			`,"n":2,"logprobs":true,"top_logprobs":2` + usage + `}`, "qwen3"},
		"hidden reasoning": {openai.ChatPath, chat +
			`,"include_reasoning":false,"return_token_ids":true}`, "qwen3"},
		"only reasoning": {openai.ChatPath, chat + `,"logprobs":true}`, "thoughts"},
		"tokens": {openai.TokensPath,
			`{"token_ids":[1],"stream":true,"sampling_params":{"n":2}}`, ""},
		"messages": {anthropic.MessagesPath,
			`{"messages":[{"role":"user","content":"a"}],"max_tokens":9,"stream":true}`, ""},
		"messages, calls": {anthropic.MessagesPath, chat + `,"max_tokens":9` + other + `}`,
			"hermes"},
		"messages, thinking": {anthropic.MessagesPath, chat +
			`,"max_tokens":99,"thinking":{"type":"enabled","budget_tokens":50}` + other + `}`,
			"qwen3"},
		"response": {responses.ResponsesPath, `{"input":"a","stream":true}`, ""},
		"response, kept not": {responses.ResponsesPath,
			`{"input":"a","stream":true,"store":false,"top_logprobs":2,"include":["message.output_text.logprobs"]}`, ""},
		"response, calls": {responses.ResponsesPath, `{"input":"a","stream":true` + flat + `}`,
			"hermes"},
		"response, reasoning": {responses.ResponsesPath, `{"input":"a","stream":true,"reasoning":{"effort":"low"},
			"include":["reasoning.encrypted_content"]` + flat + `}`, "qwen3"},
		"whole": {openai.CompletionPath, `{"prompt":"a","n":2}`, ""},
		"whole chat": {openai.ChatPath, `{"messages":[{"role":"user","content":"a"}],"n":2` +
			tool + `}`, "qwen3"},
		"whole message": {anthropic.MessagesPath,
			`{"messages":[{"role":"user","content":"a"}],"max_tokens":9}`, "qwen3"},
		"whole response": {responses.ResponsesPath, `{"input":"a"}`, "qwen3"},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := serverOf(c.parser), serverOf(c.parser)
			first := one.do("POST", c.path, c.body, server.ResumeHeader, "begin")
			token, full := first.Header().Get(server.ResumeHeader), first.Body.Bytes()
			if first.Code != http.StatusOK || token == "" {
				t.Fatalf("%d %q: %s", first.Code, token, full)
			}
			if other := two.do("POST", c.path, c.body, server.ResumeHeader,
				"begin"); other.Body.String() == string(full) {
				t.Fatalf("two requests have the same answer: nothing is drawn: %s", full)
			}
			// Responses say at their end when that was.
			before := len(full) - 1
			if at := strings.Index(string(full), `"completed_at":1`); at >= 0 {
				before = at
			}
			for _, has := range []int{0, 1, before, 1 + chance.IntN(before), 1 +
				chance.IntN(before)} {
				sum := crc32.ChecksumIEEE(full[:has])
				rest := two.do("POST", c.path, c.body, server.ResumeHeader,
					fmt.Sprintf("%s;%d;%08x", token, has, sum))
				if rest.Code != http.StatusOK ||
					rest.Body.String()[:before-has] != string(full[has:before]) {
					t.Errorf("after %d bytes: %d %s\ninstead of %s", has, rest.Code, rest.Body,
						full[has:])
				}
				if rest.Header().Get(server.ResumeHeader) != token {
					t.Errorf("after %d bytes the token is %q", has,
						rest.Header().Get(server.ResumeHeader))
				}
			}
		})
	}
}

// TestResumesNothingElse says so where the rest of an answer would not be that of the beginning.
func TestResumesNothingElse(t *testing.T) {
	chance := rand.New(rand.NewPCG(1, 2))
	s := newServer(t, func(o *Options) { o.Engine = &fakeEngine{play: sampled(chance)} })
	const body = `{"prompt":"a","stream":true}`
	first := s.do("POST", openai.CompletionPath, body, server.ResumeHeader, "begin")
	token, full := first.Header().Get(server.ResumeHeader), first.Body.Bytes()
	sum := crc32.ChecksumIEEE(full[:500])
	ask := func(s *testServer, body, value string) (int, string) {
		rec := s.do("POST", openai.CompletionPath, body, server.ResumeHeader, value)
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
		"a longer one": {s, body, fmt.Sprintf("%s;%d;%08x", token, len(full)+1, sum), 409,
			"shorter"},
		"other weights": {other, body, fmt.Sprintf("%s;500;%08x", token, sum), 409, "weights"},
		"no token":      {s, body, "x;1;2", 400, server.ResumeHeader},
		"no bytes":      {s, body, token + ";-1;2", 400, "no number"},
		"no sum":        {s, body, token + ";1;x", 400, "no CRC-32"},
	} {
		if status, text := ask(c.of, c.body, c.value); status != c.status || !strings.Contains(text,
			c.want) {
			t.Errorf("%s: %d %s", name, status, text)
		} else {
			at(t, object(t, []byte(text)), "error", "message")
		}
	}
	if rec := s.post(openai.CompletionPath, body); rec.Header().Get(server.ResumeHeader) != "" {
		t.Error("an answer that nobody would resume has a token")
	}
}

// TestLeftToOthers breaks the connections of requests that an engine has failed or was stopped
// with, where the client asks elsewhere; others are told.
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
	s.do("POST", openai.CompletionPath, `{"prompt":"a","stream":true}`, server.ResumeHeader, header)
	return false
}
