package api

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/wire"
)

const (
	completionsPath = "/v1/completions"
	hi              = `"prompt":"hi"`
	hiChat          = `"messages":[{"role":"user","content":"hi"}]`
)

// refusal is what bad fields must lead to: an error of status 400.
type refusal struct {
	fields string
	param  string
	// message is a part of the error's message.
	message string
}

// refusals are those of every route that is asked to generate or for tokens, by what is wrong.
func refusals() map[string]map[string]refusal {
	completions, chat := maps.Clone(completionRefusals), maps.Clone(chatRefusals)
	for name, c := range sharedRefusals {
		completions[name+", shared"] = refusal{hi + "," + c.fields, c.param, c.message}
		chat[name+", shared"] = refusal{hiChat + "," + c.fields, c.param, c.message}
	}
	return map[string]map[string]refusal{completionsPath: completions, openai.ChatPath: chat,
		openai.ChatBatchPath: named(chatBatchRefusals), openai.TokensPath: named(tokensRefusals),
		"/tokenize": named(tokenizeRefusals), "/detokenize": named(detokenizeRefusals)}
}

// named are refusals of fields that are their own names, by the field that the error is of.
func named(params map[string]string) map[string]refusal {
	rows := map[string]refusal{}
	for fields, param := range params {
		rows[fields] = refusal{fields, param, ""}
	}
	return rows
}

func TestRefusals(t *testing.T) {
	s := newServer(t)
	letter := s.Model.Tokenizer.Encode("a", false)
	if len(letter) != 1 {
		t.Fatalf("a letter is %d tokens", len(letter))
	}
	for path, rows := range refusals() {
		for name, c := range rows {
			fields := strings.ReplaceAll(c.fields, "$a", strconv.Itoa(int(letter[0])))
			t.Run(fmt.Sprintf("%s %.80s", path, name), func(t *testing.T) {
				refused(t, s, path, "{"+fields+"}", 400, c.param, c.message)
			})
		}
	}
	for path, fields := range map[string]string{completionsPath: hi, "/tokenize": hi,
		openai.ChatPath: hiChat, "/detokenize": `"tokens":[1]`} {
		refused(t, s, path, `{"model":"gpt-4",`+fields+`}`, 404, "model", "does not exist")
	}
}

