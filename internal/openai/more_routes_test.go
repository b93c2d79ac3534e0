package openai

import (
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/sample"
)

// TestChatBatch answers several conversations in one request, each by its choice.
func TestChatBatch(t *testing.T) {
	s := newServer(t)
	s.engine.play = func(n int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300}, []string{strings.Repeat("x", n+1)}, sample.FinishStop)}
	}
	const two = `"messages":[[{"role":"user","content":"a"}],[{"role":"system","content":"b"},{"role":"user","content":"c"}]]`
	answer := s.ok(t, chatBatchPath, `{`+two+`,"max_tokens":5,"seed":1}`)
	for i, want := range []string{"x", "xx"} {
		if got := at(t, answer, "choices", i, "message", "content"); got != want || at(t, answer, "choices", i, "index") != float64(i) {
			t.Errorf("choice %d: %v", i, at(t, answer, "choices", i))
		}
	}
	if at(t, answer, "usage", "completion_tokens") != 2.0 || at(t, answer, "object") != "chat.completion" {
		t.Errorf("%v", answer)
	}
	// One conversation alone has the prompt it has here.
	s.ok(t, chatPath, `{"messages":[{"role":"user","content":"a"}]}`)
	r := s.engine.requests
	if len(r) != 3 || len(r[0].Prompt) != len(r[2].Prompt) || len(r[1].Prompt) <= len(r[0].Prompt) ||
		r[0].Params.MaxTokens != 5 {
		t.Errorf("%d requests", len(r))
	}
	for body, field := range map[string]string{
		`{` + two + `,"stream":true}`:                         "stream",
		`{` + two + `,"n":2}`:                                 "n",
		`{` + two + `,"echo":true}`:                           "echo",
		`{` + two + `,"prompt_logprobs":1}`:                   "prompt_logprobs",
		`{` + two + `,"return_token_ids":true}`:               "return_token_ids",
		`{` + hiChat + `}`:                                    "messages",
		`{"messages":[]}`:                                     "messages",
		`{"messages":[[]]}`:                                   "messages",
		`{"messages":[[{"role":"user","content":"a"}],[{}]]}`: "messages",
		`{"messages":[[{"role":"user","content":"a"}],"b"]}`:  "messages",
		`{}`: "messages",
		`{"messages":[` + repeat(`[{"role":"user"}]`, 2049) + `]}`: "messages",
	} {
		rec := s.post(chatBatchPath, body)
		if rec.Code != 400 || at(t, object(t, rec.Body.Bytes()), "error", "param") != field {
			t.Errorf("%.80s: %d %s", body, rec.Code, rec.Body)
		}
	}
}

// TestTokensInAndOut generates from token ids.
func TestTokensInAndOut(t *testing.T) {
	s := newServer(t)
	answer := s.ok(t, tokensPath, `{"request_id":"r1","token_ids":[1,2,3],"sampling_params":{"max_tokens":4,"temperature":0.5,
		"logprobs":1,"detokenize":false,"output_kind":2},"stream":false,"stream_options":null,"priority":0,"cache_salt":"s"}`)
	if got := at(t, answer, "choices", 0, "token_ids"); len(got.([]any)) != 2 || got.([]any)[0] != 300.0 ||
		at(t, answer, "choices", 0, "finish_reason") != "stop" || at(t, answer, "request_id") != "generate-tokens-r1" {
		t.Errorf("%v", answer)
	}
	if got := at(t, answer, "choices", 0, "logprobs", "content", 0, "token"); got != "token_id:300" {
		t.Errorf("a token is shown as %v", got)
	}
	if r := s.engine.last(t); r.Params.MaxTokens != 4 || len(r.Prompt) != 3 || r.Params.Temperature != 0.5 {
		t.Errorf("%+v", r.Params)
	}
	for body, field := range map[string]string{
		`{}`:                                                 "token_ids",
		`{"token_ids":[]}`:                                   "token_ids",
		`{"token_ids":["a"]}`:                                "token_ids",
		`{"token_ids":[[1],[2]]}`:                            "token_ids",
		`{"token_ids":[99999]}`:                              "token_ids",
		`{"token_ids":[1],"stream":true}`:                    "stream",
		`{"token_ids":[1],"features":{"a":1}}`:               "features",
		`{"token_ids":[1],"sampling_params":[1]}`:            "sampling_params",
		`{"token_ids":[1],"sampling_params":{"n":0}}`:        "n",
		`{"token_ids":[1],"sampling_params":{"prompt":"a"}}`: "prompt",
		`{"token_ids":[1],"priority":0,"sampling_params":{"priority":0}}`: "sampling_params",
	} {
		rec := s.post(tokensPath, body)
		if rec.Code != 400 || at(t, object(t, rec.Body.Bytes()), "error", "param") != field {
			t.Errorf("%s: %d %s", body, rec.Code, rec.Body)
		}
	}
}

// TestBestOf: as many candidates as answers are what n asks for; more are refused, by name.
func TestBestOf(t *testing.T) {
	s := newServer(t)
	if got := at(t, s.ok(t, completionsPath, `{`+hi+`,"n":2,"best_of":2}`), "choices"); len(got.([]any)) != 2 {
		t.Errorf("%v", got)
	}
	for _, body := range []string{`{` + hi + `,"n":2,"best_of":3}`, `{` + hi + `,"best_of":2}`, `{` + hi + `,"n":2,"best_of":1}`} {
		rec := s.post(completionsPath, body)
		if rec.Code != 400 || at(t, object(t, rec.Body.Bytes()), "error", "param") != "best_of" {
			t.Errorf("%s: %d %s", body, rec.Code, rec.Body)
		}
	}
}

// TestTokenizerInfo: the route is there when it is asked for, behind the key.
func TestTokenizerInfo(t *testing.T) {
	if rec := newServer(t).do("GET", "/tokenizer_info", ""); rec.Code != 404 {
		t.Errorf("without the flag: %d", rec.Code)
	}
	s := newServer(t, func(o *Options) {
		o.Config.Server.Answers.TokenizerInfo, o.Config.Server.APIKeys = true, []string{"k"}
	})
	if rec := s.do("GET", "/tokenizer_info", ""); rec.Code != 401 {
		t.Errorf("without the key: %d", rec.Code)
	}
	rec := s.do("GET", "/tokenizer_info", "", "Authorization", "Bearer k")
	answer := object(t, rec.Body.Bytes())
	template, _ := answer["chat_template"].(string)
	if rec.Code != 200 || answer["tokenizer_class"] == nil || !strings.Contains(template, "messages") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}
