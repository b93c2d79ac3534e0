package api

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

// same compares a decoded answer with JSON text; the members named free may hold anything.
func same(t *testing.T, got map[string]any, want string, free ...string) {
	t.Helper()
	for _, name := range free {
		if _, ok := got[name]; !ok {
			t.Errorf("no member %s", name)
		}
		delete(got, name)
	}
	if w := object(t, []byte(want)); !reflect.DeepEqual(got, w) {
		g, _ := json.MarshalIndent(got, "", " ")
		t.Errorf("got %s\nwant %s", g, want)
	}
}

func TestCompletionShape(t *testing.T) {
	s := newServer(t)
	got := s.ok(t, completionsPath, `{"model":"alias/tiny","prompt":[1,2,3]}`)
	if id := got["id"].(string); !strings.HasPrefix(id, "cmpl-") || len(id) != len("cmpl-")+32 {
		t.Errorf("id %q", id)
	}
	if got["created"].(float64) < 1.7e9 {
		t.Errorf("created %v", got["created"])
	}
	same(t, got, `{"object":"text_completion","model":"alias/tiny","choices":[{"index":0,"text":" hello world","logprobs":null,
		"finish_reason":"stop","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null}],
		"service_tier":null,"system_fingerprint":null,"kv_transfer_params":null,
		"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":null}}`, "id", "created")
}

func TestCompletionDefaultModelAndDetails(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Config.Server.EnablePromptTokensDetails = true })
	got := s.ok(t, completionsPath, `{"prompt":[[1,2,3],[4,5]],"n":2}`)
	if got["model"] != "tiny" {
		t.Errorf("model %v", got["model"])
	}
	same(t, at(t, got, "usage").(map[string]any),
		`{"prompt_tokens":5,"completion_tokens":8,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":4}}`)
}

// TestChoiceOrder holds index = sample + prompt * n.
func TestChoiceOrder(t *testing.T) {
	s := newServer(t)
	s.engine.play = func(n int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300}, []string{string(rune('A'+r.Prompt[0])) +
			string(rune('0'+n))}, sample.FinishLength)}
	}
	got := s.ok(t, completionsPath, `{"prompt":[[1],[2],[3]],"n":2}`)
	for i, want := range []string{"B0", "B1", "C2", "C3", "D4", "D5"} {
		if at(t, got, "choices", i, "text") != want || at(t, got, "choices", i,
			"index") != float64(i) {
			t.Errorf("choice %d is %v", i, at(t, got, "choices", i))
		}
	}
}

func TestStopReasons(t *testing.T) {
	for name, c := range map[string]struct {
		finish sample.Finish
		text   string
		token  int32
		want   any
	}{
		"eos":    {sample.FinishStop, "", -1, nil},
		"string": {sample.FinishStop, "END", -1, "END"},
		"token":  {sample.FinishStop, "", 7, 7.0},
		"zero":   {sample.FinishStop, "", 0, 0.0},
		"length": {sample.FinishLength, "", 0, nil},
		"abort":  {sample.FinishAbort, "", 0, nil},
	} {
		s := newServer(t)
		s.engine.play = func(_ int, r *engine.Request) script {
			d := say(r, []int32{300}, []string{"x"}, c.finish)
			d[0].StopString, d[0].StopToken = c.text, c.token
			return script{deltas: d}
		}
		got := s.ok(t, completionsPath, `{"prompt":[1]}`)
		if at(t, got, "choices", 0, "finish_reason") != c.finish.String() || at(t, got, "choices",
			0, "stop_reason") != c.want {
			t.Errorf("%s: %v", name, at(t, got, "choices", 0))
		}
		list := chunks(t, s.post(completionsPath, `{"prompt":[1],"stream":true}`))
		if at(t, list[0], "choices", 0, "finish_reason") != c.finish.String() || at(t, list[0],
			"choices", 0, "stop_reason") != c.want {
			t.Errorf("%s in a stream: %v", name, list[0])
		}
	}
}

// tokenTexts are what the tiny vocabulary prints for the tokens of the scripts.
func tokenTexts(t *testing.T, ids ...int32) []any {
	var list []any
	for _, id := range ids {
		list = append(list, string(tinyTokenizer(t).TokenBytes(id)))
	}
	return list
}