// sharedRefusals are wrong in completions and chat alike.
var sharedRefusals = map[string]refusal{
	// Types.
	"n string":              {`"n":"one"`, "n", "integer"},
	"n fraction":            {`"n":1.5`, "n", "integer"},
	"n false":               {`"n":false`, "n", "between 1"},
	"n object":              {`"n":{}`, "n", "integer"},
	"n 2^63":                {`"n":9223372036854775808`, "n", "range"},
	"n -2^63-1":             {`"n":-9223372036854775809`, "n", "range"},
	"n 1e400":               {`"n":1e400`, "n", "range"},
	"temperature string":    {`"temperature":"warm"`, "temperature", "number"},
	"temperature NaN":       {`"temperature":NaN`, "temperature", "NaN"},
	"temperature Infinity":  {`"temperature":Infinity`, "temperature", "Infinity"},
	"temperature -Infinity": {`"temperature":-Infinity`, "temperature", "Infinity"},
	"temperature 1e400":     {`"temperature":1e400`, "temperature", "finite"},
	"temperature 1e39":      {`"temperature":1e39`, "temperature", "finite"},
	"temperature object":    {`"temperature":{}`, "temperature", "number"},
	"stream string":         {`"stream":" true"`, "stream", "boolean"},
	"stream number":         {`"stream":2`, "stream", "boolean"},
	"model number":          {`"model":1`, "model", "string"},
	"ignore_eos null":       {`"ignore_eos":null`, "ignore_eos", "null"},
	"min_tokens null":       {`"min_tokens":null`, "min_tokens", "null"},
	"request_id number":     {`"request_id":7`, "request_id", "string"},
	"request_id null":       {`"request_id":null`, "request_id", "null"},
	"request_id newline":    {`"request_id":"a\nb"`, "request_id", "visible"},
	"user object":           {`"user":{}`, "user", "string"},
	"duplicate field":       {`"n":1,"n":2`, "", "duplicate"},

	// Ranges.
	"n 0":             {`"n":0`, "n", "between 1"},
	"n -1":            {`"n":-1`, "n", "between 1"},
	"n 1e9":           {`"n":1000000000`, "n", "between 1"},
	"n greedy":        {`"n":2,"temperature":0`, "n", "greedy"},
	"max_tokens 0":    {`"max_tokens":0`, "max_tokens", "at least 1"},
	"max_tokens -1":   {`"max_tokens":-1`, "max_tokens", "at least 1"},
	"max_tokens 2^31": {`"max_tokens":2147483648`, "max_tokens", "context"},
	"max_tokens 2^62": {`"max_tokens":4611686018427387904`, "max_tokens", "context"},
	"max_tokens over context": {`"max_tokens":256`, "max_tokens",
		"maximum context length is 256 tokens"},
	"min above max":        {`"min_tokens":11,"max_tokens":10`, "min_tokens", "max_tokens=10"},
	"min_tokens negative":  {`"min_tokens":-1`, "min_tokens", "greater than or equal to 0"},
	"min_tokens 2^40":      {`"min_tokens":1099511627776`, "min_tokens", "less than or equal"},
	"temperature negative": {`"temperature":-0.1`, "temperature", "at least 0"},
	"temperature text":     {`"temperature":"inf"`, "temperature", "finite"},
	"top_p 0":              {`"top_p":0`, "top_p", "(0, 1]"},
	"top_p tiny":           {`"top_p":1e-60`, "top_p", "(0, 1]"},
	"top_p above 1":        {`"top_p":1.1`, "top_p", "(0, 1]"},
	"top_k -2":             {`"top_k":-2`, "top_k", "top_k"},
	"top_k fraction":       {`"top_k":0.5`, "top_k", "integer"},
	"min_p negative":       {`"min_p":-0.1`, "min_p", "[0, 1]"},
	"min_p above 1":        {`"min_p":1.1`, "min_p", "[0, 1]"},
	"repetition 0": {`"repetition_penalty":0`, "repetition_penalty",
		"greater than zero"},
	"repetition vanishing": {`"repetition_penalty":1e-60`, "repetition_penalty",
		"greater than zero"},
	"presence high":           {`"presence_penalty":2.1`, "presence_penalty", "[-2, 2]"},
	"frequency low":           {`"frequency_penalty":-2.1`, "frequency_penalty", "[-2, 2]"},
	"seed 2^63":               {`"seed":9223372036854775808`, "seed", "range"},
	"seed fraction":           {`"seed":0.5`, "seed", "integer"},
	"priority 2^40":           {`"priority":1099511627776`, "priority", "between"},
	"priority without policy": {`"priority":1`, "priority", "priority scheduling"},

	// Log-probabilities.
	"prompt_logprobs -2":     {`"prompt_logprobs":-2`, "prompt_logprobs", "positive value or -1"},
	"prompt_logprobs 1e6":    {`"prompt_logprobs":1000000`, "prompt_logprobs", "max allowed: 20"},
	"prompt_logprobs all":    {`"prompt_logprobs":-1`, "prompt_logprobs", "max allowed: 20"},
	"prompt_logprobs string": {`"prompt_logprobs":"1.5"`, "prompt_logprobs", "integer"},
	"prompt_logprobs stream": {`"prompt_logprobs":1,"stream":true`, "prompt_logprobs", "stream"},

	// Stops.
	"stop empty":      {`"stop":""`, "stop", "empty"},
	"stop with empty": {`"stop":["a",""]`, "stop", "empty"},
	"stop number":     {`"stop":1`, "stop", "string"},
	"stop of numbers": {`"stop":[1]`, "stop", "string"},
	"stop many":       {`"stop":[` + repeat(`"a"`, 100_000) + `]`, "stop", "more than 64"},
	"stop long": {`"stop":"` + strings.Repeat("a", 1<<20) + `"`, "stop",
		"longer than 1024"},
	"stop_token_ids negative": {`"stop_token_ids":[-1]`, "stop_token_ids", "out of vocabulary"},
	"stop_token_ids beyond":   {`"stop_token_ids":[2048]`, "stop_token_ids", "out of vocabulary"},
	"stop_token_ids many": {`"stop_token_ids":[` + repeat("1", 1_000_000) + `]`,
		"stop_token_ids", "more than 1024"},
	"stop_token_ids string": {`"stop_token_ids":["a"]`, "stop_token_ids", "integer"},
	"stop_token_ids scalar": {`"stop_token_ids":1`, "stop_token_ids", "array"},

	// Biases.
	"logit_bias array":    {`"logit_bias":[]`, "logit_bias", "object"},
	"logit_bias key":      {`"logit_bias":{"a":1}`, "logit_bias", "not a token id"},
	"logit_bias beyond":   {`"logit_bias":{"2048":1}`, "logit_bias", "out of vocabulary"},
	"logit_bias negative": {`"logit_bias":{"-1":1}`, "logit_bias", "out of vocabulary"},
	"logit_bias string":   {`"logit_bias":{"1":"a"}`, "logit_bias", "number"},
	"logit_bias null":     {`"logit_bias":{"1":null}`, "logit_bias", "number"},
	"logit_bias twice":    {`"logit_bias":{"1":1,"01":2}`, "logit_bias", "twice"},
	"logit_bias many": {`"logit_bias":{` + biases(2000) + `}`, "logit_bias",
		"more than 1024"},
	"logit_bias millions": {`"logit_bias":{` + biases(1_000_000) + `}`, "logit_bias", "members"},
	"allowed empty":       {`"allowed_token_ids":[]`, "allowed_token_ids", "empty"},
	"allowed beyond": {`"allowed_token_ids":[0,2048]`, "allowed_token_ids",
		"out of vocabulary"},
	"allowed more than all": {`"allowed_token_ids":[` + repeat("1", 2049) + `]`,
		"allowed_token_ids", "more than 2048"},
	"allowed all banned": {`"allowed_token_ids":[$a],"bad_words":["a"]`, "bad_words",
		"every token"},
	"allowed only ends": {`"allowed_token_ids":[2047,5],"stop_token_ids":[5],"min_tokens":1`,
		"min_tokens", "every token"},
	"bad_words empty":  {`"bad_words":[""]`, "bad_words", "empty"},
	"bad_words spaces": {`"bad_words":["  "]`, "bad_words", "at least one token"},
	"bad_words string": {`"bad_words":"x"`, "bad_words", "array"},
	"bad_words many": {`"bad_words":[` + repeat(`"a"`, 513) + `]`, "bad_words",
		"more than 512"},

	// Options that need each other.
	"stream_options alone": {`"stream_options":{"include_usage":true}`, "stream_options",
		"stream=True"},
	"stream_options not true": {`"stream":false,"stream_options":{}`, "stream_options",
		"stream=True"},
	"stream_options string": {`"stream":true,"stream_options":"x"`, "stream_options", "object"},
	"stream_options member": {`"stream":true,"stream_options":{"include_usage":2}`,
		"stream_options", "boolean"},
	"truncate -2": {`"truncate_prompt_tokens":-2`, "truncate_prompt_tokens", "-1"},
	"truncate beyond": {`"truncate_prompt_tokens":300`, "truncate_prompt_tokens",
		"cannot be greater"},
	"truncate to nothing": {`"truncate_prompt_tokens":0`, "", "no tokens"},
	"truncation_side":     {`"truncation_side":"middle"`, "truncation_side", "left or right"},
	"cache_salt empty":    {`"cache_salt":""`, "cache_salt", "1 to 128"},
	"cache_salt long": {`"cache_salt":"` + strings.Repeat("s", 129) + `"`, "cache_salt",
		"1 to 128"},
	"cache_salt at":        {`"cache_salt":"a@b"`, "cache_salt", "without"},
	"cache_salt slash":     {`"cache_salt":"a/b"`, "cache_salt", "without"},
	"cache_salt backslash": {`"cache_salt":"a\\b"`, "cache_salt", "without"},
	"cache_salt NUL":       {`"cache_salt":"a\u0000b"`, "cache_salt", "without"},
	"cache_salt number":    {`"cache_salt":5`, "cache_salt", "string"},

	// Known and not supported, removed.
	"beam search number": {`"use_beam_search":3`, "use_beam_search", "boolean"},
	"beam search streamed": {`"use_beam_search":true,"stream":true`, "stream",
		"cannot be used together"},
	"beam search constrained": {`"use_beam_search":true,"guided_regex":"a"`, "guided_regex",
		"cannot be used together"},
	"beam search to a stop": {`"use_beam_search":true,"stop":"a"`, "stop",
		"cannot be used together"},
	"beam search biased": {`"use_beam_search":true,"logit_bias":{"1":1}`, "logit_bias",
		"cannot be used together"},
	"beam search penalised": {`"use_beam_search":true,"frequency_penalty":1`,
		"frequency_penalty", "cannot be used together"},
	"beam search repeating": {`"use_beam_search":true,"repetition_detection":{"max_pattern_size":2,"min_count":2}`, "repetition_detection", "cannot be used together"},
	"length_penalty alone": {`"length_penalty":1.5`, "length_penalty",
		"needs `use_beam_search`"},
	"length_penalty large": {`"use_beam_search":true,"length_penalty":17`,
		"length_penalty", "[-16, 16]"},
	"early_stopping alone": {`"early_stopping":true`, "early_stopping",
		"needs `use_beam_search`"},
	"spaces between": {`"spaces_between_special_tokens":false`,
		"spaces_between_special_tokens", "not supported"},
	"watermarking": {`"watermarking":true`, "watermarking", "not supported"},
	"logprob_token_ids alone": {`"logprob_token_ids":[1]`, "logprob_token_ids",
		"`logprobs` must be set"},
	"logprob_token_ids empty": {`"logprob_token_ids":[]`, "logprob_token_ids", "not be empty"},
	"logprob_token_ids outside": {`"logprob_token_ids":[-1]`, "logprob_token_ids",
		"vocabulary"},
	"repetition unknown": {`"repetition_detection":{"a":1}`, "repetition_detection",
		"not a member"},
	"repetition boolean": {`"repetition_detection":true`, "repetition_detection",
		"object"},
	"repetition text": {`"repetition_detection":{"max_pattern_size":"x"}`,
		"repetition_detection.max_pattern_size", "integer"},
	"repetition negative": {`"repetition_detection":{"max_pattern_size":-1,"min_count":2}`,
		"repetition_detection.max_pattern_size", "between 0 and"},
	"repetition too long": {`"repetition_detection":{"max_pattern_size":1025,"min_count":2}`,
		"repetition_detection.max_pattern_size", "between 0 and 1024"},
	"repetition contradiction": {`"repetition_detection":{"max_pattern_size":2,"min_pattern_size":3,"min_count":2}`, "repetition_detection.min_pattern_size", "max_pattern_size"},
	"repetition once": {`"repetition_detection":{"max_pattern_size":2,"min_count":1}`,
		"repetition_detection.min_count", "at least 2"},
	"repetition uncounted": {`"repetition_detection":{"max_pattern_size":2}`,
		"repetition_detection.min_count", "at least 2"},
	"stream_interval": {`"stream_interval":0`, "stream_interval", "between 1"},
	"constraint not known": {`"structured_outputs":{"xml":"a"}`, "structured_outputs.xml",
		"not supported"},
	"constraint of nothing": {`"structured_outputs":{}`, "structured_outputs",
		"must have one of"},
	"json_object false": {`"structured_outputs":{"json_object":false}`,
		"structured_outputs", "must have one of"},
	"two structured outputs": {`"structured_outputs":{"regex":"a","json":{}}`,
		"structured_outputs.json", "cannot be used together"},
	"two regexes": {`"guided_regex":"a","structured_outputs":{"regex":"b"}`,
		"guided_regex", "cannot be used together"},
	"two constraints": {`"guided_regex":"a","response_format":{"type":"json_object"}`,
		"guided_regex", "cannot be used together"},
	"regex is no string": {`"structured_outputs":{"regex":1}`,
		"structured_outputs.regex", "string"},
	"empty regex": {`"guided_regex":" "`, "guided_regex", "empty"},
	"no choice": {`"structured_outputs":{"choice":[]}`,
		"structured_outputs.choice", "empty"},
	"choice is no list":   {`"guided_choice":"a"`, "guided_choice", "list of strings"},
	"choice is no string": {`"guided_choice":[1]`, "guided_choice", "string"},
	"json is a number":    {`"guided_json":1`, "guided_json", "object"},
	"whitespace pattern": {`"guided_whitespace_pattern":" "`,
		"guided_whitespace_pattern", "not supported"},
	"kv_transfer_params": {`"kv_transfer_params":[]`, "kv_transfer_params", "an object"},
	"do_remote_decode": {`"kv_transfer_params":{"do_remote_decode":1}`,
		"kv_transfer_params.do_remote_decode", "boolean"},
	"do_remote_decode of a stream": {`"stream":true,"kv_transfer_params":{"do_remote_decode":true}`,
		"kv_transfer_params.do_remote_decode", "stream=False"},
	"do_remote_decode of two": {`"n":2,"kv_transfer_params":{"do_remote_decode":true}`,
		"kv_transfer_params.do_remote_decode", "n=1"},
	"do_remote_decode of beams": {`"use_beam_search":true,"kv_transfer_params":{"do_remote_decode":true}`, "kv_transfer_params", "beam search"},
	"both transfers":            {`"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":true}`, "kv_transfer_params.do_remote_decode", "together"},
	"do_remote_prefill from nobody": {`"kv_transfer_params":{"do_remote_prefill":true}`,
		"kv_transfer_params.remote_host", "missing"},
	"do_remote_prefill bad secret": {`"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"a","remote_port":1,"remote_num_tokens":16,"remote_secret":"xyz","remote_fingerprint":"0000000000000000000000000000000000000000000000000000000000000000"}`,
		"kv_transfer_params", "hexadecimal"},
	"do_remote_prefill bad port": {`"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"a","remote_port":"x","remote_num_tokens":16,"remote_secret":"0000000000000000000000000000000000000000000000000000000000000000","remote_fingerprint":"0000000000000000000000000000000000000000000000000000000000000000"}`,
		"kv_transfer_params.remote_port", "string"},
	"vllm_xargs": {`"vllm_xargs":{"a":1}`, "vllm_xargs", "not supported"},
	"logits_processors": {`"logits_processors":["x"]`, "logits_processors",
		"not supported"},
	"response_format schema": {`"response_format":{"type":"json_schema","json_schema":{}}`,
		"response_format", "has no"},
	"response_format string schema": {`"response_format":{"type":"json_schema","json_schema":{"schema":"a"}}`, "response_format", "JSON Schema"},
	"response_format unknown": {`"response_format":{"type":"xml"}`, "response_format",
		"must be"},
	"response_format no type": {`"response_format":{}`, "response_format", "must be"},
	"response_format string":  {`"response_format":"text"`, "response_format", "object"},
	"best_of":                 {`"best_of":2`, "best_of", "removed"},
}

