package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// fuzzRequests posts any body: it is answered, every error has the right shape, and what reaches
// the engine is within the engine's contract.
func fuzzRequests(f *testing.F, path string, seeds ...string) {
	s := newServer(f)
	for _, c := range sharedRefusals {
		if len(c.fields) < 500 {
			seeds = append(seeds, "{"+c.fields+"}")
		}
	}
	for _, seed := range seeds {
		f.Add(seed)
	}
	s.engine.play = func(_ int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300, 301}, []string{"a", "\xff"}, sample.FinishLength)}
	}
	f.Fuzz(func(t *testing.T, body string) {
		checkAnswer(t, s, path, body, func(rec *httptest.ResponseRecorder) { chunks(t, rec) })
	})
}

// checkAnswer posts a body; events checks a stream.
func checkAnswer(t *testing.T, s *testServer, path, body string,
	events func(*httptest.ResponseRecorder)) {
	t.Helper()
	s.engine.requests = s.engine.requests[:0]
	rec := s.do("POST", path, body, "Content-Type", "application/json")
	switch {
	case rec.Code == http.StatusOK && strings.HasPrefix(rec.Header().Get("Content-Type"),
		"text/event-stream"):
		events(rec)
	case rec.Code == http.StatusOK:
		object(t, rec.Body.Bytes())
	case rec.Code == 400 || rec.Code == 404:
		if m, _ := at(t, object(t, rec.Body.Bytes()), "error", "message").(string); m == "" {
			t.Fatal("an error without a message")
		}
	default:
		t.Fatalf("answered %d %s", rec.Code, rec.Body)
	}
	for _, r := range s.engine.requests {
		checkContract(t, &s.Model, r)
	}
}

// checkContract holds what engine.Request and sample.Params say of their fields.
func checkContract(t *testing.T, m *generate.Model, r *engine.Request) {
	t.Helper()
	p := &r.Params
	ok := func(ok bool, what string) {
		if !ok {
			raw, _ := json.Marshal(r)
			t.Fatalf("%s in %s", what, raw)
		}
	}
	within := func(ids []int32) bool {
		for _, id := range ids {
			if id < 0 || int(id) >= m.VocabSize {
				return false
			}
		}
		return true
	}
	ok(len(r.Prompt) >= 1 && len(r.Prompt) < m.MaxModelLen && within(r.Prompt), "prompt")
	ok(p.MaxTokens >= 1 && len(r.Prompt)+int(p.MaxTokens) <= m.MaxModelLen, "max tokens")
	ok(p.MinTokens >= 0 && p.MinTokens <= p.MaxTokens, "min tokens")
	ok(p.Temperature >= 0 && p.Temperature <= 2 && p.TopP > 0 && p.TopP <= 1 && p.MinP >= 0 &&
		p.MinP <= 1, "temperature, top_p, min_p")
	ok(p.TopK >= 0 && int(p.TopK) < m.VocabSize && p.RepetitionPenalty > 0,
		"top_k, repetition penalty")
	ok(p.Logprobs >= -2 && int(p.Logprobs) <= m.MaxLogprobs() && p.PromptLogprobs >= -2 &&
		int(p.PromptLogprobs) <= m.MaxLogprobs(), "logprobs")
	ok(within(p.StopTokens) && within(p.AllowedTokens), "token ids")
	for _, b := range p.LogitBias {
		ok(within([]int32{b.ID}) && b.Value >= -100 && b.Value <= 100, "logit bias")
	}
	for _, w := range p.BadWords {
		ok(len(w) > 0 && within(w), "bad words")
	}
	for _, s := range r.Stop {
		ok(s != "", "stop")
	}
}

func FuzzCompletions(f *testing.F) {
	fuzzRequests(f, completionsPath, `{"prompt":"hi"}`,
		`{"prompt":[1,2],"logprobs":3,"echo":true,"max_tokens":0}`,
		`{"prompt":["a","b"],"n":2,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":[[1],[2,3]],"logit_bias":{"5":-7},"stop":["x"],"bad_words":["a"],"seed":3,"truncate_prompt_tokens":1}`,
		`{"prompt":"a","temperature":0,"allowed_token_ids":[1],"min_tokens":2,"prompt_logprobs":1,"return_token_ids":true}`)
}

func FuzzChat(f *testing.F) {
	fuzzRequests(f, openai.ChatPath, `{"messages":[{"role":"user","content":"hi"}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"<|im_end|>"}]}],"stream":true,"logprobs":true,"top_logprobs":2}`,
		`{"messages":[{"role":"assistant","content":"so"}],"continue_final_message":true,"echo":true,"n":2}`,
		`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}],"tools":[{"function":{"name":"f"}}],"tool_choice":"none"}`,
		`{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":[1,{"b":null}]},"documents":[{"t":"x"}],"reasoning_effort":"low"}`)
}