func TestCompletionLogprobs(t *testing.T) {
	s := newServer(t)
	for _, stream := range []bool{false, true} {
		var columns map[string]any
		if stream {
			columns = map[string]any{}
			for _, c := range chunks(t, s.post(completionsPath,
				`{"prompt":[1,2],"logprobs":2,"stream":true}`)) {
				for name, column := range at(t, c, "choices", 0, "logprobs").(map[string]any) {
					old, _ := columns[name].([]any)
					columns[name] = append(old, column.([]any)...)
				}
			}
		} else {
			columns = at(t, s.ok(t, completionsPath, `{"prompt":[1,2],"logprobs":2}`), "choices", 0,
				"logprobs").(map[string]any)
		}
		if got, want := columns["tokens"], tokenTexts(t, 300, 301); !reflect.DeepEqual(got, want) {
			t.Errorf("stream %v: tokens %v, want %v", stream, got, want)
		}
		if got, want := columns["token_logprobs"], []any{-1.5, -1.5}; !reflect.DeepEqual(got,
			want) {
			t.Errorf("stream %v: token_logprobs %v", stream, got)
		}
		if got, want := columns["text_offset"], []any{0.0, 6.0}; !reflect.DeepEqual(got, want) {
			t.Errorf("stream %v: text_offset %v", stream, got)
		}
		// The sampled token 300 is among the two most likely (301, 300): two entries, not three.
		texts := tokenTexts(t, 300, 301)
		want := map[string]any{texts[0].(string): -1.5, texts[1].(string): -0.5}
		if got := columns["top_logprobs"].([]any)[0]; !reflect.DeepEqual(got, want) {
			t.Errorf("stream %v: top_logprobs %v, want %v", stream, got, want)
		}
	}
}

func TestLogprobsZeroShowsTheSampledTokenOnly(t *testing.T) {
	s := newServer(t)
	got := s.ok(t, completionsPath, `{"prompt":[1,2],"logprobs":0}`)
	if top := at(t, got, "choices", 0, "logprobs", "top_logprobs",
		0).(map[string]any); len(top) != 1 {
		t.Errorf("top_logprobs %v", top)
	}
}

func TestTokensAsTokenIDs(t *testing.T) {
	s := newServer(t)
	got := s.ok(t, completionsPath,
		`{"prompt":[1,2],"logprobs":1,"return_tokens_as_token_ids":true}`)
	if tokens := at(t, got, "choices", 0, "logprobs", "tokens"); !reflect.DeepEqual(tokens,
		[]any{"token_id:300", "token_id:301"}) {
		t.Errorf("tokens %v", tokens)
	}
	if top := at(t, got, "choices", 0, "logprobs", "top_logprobs", 0); !reflect.DeepEqual(top,
		map[string]any{"token_id:300": -1.5, "token_id:301": -0.5}) {
		t.Errorf("top %v", top)
	}
}

// TestTextOffsetsCountCharacters: the engine counts bytes, OpenAI characters.
func TestTextOffsetsCountCharacters(t *testing.T) {
	s := newServer(t)
	s.engine.play = func(_ int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300, 301, 302}, []string{"日本", "é", "x"},
			sample.FinishStop)}
	}
	want := []any{0.0, 2.0, 3.0}
	got := s.ok(t, completionsPath, `{"prompt":[1],"logprobs":0}`)
	if o := at(t, got, "choices", 0, "logprobs", "text_offset"); !reflect.DeepEqual(o, want) {
		t.Errorf("offsets %v, want %v", o, want)
	}
	var streamed []any
	for _, c := range chunks(t, s.post(completionsPath,
		`{"prompt":[1],"logprobs":0,"stream":true}`)) {
		streamed = append(streamed, at(t, c, "choices", 0, "logprobs", "text_offset").([]any)...)
	}
	if !reflect.DeepEqual(streamed, want) {
		t.Errorf("streamed offsets %v, want %v", streamed, want)
	}
}

