package api

import (
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
)

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
	s.ok(t, openai.TokensPath, `{"token_ids":[1],"sampling_params":{"logprob_token_ids":[9],"stream_interval":4}}`)
	if r := s.engine.last(t); len(r.Params.LogprobTokens) != 1 || r.Interval != 4 {
		t.Errorf("%+v", r)
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