func repeat(s string, n int) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }

func biases(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%d":1,`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// refused posts and compares the error.
func refused(t *testing.T, s *testServer, path, body string, status int, param, message string) {
	t.Helper()
	before := len(s.engine.requests)
	rec := s.post(path, body)
	if rec.Code != status {
		t.Fatalf("answered %d, want %d: %s", rec.Code, status, wire.Clip(rec.Body.String()))
	}
	e := at(t, object(t, rec.Body.Bytes()), "error").(map[string]any)
	got, _ := e["param"].(string)
	if param != "" && got != param {
		t.Errorf("param %q, want %q (%v)", got, param, e["message"])
	}
	text := e["message"].(string)
	if !strings.Contains(text, message) {
		t.Errorf("message %q lacks %q", text, message)
	}
	if len(text) > 1000 {
		t.Errorf("message of %d bytes", len(text))
	}
	code := any(float64(status))
	switch {
	case status == 400 && strings.Contains(text, "maximum context length"):
		code = "context_length_exceeded"
	case status == 400 && strings.Contains(text, ": at /properties"): // of a schema
		code = "schema_invalid"
	case status == 400 && strings.Contains(text, "Mutually exclusive"):
		code = "mutually_exclusive_parameters"
	}
	if e["code"] != code {
		t.Errorf("code %v, want %v", e["code"], code)
	}
	if len(s.engine.requests) != before {
		t.Error("the request reached the engine")
	}
	if n := s.engine.open.Load(); n != 0 {
		t.Errorf("%d streams left open", n)
	}
}

// completionRefusals are wrong in completions.
var completionRefusals = map[string]refusal{
	"no prompt":           {"", "prompt", "must be provided"},
	"prompt null":         {`"prompt":null`, "prompt", "must be provided"},
	"prompt empty":        {`"prompt":""`, "prompt", "empty"},
	"prompt empty list":   {`"prompt":[]`, "prompt", "must be provided"},
	"prompt empty text":   {`"prompt":["a",""]`, "prompt", "the prompt has no tokens"},
	"prompt empty ids":    {`"prompt":[[]]`, "prompt", "prompt 0 is empty"},
	"prompt number":       {`"prompt":5`, "prompt", "must be a string"},
	"prompt object":       {`"prompt":{}`, "prompt", "must be a string"},
	"prompt of null":      {`"prompt":[null]`, "prompt", "must be a string"},
	"prompt of bool":      {`"prompt":[true]`, "prompt", "must be a string"},
	"prompt mixed":        {`"prompt":["a",1]`, "prompt", "mixes"},
	"prompt mixed lists":  {`"prompt":[[1],"a"]`, "prompt", "mixes"},
	"prompt list of text": {`"prompt":[["a"]]`, "prompt", "integer"},
	"prompt id beyond":    {`"prompt":[2048]`, "prompt", "out of vocabulary"},
	"prompt id negative":  {`"prompt":[-1]`, "prompt", "out of vocabulary"},
	"prompt id fraction":  {`"prompt":[1.5]`, "prompt", "integer"},
	"prompt id 2^63":      {`"prompt":[9223372036854775808]`, "prompt", "range"},
	"prompts many": {`"prompt":[` + repeat(`"a"`, 100_000) + `]`, "prompt",
		"more than 2048"},
	"sequences many": {`"prompt":[` + repeat(`"a"`, 100) + `],"n":100`, "n",
		"more than 4096"},
	"prompt over by one": {`"prompt":[` + repeat(`1`, 241) + `],"max_tokens":16`,
		"max_tokens", "241 input tokens"},
	"prompt fills context": {`"prompt":[` + repeat(`1`, 256) + `]`, "prompt", "256 tokens"},
	"prompt beyond context": {`"prompt":[` + repeat(`1`, 300) + `],"max_tokens":5`, "prompt",
		"300 input tokens"},
	"prompt huge text": {`"prompt":"` + strings.Repeat("a b ", 1<<20) + `"`, "prompt",
		"maximum context length is 256"},
	"prompt many ids": {`"prompt":[` + repeat(`1`, 1_000_000) + `]`, "prompt",
		"1000000 tokens"},
	"prompt_embeds": {`"prompt":"a","prompt_embeds":"AAAA"`, "prompt_embeds",
		"not supported"},
	"suffix": {`"prompt":"a","suffix":"b"`, "suffix", "not supported"},
	"thinking budget": {`"prompt":"a","thinking_token_budget":5`,
		"thinking_token_budget", "not supported"},
	"echo string": {`"prompt":"a","echo":"maybe"`, "echo", "boolean"},
	"logprobs -2": {`"prompt":"a","logprobs":-2`, "logprobs",
		"positive value or -1"},
	"logprobs 1e6": {`"prompt":"a","logprobs":1000000`, "logprobs",
		"max allowed: 20"},
	"logprobs fraction": {`"prompt":"a","logprobs":1.5`, "logprobs", "integer"},
	"logprobs text":     {`"prompt":"a","logprobs":"all"`, "logprobs", "integer"},
	"add_special null": {`"prompt":"a","add_special_tokens":null`, "add_special_tokens",
		"null"},
	"best_of above n": {hi + `,"n":2,"best_of":3`, "best_of", ""},
	"best_of below n": {hi + `,"n":2,"best_of":1`, "best_of", ""},
	"messages":        {hiChat, "messages", "POST " + openai.ChatPath},
}

const aTool = `"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]`

// chatRefusals are wrong in chat.
var chatRefusals = map[string]refusal{
	"web search": {hiChat + `,"web_search_options":{}`, "web_search_options", "not supported"},
	"prediction": {hiChat + `,"prediction":{"type":"content","content":"hi"}`, "prediction",
		"not supported"},
	"modalities":      {hiChat + `,"modalities":["text","audio"]`, "modalities", "not supported"},
	"audio":           {hiChat + `,"audio":{"voice":"ash","format":"wav"}`, "audio", "not supported"},
	"moderation":      {hiChat + `,"moderation":{"model":"m"}`, "moderation", "not supported"},
	"verbosity":       {hiChat + `,"verbosity":"low"`, "verbosity", "not supported"},
	"stored":          {hiChat + `,"store":true`, "store", "not supported"},
	"metadata":        {hiChat + `,"metadata":"a"`, "metadata", "object"},
	"service":         {hiChat + `,"service_tier":1`, "service_tier", "string"},
	"no messages":     {`"n":1`, "messages", "list of messages"},
	"messages null":   {`"messages":null`, "messages", "list of messages"},
	"messages string": {`"messages":"hi"`, "messages", "array"},
	"messages empty":  {`"messages":[]`, "messages", "empty"},
	"message string": {`"messages":["hi"]`, "messages",
		"messages[0]` must be an object"},
	"message without role": {`"messages":[{"content":"hi"}]`, "messages", "no role"},
	"role number": {`"messages":[{"role":1,"content":"hi"}]`, "messages",
		"role` must be a string"},
	"content number": {`"messages":[{"role":"user","content":1}]`, "messages",
		"content` must be"},
	"content object": {`"messages":[{"role":"user","content":{}}]`, "messages",
		"content` must be"},
	"content image": {`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://10.0.0.1/"}}]}]`, "messages", `"image_url": only text`},
	"content part no type": {`"messages":[{"role":"user","content":[{"text":"x"}]}]`,
		"messages", "only text"},
	"content part no text": {`"messages":[{"role":"user","content":[{"type":"text"}]}]`,
		"messages", "text` must be a string"},
	"content part number": {`"messages":[{"role":"user","content":[1]}]`, "messages",
		"must be an object"},
	"message duplicate role": {`"messages":[{"role":"user","role":"system","content":"x"}]`,
		"messages", "duplicate key"},
	"messages deep": {`"messages":[{"role":"user","content":"x","x":` +
		strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}]`, "messages", "deeper"},
	"top_logprobs alone": {hiChat + `,"top_logprobs":2`, "top_logprobs",
		"must be set to true"},
	"top_logprobs not true": {hiChat + `,"top_logprobs":2,"logprobs":false`, "top_logprobs",
		"must be set to true"},
	"top_logprobs -2": {hiChat + `,"top_logprobs":-2,"logprobs":true`, "top_logprobs",
		"positive value"},
	"top_logprobs 1e6": {hiChat + `,"top_logprobs":1000000,"logprobs":true`,
		"top_logprobs", "max allowed: 20"},
	"logprobs number": {hiChat + `,"logprobs":5`, "logprobs", "boolean"},
	"max_completion_tokens 0": {hiChat + `,"max_completion_tokens":0`,
		"max_completion_tokens", "at least 1"},
	"max_completion over": {hiChat + `,"max_completion_tokens":256,"max_tokens":1`,
		"max_completion_tokens", "maximum context length"},
	"prompt fills context": {`"messages":[{"role":"user","content":"` +
		strings.Repeat("hello ", 300) + `"}]`, "messages", "maximum context length"},
	"tools with a long name": {hiChat + `,"tools":[{"type":"function","function":{"name":"` +
		strings.Repeat("f", 129) + `"}}]`, "tools", "1 to 128 letters"},
	"tools empty":  {hiChat + `,"tools":[]`, "tools", "empty array"},
	"tools object": {hiChat + `,"tools":{}`, "tools", "array"},
	"tools without name": {hiChat + `,"tools":[{"type":"function"}]`, "tools",
		"function.name"},
	"tools of strings": {hiChat + `,"tools":["f"]`, "tools", "function.name"},
	"tools mean auto": {hiChat + "," + aTool, "tool_choice",
		"--tool-call-parser"},
	"tool_choice auto": {hiChat + `,"tool_choice":"auto",` + aTool, "tool_choice",
		"--tool-call-parser"},
	"tool_choice alone": {hiChat + `,"tool_choice":"auto"`, "tool_choice",
		"`tools` must be set"},
	"tool_choice unknown": {hiChat + `,"tool_choice":"maybe",` + aTool, "tool_choice",
		"Invalid value"},
	"tool_choice number": {hiChat + `,"tool_choice":1,` + aTool, "tool_choice",
		"Invalid value"},
	"tool_choice and format": {hiChat +
		`,"tool_choice":"required","structured_outputs":{"json_object":true},` + aTool,
		"structured_outputs.json_object", "not both"},
	"tool_choice allowed": {hiChat +
		`,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"maybe","tools":[]}},` +
		aTool, "tool_choice", "mode"},
	"tool_choice allowed none": {hiChat +
		`,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[]}},` + aTool, "tool_choice", "name a tool"},
	"tool_choice allowed other": {hiChat +
		`,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"function":{"name":"g"}}]}},` + aTool, "tool_choice", "does not match"},
	"tools alike": {hiChat +
		`,"tools":[{"function":{"name":"f"}},{"function":{"name":"f"}}]`, "tools",
		"another tool"},
	"tools named badly": {hiChat + `,"tools":[{"function":{"name":"f g"}}]`, "tools",
		"letters"},
	"parameters of a text": {hiChat +
		`,"tools":[{"function":{"name":"f","parameters":"{}"}}]`, "tools",
		"`tools[0].function.parameters` must be an object, got a string"},
	"parameters of a list": {hiChat +
		`,"tool_choice":"required","tools":[{"function":{"name":"f","parameters":{"type":"array"}}}]`, "tools", "type object"},
	"tool custom": {hiChat + `,"tools":[{"type":"custom","custom":{"name":"shell"}}]`, "tools",
		"`tools[0]` is the custom tool \"shell\": this server takes functions"},
	"tool_choice custom": {hiChat + `,"tool_choice":{"type":"custom","custom":{"name":"shell"}},` +
		aTool, "tool_choice", "`tool_choice` is the custom tool \"shell\""},
	"tool_choice allowed custom": {hiChat + `,"tool_choice":{"type":"allowed_tools",` +
		`"allowed_tools":{"mode":"auto","tools":[{"type":"custom","custom":{"name":"sh"}}]}},` +
		aTool, "tool_choice.allowed_tools.tools", "is the custom tool \"sh\""},
	"message custom call": {`"messages":[{"role":"assistant","content":"","tool_calls":[` +
		`{"id":"c","type":"custom","custom":{"name":"shell","input":"ls"}}]}]`,
		"messages", "is the custom tool \"shell\""},
	"tool_choice absent": {hiChat +
		`,"tool_choice":{"type":"function","function":{"name":"g"}},` + aTool, "tool_choice",
		"does not match"},
	"tool_choice no name": {hiChat + `,"tool_choice":{"type":"function"},` + aTool,
		"tool_choice", "Correct usage"},
	"functions": {hiChat + `,"functions":[{"name":"f"}]`, "functions",
		"use tools"},
	"function_call": {hiChat + `,"function_call":"auto"`, "function_call",
		"use tool_choice"},
	"include_reasoning": {hiChat + `,"include_reasoning":[]`, "include_reasoning",
		"boolean"},
	"reasoning_effort": {hiChat + `,"reasoning_effort":"extreme"`, "reasoning_effort",
		"must be"},
	"chat_template": {hiChat + `,"chat_template":"{{ x }}"`, "chat_template",
		"--trust-request-chat-template"},
	"kwargs template": {hiChat + `,"chat_template_kwargs":{"chat_template":"x"}`,
		"chat_template_kwargs", "cannot set"},
	"kwargs tokenize": {hiChat + `,"chat_template_kwargs":{"tokenize":false}`,
		"chat_template_kwargs", "cannot set"},
	"kwargs messages": {hiChat + `,"chat_template_kwargs":{"messages":[]}`,
		"chat_template_kwargs", "use the field"},
	"kwargs list": {hiChat + `,"chat_template_kwargs":[]`, "chat_template_kwargs",
		"object"},
	"documents string": {hiChat + `,"documents":"x"`, "documents", "array"},
	"continue and generate": {hiChat +
		`,"continue_final_message":true,"add_generation_prompt":true`, "continue_final_message",
		"Cannot set both"},
	"continue empty": {`"messages":[{"role":"assistant","content":""}],"continue_final_message":true`, "continue_final_message", "with text"},
	"media kwargs": {hiChat + `,"mm_processor_kwargs":{"a":1}`,
		"mm_processor_kwargs", "not supported"},
	"prompt": {hi, "prompt", "POST " + completionsPath},
}

// TestNeutralValues are accepted although the field is not supported, or null.
func TestNeutralValues(t *testing.T) {
	s := newServer(t)
	shared := []string{`"use_beam_search":false`, `"length_penalty":1.0`, `"length_penalty":1`,
		`"spaces_between_special_tokens":true`,
		`"watermarking":null`, `"logprob_token_ids":null`, `"thinking_token_budget":-1`,
		`"stream_interval":1`, `"structured_outputs":null`,
		`"kv_transfer_params":{}`, `"vllm_xargs":null`, `"best_of":1`, `"best_of":null`,
		`"guided_json":null`, `"response_format":{"type":"text"}`,
		`"response_format":null`, `"n":null`, `"max_tokens":null`, `"temperature":null`,
		`"top_p":null`, `"top_k":-1`, `"top_k":0`, `"top_k":null`,
		`"stop":null`, `"stop":[]`, `"seed":-1`, `"seed":9223372036854775807`,
		`"seed":-9223372036854775808`, `"logit_bias":null`, `"logit_bias":{}`,
		`"stop_token_ids":null`, `"stop_token_ids":[]`, `"stream":null`, `"stream_options":null`,
		`"user":"u"`, `"model":null`, `"model":""`,
		`"model":"alias/tiny"`, `"something_new":1`, `"priority":0`, `"bad_words":null`,
		`"bad_words":[]`, `"allowed_token_ids":null`,
		`"truncate_prompt_tokens":null`, `"prompt_logprobs":null`, `"return_mm_kwargs":false`,
		`"session_id":"s"`, `"max_tokens":1`, `"max_tokens":2.0`}
	for _, field := range shared {
		s.ok(t, completionsPath, "{"+hi+","+field+"}")
		s.ok(t, openai.ChatPath, "{"+hiChat+","+field+"}")
	}
	for _, field := range []string{`"suffix":null`, `"suffix":""`, `"logprobs":null`,
		`"echo":null`} {
		s.ok(t, completionsPath, "{"+hi+","+field+"}")
	}
	for _, field := range []string{`"top_logprobs":0`, `"top_logprobs":null`, `"logprobs":null`,
		`"tools":null`, `"tool_choice":null`, `"tool_choice":"none"`,
		`"parallel_tool_calls":false`, `"include_reasoning":true`, `"functions":null`,
		`"function_call":"none"`, `"documents":null`,
		`"chat_template":null`, `"chat_template_kwargs":null`, `"reasoning_effort":"low"`,
		`"max_completion_tokens":null`} {
		s.ok(t, openai.ChatPath, "{"+hiChat+","+field+"}")
	}
	if got := strings.Count(s.log.String(), "something_new"); got != 1 {
		t.Errorf("the unknown field was logged %d times, want once", got)
	}
}

func TestBodies(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Config.Server.MaxRequestBodyBytes = 1000 })
	for name, c := range map[string]struct {
		body    string
		headers []string
		status  int
	}{
		"too large":  {`{"prompt":"` + strings.Repeat("a", 2000) + `"}`, nil, 413},
		"text/plain": {`{` + hi + `}`, []string{"Content-Type", "text/plain"}, 415},
		"form": {`{` + hi + `}`, []string{"Content-Type",
			"application/x-www-form-urlencoded"}, 415},
		"malformed type": {`{` + hi + `}`, []string{"Content-Type", "application/json; ;"}, 415},
		"with charset": {`{` + hi + `}`, []string{"Content-Type",
			"Application/JSON; charset=utf-8"}, 200},
		"not compressed":    {`{` + hi + `}`, []string{"Content-Encoding", "gzip"}, 400},
		"another coding":    {`{` + hi + `}`, []string{"Content-Encoding", "br"}, 415},
		"identity encoding": {`{` + hi + `}`, []string{"Content-Encoding", "identity"}, 200},
		"empty":             {"", []string{"Content-Type", "application/json"}, 400},
		"not JSON":          {"prompt=hi", nil, 400},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRequest("POST", completionsPath, c.body)
			for i := 0; i < len(c.headers); i += 2 {
				r.Header.Set(c.headers[i], c.headers[i+1])
			}
			rec := s.serveRequest(r)
			if rec.Code != c.status {
				t.Errorf("answered %d, want %d: %s", rec.Code, c.status, rec.Body)
			}
			if c.status != 200 {
				at(t, object(t, rec.Body.Bytes()), "error", "message")
			}
		})
	}
}

