package api

import (
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// TestChatBatch answers several conversations in one request, each by its choice.
func TestChatBatch(t *testing.T) {
	s := newServer(t)
	s.engine.play = func(n int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300}, []string{strings.Repeat("x", n+1)},
			sample.FinishStop)}
	}
	const two = `"messages":[[{"role":"user","content":"a"}],[{"role":"system","content":"b"},{"role":"user","content":"c"}]]`
	answer := s.ok(t, openai.ChatBatchPath, `{`+two+`,"max_tokens":5,"seed":1}`)
	for i, want := range []string{"x", "xx"} {
		if got := at(t, answer, "choices", i, "message", "content"); got != want || at(t, answer,
			"choices", i, "index") != float64(i) {
			t.Errorf("choice %d: %v", i, at(t, answer, "choices", i))
		}
	}
	if at(t, answer, "usage", "completion_tokens") != 2.0 || at(t, answer,
		"object") != "chat.completion" {
		t.Errorf("%v", answer)
	}
	// One conversation alone has the prompt it has here.
	s.ok(t, openai.ChatPath, `{"messages":[{"role":"user","content":"a"}]}`)
	r := s.engine.requests
	if len(r) != 3 || len(r[0].Prompt) != len(r[2].Prompt) ||
		len(r[1].Prompt) <= len(r[0].Prompt) || r[0].Params.MaxTokens != 5 {
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
		rec := s.post(openai.ChatBatchPath, body)
		if rec.Code != 400 || at(t, object(t, rec.Body.Bytes()), "error", "param") != field {
			t.Errorf("%.80s: %d %s", body, rec.Code, rec.Body)
		}
	}
}

// TestTokensInAndOut generates from token ids.
func TestTokensInAndOut(t *testing.T) {
	s := newServer(t)
	answer := s.ok(t, openai.TokensPath, `{"request_id":"r1","token_ids":[1,2,3],"sampling_params":{"max_tokens":4,"temperature":0.5,
		"logprobs":1,"detokenize":false,"output_kind":2},"stream":false,"stream_options":null,"priority":0,"cache_salt":"s"}`)
	if got := at(t, answer, "choices", 0, "token_ids"); len(got.([]any)) != 2 ||
		got.([]any)[0] != 300.0 || at(t, answer, "choices", 0, "finish_reason") != "stop" ||
		at(t, answer, "request_id") != "generate-tokens-r1" {
		t.Errorf("%v", answer)
	}
	if got := at(t, answer, "choices", 0, "logprobs", "content", 0,
		"token"); got != "token_id:300" {
		t.Errorf("a token is shown as %v", got)
	}
	if r := s.engine.last(t); r.Params.MaxTokens != 4 || len(r.Prompt) != 3 ||
		r.Params.Temperature != 0.5 {
		t.Errorf("%+v", r.Params)
	}
	for body, field := range map[string]string{
		`{}`:                             "token_ids",
		`{"token_ids":[]}`:               "token_ids",
		`{"token_ids":["a"]}`:            "token_ids",
		`{"token_ids":[[1],[2]]}`:        "token_ids",
		`{"token_ids":[99999]}`:          "token_ids",
		`{"token_ids":[1],"stream":1.5}`: "stream",
		`{"token_ids":[1],"prompt":"a"}`: "prompt",
		`{"token_ids":[1],"echo":true}`:  "echo",
		`{"token_ids":[1],"sampling_params":{"stream":true}}`:                     "stream",
		`{"token_ids":[1],"stream":true,"sampling_params":{"prompt_logprobs":0}}`: "prompt_logprobs",
		`{"token_ids":[1],"stream_options":{"include_usage":true}}`:               "stream_options",
		`{"token_ids":[1],"features":{"a":1}}`:                                    "features",
		`{"token_ids":[1],"sampling_params":[1]}`:                                 "sampling_params",
		`{"token_ids":[1],"sampling_params":{"n":0}}`:                             "n",
		`{"token_ids":[1],"sampling_params":{"prompt":"a"}}`:                      "prompt",
		`{"token_ids":[1],"priority":0,"sampling_params":{"priority":0}}`:         "sampling_params",
	} {
		rec := s.post(openai.TokensPath, body)
		if rec.Code != 400 || at(t, object(t, rec.Body.Bytes()), "error", "param") != field {
			t.Errorf("%s: %d %s", body, rec.Code, rec.Body)
		}
	}
}

// TestBestOf: as many candidates as answers are what n asks for; more are refused, by name.
func TestBestOf(t *testing.T) {
	s := newServer(t)
	if got := at(t, s.ok(t, completionsPath, `{`+hi+`,"n":2,"best_of":2}`),
		"choices"); len(got.([]any)) != 2 {
		t.Errorf("%v", got)
	}
	for _, body := range []string{`{` + hi + `,"n":2,"best_of":3}`, `{` + hi + `,"best_of":2}`,
		`{` + hi + `,"n":2,"best_of":1}`} {
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
	if rec.Code != 200 || answer["tokenizer_class"] == nil || !strings.Contains(template,
		"messages") {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

// TestTokensStreamed: the events of a stream of token ids add up to the answer without one.
func TestTokensStreamed(t *testing.T) {
	s := newServer(t)
	const body = `{"request_id":"r1","token_ids":[1,2,3],"sampling_params":{"n":2,"logprobs":1,"seed":3}`
	whole := s.ok(t, openai.TokensPath, body+`}`)
	list := chunks(t, s.post(openai.TokensPath,
		body+`,"stream":true,"stream_options":{"include_usage":true}}`))
	type choice struct {
		ids, scores []any
		finish      any
	}
	var got [2]choice
	for _, e := range list[:len(list)-1] {
		if e["request_id"] != whole["request_id"] {
			t.Errorf("an event of %v", e["request_id"])
		}
		c := at(t, e, "choices", 0).(map[string]any)
		to := &got[int(c["index"].(float64))]
		to.ids = append(to.ids, c["token_ids"].([]any)...)
		to.scores = append(to.scores, at(t, c, "logprobs", "content").([]any)...)
		to.finish = c["finish_reason"]
	}
	for i := range got {
		want := at(t, whole, "choices", i).(map[string]any)
		if marshal(t, got[i].ids) != marshal(t, want["token_ids"]) ||
			got[i].finish != want["finish_reason"] || marshal(t, got[i].scores) != marshal(t,
			at(t, want, "logprobs", "content")) {
			t.Errorf("choice %d adds up to %+v, want %v", i, got[i], want)
		}
	}
	if u := at(t, list[len(list)-1], "usage", "completion_tokens"); u != 4.0 {
		t.Errorf("%v tokens are counted", u)
	}
}