func TestPromptLogprobs(t *testing.T) {
	s := newServer(t)
	got := s.ok(t, completionsPath, `{"prompt":[1,2],"prompt_logprobs":2}`)
	list := at(t, got, "choices", 0, "prompt_logprobs").([]any)
	if len(list) != 2 || list[0] != nil {
		t.Fatalf("prompt_logprobs %v", list)
	}
	two, three := tokenTexts(t, 2, 3)[0], tokenTexts(t, 2, 3)[1]
	want := map[string]any{
		"2": map[string]any{"logprob": -1.5, "rank": 2.0, "decoded_token": two},
		"3": map[string]any{"logprob": -0.5, "rank": 1.0, "decoded_token": three},
	}
	if !reflect.DeepEqual(list[1], want) {
		t.Errorf("entry %v, want %v", list[1], want)
	}
}

func TestEcho(t *testing.T) {
	s := newServer(t)
	got := s.ok(t, completionsPath,
		`{"prompt":"func é","echo":true,"logprobs":1,"return_token_ids":true}`)
	prompt := s.engine.last(t).Prompt
	choice := at(t, got, "choices", 0).(map[string]any)
	if choice["text"] != "func é hello world" {
		t.Errorf("text %q", choice["text"])
	}
	lp := choice["logprobs"].(map[string]any)
	n := len(prompt) + 2
	for _, name := range []string{"tokens", "token_logprobs", "top_logprobs", "text_offset"} {
		if len(lp[name].([]any)) != n {
			t.Errorf("%d %s, want %d", len(lp[name].([]any)), name, n)
		}
	}
	if at(t, lp, "token_logprobs", 0) != nil || at(t, lp, "top_logprobs", 0) != nil || at(t, lp,
		"token_logprobs", 1) != -1.5 {
		t.Errorf("logprobs of the prompt %v", lp["token_logprobs"])
	}
	if at(t, lp, "text_offset", len(prompt)) != 6.0 || at(t, lp, "text_offset", n-1) != 12.0 {
		t.Errorf("offsets %v", lp["text_offset"])
	}
	if len(choice["token_ids"].([]any)) != 2 ||
		len(choice["prompt_token_ids"].([]any)) != len(prompt) {
		t.Errorf("ids %v %v", choice["token_ids"], choice["prompt_token_ids"])
	}

	list := chunks(t, s.post(completionsPath,
		`{"prompt":"func é","echo":true,"logprobs":1,"stream":true}`))
	if at(t, list[0], "choices", 0, "text") != "func é hello" || at(t, list[1], "choices", 0,
		"text") != " world" {
		t.Errorf("streamed echo %v", list)
	}
	if o := at(t, list[1], "choices", 0, "logprobs", "text_offset"); !reflect.DeepEqual(o,
		[]any{12.0}) {
		t.Errorf("streamed offset %v", o)
	}
}

func TestEchoOfTokenIDs(t *testing.T) {
	s := newServer(t)
	got := s.ok(t, completionsPath, `{"prompt":[300,301],"echo":true}`)
	want := s.Model.Tokenizer.Decode([]int32{300, 301}, false) + " hello world"
	if at(t, got, "choices", 0, "text") != want {
		t.Errorf("text %q, want %q", at(t, got, "choices", 0, "text"), want)
	}
}

// TestScoring is echo with max_tokens 0: the prompt's log-probabilities and nothing else.
func TestScoring(t *testing.T) {
	s := newServer(t)
	s.engine.play = func(_ int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300}, []string{" hello"}, sample.FinishLength)}
	}
	body := `{"prompt":"func x","echo":true,"max_tokens":0,"logprobs":1`
	got := s.ok(t, completionsPath, body+"}")
	n := len(s.engine.last(t).Prompt)
	if at(t, got, "choices", 0, "text") != "func x" || at(t, got, "choices", 0,
		"finish_reason") != "length" {
		t.Errorf("choice %v", at(t, got, "choices", 0))
	}
	if l := at(t, got, "choices", 0, "logprobs", "token_logprobs").([]any); len(l) != n {
		t.Errorf("%d logprobs for %d prompt tokens", len(l), n)
	}
	if at(t, got, "usage", "completion_tokens") != 0.0 {
		t.Errorf("usage %v", got["usage"])
	}
	list := chunks(t, s.post(completionsPath,
		body+`,"stream":true,"stream_options":{"include_usage":true}}`))
	if len(list) != 2 || at(t, list[0], "choices", 0, "text") != "func x" || at(t, list[0],
		"choices", 0, "finish_reason") != "length" || at(t, list[1], "usage",
		"completion_tokens") != 0.0 {
		t.Errorf("streamed %v", list)
	}
}