const chatBatchOfTwo = `"messages":[[{"role":"user","content":"a"}],` +
	`[{"role":"system","content":"b"},{"role":"user","content":"c"}]]`

// chatBatchRefusals are wrong where several conversations are answered.
var chatBatchRefusals = map[string]string{
	chatBatchOfTwo + `,"stream":true`:           "stream",
	chatBatchOfTwo + `,"n":2`:                   "n",
	chatBatchOfTwo + `,"echo":true`:             "echo",
	chatBatchOfTwo + `,"prompt_logprobs":1`:     "prompt_logprobs",
	chatBatchOfTwo + `,"return_token_ids":true`: "return_token_ids",
	hiChat:            "messages",
	`"messages":[]`:   "messages",
	`"messages":[[]]`: "messages",
	`"messages":[[{"role":"user","content":"a"}],[{}]]`: "messages",
	`"messages":[[{"role":"user","content":"a"}],"b"]`:  "messages",
	``: "messages",
	`"messages":[` + repeat(`[{"role":"user"}]`, 2049) + `]`: "messages",
}

// tokensRefusals are wrong where answers are made from token ids.
var tokensRefusals = map[string]string{
	``:                             "token_ids",
	`"token_ids":[]`:               "token_ids",
	`"token_ids":["a"]`:            "token_ids",
	`"token_ids":[[1],[2]]`:        "token_ids",
	`"token_ids":[99999]`:          "token_ids",
	`"token_ids":[1],"stream":1.5`: "stream",
	`"token_ids":[1],"prompt":"a"`: "prompt",
	`"token_ids":[1],"echo":true`:  "echo",
	`"token_ids":[1],"sampling_params":{"stream":true}`:                     "stream",
	`"token_ids":[1],"stream":true,"sampling_params":{"prompt_logprobs":0}`: "prompt_logprobs",
	`"token_ids":[1],"stream_options":{"include_usage":true}`:               "stream_options",
	`"token_ids":[1],"features":{"a":1}`:                                    "features",
	`"token_ids":[1],"sampling_params":[1]`:                                 "sampling_params",
	`"token_ids":[1],"sampling_params":{"n":0}`:                             "n",
	`"token_ids":[1],"sampling_params":{"prompt":"a"}`:                      "prompt",
	`"token_ids":[1],"priority":0,"sampling_params":{"priority":0}`:         "sampling_params",
}

// tokenizeRefusals are wrong in /tokenize.
var tokenizeRefusals = map[string]string{
	``:                              "prompt",
	`"prompt":5`:                    "prompt",
	`"prompt":"x",` + hiChat:        "messages",
	`"messages":[]`:                 "messages",
	hiChat + `,"chat_template":"x"`: "chat_template",
}

// detokenizeRefusals are wrong in /detokenize.
var detokenizeRefusals = map[string]string{
	``:                "tokens",
	`"tokens":null`:   "tokens",
	`"tokens":"x"`:    "tokens",
	`"tokens":[-1]`:   "tokens",
	`"tokens":[2048]`: "tokens",
	`"tokens":[1.5]`:  "tokens",
}
