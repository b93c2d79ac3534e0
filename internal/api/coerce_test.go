package api

import (
	"reflect"
	"regexp"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/engine"
)

// TestCoercedFields: every number and boolean of a request means the same as text.
func TestCoercedFields(t *testing.T) {
	shared := [][2]string{
		{`"n":2`, `"n":"2"`},
		{`"n":1`, `"n":true`},
		{`"max_tokens":5`, `"max_tokens":"5"`},
		{`"max_tokens":5`, `"max_tokens":" 5.0 "`},
		{`"min_tokens":3,"max_tokens":5`, `"min_tokens":"3","max_tokens":"5"`},
		{`"temperature":0.5`, `"temperature":"0.5"`},
		{`"temperature":1`, `"temperature":true`},
		{`"temperature":20`, `"temperature":"20"`},
		{`"top_p":0.5`, `"top_p":"5e-1"`},
		{`"top_k":7`, `"top_k":"7"`},
		{`"min_p":0.25`, `"min_p":".25"`},
		{`"repetition_penalty":1.5`, `"repetition_penalty":"1.5"`},
		{`"presence_penalty":-1`, `"presence_penalty":"-1"`},
		{`"frequency_penalty":1`, `"frequency_penalty":"+1"`},
		{`"seed":1234`, `"seed":"1_234"`},
		{`"stop_token_ids":[5,6]`, `"stop_token_ids":["5","6"]`},
		{`"logit_bias":{"7":-5}`, `"logit_bias":{"7":"-5"}`},
		{`"logit_bias":{"7":-5}`, `"logit_bias":{" 7 ":-5}`},
		{`"allowed_token_ids":[5,6]`, `"allowed_token_ids":["5",6.0]`},
		{`"ignore_eos":true`, `"ignore_eos":"yes"`},
		{`"ignore_eos":true`, `"ignore_eos":1`},
		{`"skip_special_tokens":false`, `"skip_special_tokens":"False"`},
		{`"include_stop_str_in_output":true`, `"include_stop_str_in_output":"on"`},
		{`"prompt_logprobs":2`, `"prompt_logprobs":"2"`},
		{`"truncate_prompt_tokens":1`, `"truncate_prompt_tokens":"1"`},
		{`"return_token_ids":true`, `"return_token_ids":"t"`},
		{`"return_tokens_as_token_ids":true`, `"return_tokens_as_token_ids":1.0`},
		{`"stream":true`, `"stream":"TRUE"`},
		{`"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`,
			`"stream":1,"stream_options":{"include_usage":"1","continuous_usage_stats":"y"}`},
		{`"stream":false`, `"stream":"off"`},
		{`"priority":0`, `"priority":"0"`},
		{`"use_beam_search":false`, `"use_beam_search":"no"`},
		{`"length_penalty":1`, `"length_penalty":"1.0"`},
		{`"add_special_tokens":false`, `"add_special_tokens":"n"`},
		{`"echo":true`, `"echo":"true"`},
	}
	completions := [][2]string{
		{`"logprobs":2`, `"logprobs":"2"`},
		{`"echo":true,"max_tokens":0`, `"echo":"true","max_tokens":"0"`},
	}
	chat := [][2]string{
		{`"logprobs":true,"top_logprobs":2`, `"logprobs":"true","top_logprobs":"2"`},
		{`"max_completion_tokens":5`, `"max_completion_tokens":"5"`},
		{`"add_generation_prompt":false`, `"add_generation_prompt":"0"`},
		{`"return_prompt_text":true`, `"return_prompt_text":"1"`},
		{`"parallel_tool_calls":true`, `"parallel_tool_calls":"1"`},
		{`"include_reasoning":true`, `"include_reasoning":1`},
	}
	check := func(path, prompt string, pair [2]string) {
		t.Helper()
		var bodies [2]string
		var asked [2]engine.Request
		for i, field := range pair {
			s := newServer(t)
			rec := s.post(path, "{"+prompt+","+field+`,"seed":7,"request_id":"r"}`)
			if pair == shared[14] { // the seed itself
				rec = s.post(path, "{"+prompt+","+field+`,"request_id":"r"}`)
			}
			if rec.Code != 200 {
				t.Errorf("%s with %s answered %d: %s", path, field, rec.Code, rec.Body)
				return
			}
			bodies[i], asked[i] = withoutTime(rec.Body.String()), *s.engine.last(t)
		}
		if bodies[0] != bodies[1] || !reflect.DeepEqual(asked[0], asked[1]) {
			t.Errorf("%s: %s and %s differ:\n%s\n%s\n%+v\n%+v", path, pair[0], pair[1], bodies[0],
				bodies[1], asked[0], asked[1])
		}
	}
	for _, pair := range shared {
		check(completionsPath, hi, pair)
		check(openai.ChatPath, hiChat, pair)
	}
	for _, pair := range completions {
		check(completionsPath, hi, pair)
	}
	for _, pair := range chat {
		check(openai.ChatPath, hiChat, pair)
	}
	s := newServer(t)
	rec := s.post("/tokenize", `{`+hi+`,"add_special_tokens":"no","return_token_strs":"yes"}`)
	if rec.Code != 200 || len(object(t, rec.Body.Bytes())["token_strs"].([]any)) == 0 {
		t.Errorf("/tokenize answered %d %s", rec.Code, rec.Body)
	}
	if rec := s.post("/detokenize", `{"tokens":["5",6]}`); rec.Code != 200 {
		t.Errorf("/detokenize answered %d %s", rec.Code, rec.Body)
	}
}

var createdAt = regexp.MustCompile(`"created":[0-9]+,`)

// withoutTime takes the time of creation out of an answer.
func withoutTime(body string) string { return createdAt.ReplaceAllString(body, "") }