func TestCompletionStreamShape(t *testing.T) {
	s := newServer(t)
	list := chunks(t, s.post(completionsPath,
		`{"prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"request_id":"r1"}`))
	if len(list) != 3 {
		t.Fatalf("%d chunks", len(list))
	}
	same(t, list[0], `{"id":"cmpl-r1","object":"text_completion","model":"tiny","choices":[{"index":0,"text":" hello","logprobs":null,
		"finish_reason":null,"stop_reason":null,"prompt_token_ids":[1,2,3],"token_ids":[300]}]}`, "created")
	same(t, list[1], `{"id":"cmpl-r1","object":"text_completion","model":"tiny","choices":[{"index":0,"text":" world","logprobs":null,
		"finish_reason":"stop","stop_reason":null,"prompt_token_ids":null,"token_ids":[301]}]}`, "created")
	same(t, list[2], `{"id":"cmpl-r1","object":"text_completion","model":"tiny","choices":[],
		"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}`, "created")
}

func TestContinuousUsage(t *testing.T) {
	s := newServer(t)
	list := chunks(t, s.post(completionsPath,
		`{"prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`))
	for i, want := range []float64{1, 2, 2} {
		if at(t, list[i], "usage", "completion_tokens") != want || at(t, list[i], "usage",
			"prompt_tokens") != 3.0 {
			t.Errorf("usage %d: %v", i, list[i]["usage"])
		}
	}
	for _, c := range chunks(t, s.post(completionsPath,
		`{"prompt":[1,2,3],"stream":true,"stream_options":{"include_usage":false}}`)) {
		if _, ok := c["usage"]; ok {
			t.Errorf("usage without being asked: %v", c)
		}
	}
}

// TestPrefillDeltas: a delta without text or tokens before the first token makes no chunk.
func TestPrefillDeltas(t *testing.T) {
	s := newServer(t)
	s.engine.play = func(_ int, r *engine.Request) script {
		return script{deltas: append([]engine.Delta{{StopToken: -1}}, say(r, []int32{300},
			[]string{"x"}, sample.FinishStop)...)}
	}
	if list := chunks(t, s.post(completionsPath, `{"prompt":[1],"stream":true}`)); len(list) != 1 {
		t.Errorf("%d chunks", len(list))
	}
}

func TestWithoutTokenizer(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Info.Tokenizer = nil })
	s.engine.play = func(_ int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300}, []string{""}, sample.FinishStop)}
	}
	got := s.ok(t, completionsPath, `{"prompt":[1,2],"return_token_ids":true,"logprobs":1}`)
	if !s.engine.last(t).Raw {
		t.Error("the engine was not told that there is no text")
	}
	if !reflect.DeepEqual(at(t, got, "choices", 0, "token_ids"), []any{300.0}) ||
		!reflect.DeepEqual(at(t, got, "choices", 0, "logprobs", "tokens"), []any{"token_id:300"}) {
		t.Errorf("choice %v", at(t, got, "choices", 0))
	}
	for path, body := range map[string]string{
		completionsPath: `{"prompt":"x"}`, openai.ChatPath: "{" + hiChat + "}",
		"/tokenize": `{"prompt":"x"}`, "/detokenize": `{"tokens":[1]}`,
	} {
		refused(t, s, path, body, 400, "", "tokenizer")
	}
	refused(t, s, completionsPath, `{"prompt":[1],"stop":"x"}`, 400, "stop", "without one")
	refused(t, s, completionsPath, `{"prompt":[1],"bad_words":["x"]}`, 400, "bad_words",
		"without one")
}

// TestBestOf: as many candidates as answers are what n asks for.
func TestBestOf(t *testing.T) {
	s := newServer(t)
	if got := at(t, s.ok(t, completionsPath, `{`+hi+`,"n":2,"best_of":2}`),
		"choices"); len(got.([]any)) != 2 {
		t.Errorf("%v", got)
	}
}
