package api

import (
	"reflect"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
)

// withTemplate serves a chat template of the test's own.
func withTemplate(t *testing.T, source string) func(*Options) {
	t.Helper()
	template, err := chattemplate.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	return func(o *Options) { o.Info.Template = template }
}

// rendered returns the prompt's text of the newest request.
func rendered(t *testing.T, s *testServer) string {
	t.Helper()
	return s.Model.Tokenizer.Decode(s.engine.last(t).Prompt, false)
}

func TestChatShape(t *testing.T) {
	s := newServer(t)
	got := s.ok(t, openai.ChatPath, `{"model":"tiny",`+hiChat+`,"request_id":"r1"}`)
	prompt := float64(len(s.engine.last(t).Prompt))
	if u := at(t, got, "usage", "prompt_tokens"); u != prompt {
		t.Errorf("prompt tokens %v, want %v", u, prompt)
	}
	same(t, got, `{"id":"chatcmpl-r1","object":"chat.completion","model":"tiny","choices":[{"index":0,
		"message":{"role":"assistant","content":" hello world","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},
		"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],"service_tier":null,"system_fingerprint":null,
		"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null}`, "created", "usage")
	if text := rendered(t, s); text != "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n" {
		t.Errorf("prompt %q", text)
	}
}

func TestChatStreamShape(t *testing.T) {
	s := newServer(t)
	list := chunks(t, s.post(openai.ChatPath,
		`{`+hiChat+`,"stream":true,"stream_options":{"include_usage":true},"request_id":"r1"}`))
	if len(list) != 4 {
		t.Fatalf("%d chunks", len(list))
	}
	head := `{"id":"chatcmpl-r1","object":"chat.completion.chunk","model":"tiny","choices":[{"index":0,"logprobs":null,`
	same(t, list[0], head+`"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":null}`, "created")
	same(t, list[1], head+`"delta":{"content":" hello"},"finish_reason":null,"token_ids":null}]}`,
		"created")
	same(t, list[2], head+`"delta":{"content":" world"},"finish_reason":"stop","stop_reason":null,"token_ids":null}]}`, "created")
	if at(t, list[3], "usage", "completion_tokens") != 2.0 || len(at(t, list[3],
		"choices").([]any)) != 0 {
		t.Errorf("last chunk %v", list[3])
	}
}

func TestChatLogprobs(t *testing.T) {
	s := newServer(t)
	text := tokenTexts(t, 300, 301)
	bytes := func(v any) []any {
		var list []any
		for _, b := range []byte(v.(string)) {
			list = append(list, float64(b))
		}
		return list
	}
	want := map[string]any{"token": text[0], "logprob": -1.5, "bytes": bytes(text[0]),
		"top_logprobs": []any{
			map[string]any{"token": text[1], "logprob": -0.5, "bytes": bytes(text[1])},
			map[string]any{"token": text[0], "logprob": -1.5, "bytes": bytes(text[0])},
		}}
	body := `{` + hiChat + `,"logprobs":true,"top_logprobs":2`
	got := s.ok(t, openai.ChatPath, body+"}")
	if entry := at(t, got, "choices", 0, "logprobs", "content", 0); !reflect.DeepEqual(entry,
		want) {
		t.Errorf("got %v, want %v", entry, want)
	}
	list := chunks(t, s.post(openai.ChatPath, body+`,"stream":true}`))
	if entry := at(t, list[1], "choices", 0, "logprobs", "content", 0); !reflect.DeepEqual(entry,
		want) {
		t.Errorf("streamed %v, want %v", entry, want)
	}
	if at(t, list[0], "choices", 0, "logprobs") != nil {
		t.Error("the role chunk has logprobs")
	}
	got = s.ok(t, openai.ChatPath, `{`+hiChat+`,"logprobs":true}`)
	if top := at(t, got, "choices", 0, "logprobs", "content", 0,
		"top_logprobs").([]any); len(top) != 0 {
		t.Errorf("top_logprobs without being asked: %v", top)
	}
}

// TestBytesOfPartsOfACharacter: a token may be part of a character; its bytes are the true ones.
func TestBytesOfPartsOfACharacter(t *testing.T) {
	s := newServer(t)
	var part int32 = -1
	for id := range int32(s.Model.Tokenizer.VocabSize()) {
		if b := s.Model.Tokenizer.TokenBytes(id); len(b) == 1 && b[0] == 0xe6 {
			part = id
		}
	}
	if part < 0 {
		t.Fatal("the vocabulary has no token for byte 0xe6")
	}
	s.engine.play = func(_ int, r *engine.Request) script {
		return script{deltas: say(r, []int32{part}, []string{""}, sample.FinishLength)}
	}
	entry := at(t, s.ok(t, openai.ChatPath, `{`+hiChat+`,"logprobs":true}`), "choices", 0,
		"logprobs", "content", 0).(map[string]any)
	if entry["token"] != "\ufffd" || !reflect.DeepEqual(entry["bytes"], []any{230.0}) {
		t.Errorf("entry %v", entry)
	}
}

func TestChatReturnsIDsAndText(t *testing.T) {
	s := newServer(t)
	got := s.ok(t, openai.ChatPath,
		`{`+hiChat+`,"return_token_ids":true,"return_prompt_text":true,"prompt_logprobs":0}`)
	n := len(s.engine.last(t).Prompt)
	if len(got["prompt_token_ids"].([]any)) != n || len(got["prompt_logprobs"].([]any)) != n ||
		len(at(t, got, "choices", 0, "token_ids").([]any)) != 2 {
		t.Errorf("answer %v", got)
	}
	if got["prompt_text"] != "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n" {
		t.Errorf("prompt_text %q", got["prompt_text"])
	}
	list := chunks(t, s.post(openai.ChatPath,
		`{`+hiChat+`,"return_token_ids":true,"return_prompt_text":true,"stream":true}`))
	if len(list[0]["prompt_token_ids"].([]any)) != n || list[0]["prompt_text"] == nil {
		t.Errorf("first chunk %v", list[0])
	}
	if ids := at(t, list[1], "choices", 0, "token_ids"); !reflect.DeepEqual(ids, []any{300.0}) {
		t.Errorf("ids %v", ids)
	}
}

func TestContinueFinalMessage(t *testing.T) {
	s := newServer(t)
	messages := `"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Once upon "}]`
	got := s.ok(t, openai.ChatPath, `{`+messages+`,"continue_final_message":true,"echo":true}`)
	if text := rendered(
		t, s); text != "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nOnce upon " {
		t.Errorf("prompt %q", text)
	}
	if at(t, got, "choices", 0, "message", "content") != "Once upon  hello world" {
		t.Errorf("answer %v", at(t, got, "choices", 0))
	}
	list := chunks(t, s.post(openai.ChatPath,
		`{`+messages+`,"continue_final_message":true,"add_generation_prompt":false,"echo":true,"stream":true}`))
	if at(t, list[1], "choices", 0, "delta", "content") != "Once upon " {
		t.Errorf("echo chunk %v", list[1])
	}
	// A template that trims: the message is found trimmed.
	s = newServer(t, withTemplate(t, "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"))
	s.ok(t, openai.ChatPath, `{`+messages+`,"continue_final_message":true}`)
	if text := rendered(t, s); text != "[hi][Once upon" {
		t.Errorf("prompt %q", text)
	}
	// A message of parts: a template has them as one text, or as they are.
	const parts = `"messages":[{"role":"assistant","content":[{"type":"text","text":"Once"},` +
		`"upon "]}],"continue_final_message":true`
	for template, want := range map[string]string{
		"{% for m in messages %}[{{ m.content }}]{% endfor %}": "[Once\nupon ",
		"{% for m in messages %}[{% for c in m.content %}{{ c.text }},{% endfor %}]" +
			"{% endfor %}": "[Once,upon ",
	} {
		s = newServer(t, withTemplate(t, template))
		got = s.ok(t, openai.ChatPath, `{`+parts+`,"echo":true}`)
		if text := rendered(t, s); text != want {
			t.Errorf("prompt %q, want %q", text, want)
		}
		if at(t, got, "choices", 0, "message", "content") != "Once\nupon  hello world" {
			t.Errorf("answer %v", at(t, got, "choices", 0))
		}
	}
	s = newServer(t)
	// Without generation the role is the last message's.
	got = s.ok(t, openai.ChatPath,
		`{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false}`)
	if at(t, got, "choices", 0, "message", "role") != "user" {
		t.Errorf("role %v", at(t, got, "choices", 0, "message"))
	}
	s = newServer(t, withTemplate(t, "nothing of it"))
	refused(t, s, openai.ChatPath, `{`+messages+`,"continue_final_message":true}`, 400,
		"continue_final_message", "does not appear")
}

func TestTemplateVariables(t *testing.T) {
	s := newServer(t, withTemplate(t,
		"{{ messages | tojson }}|{{ tools | tojson }}|{{ documents | tojson }}|"+
			"{{ add_generation_prompt }}|{{ eos_token }}|{{ pad_token }}|{{ mine }}|"+
			"{{ reasoning_effort }}|{{ enable_thinking }}"))
	s.ok(t, openai.ChatPath, `{"messages":[{"z":1,"role":"user","content":"hi","a":[2]}],"tools":[{"type":"function","function":{"parameters":{},"name":"f"}}],
		"tool_choice":"none","documents":[{"title":"t","text":"x"}],"chat_template_kwargs":{"mine":"yes"},"reasoning_effort":"none"}`)
	want := `[{"z": 1, "role": "user", "content": "hi", "a": [2]}]|[{"type": "function", "function": {"parameters": {}, "name": "f"}}]|` +
		`[{"title": "t", "text": "x"}]|True|<|im_end|>|<|endoftext|>|yes|none|False`
	if text := rendered(t, s); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	s.ok(t, openai.ChatPath, `{`+hiChat+`,"add_generation_prompt":false,"reasoning_effort":"high","chat_template_kwargs":{"enable_thinking":false}}`)
	if text := rendered(t, s); !strings.HasSuffix(text,
		"|null|null|False|<|im_end|>|<|endoftext|>||high|False") {
		t.Errorf("got %s", text)
	}
}

func TestTemplateFaults(t *testing.T) {
	s := newServer(t, withTemplate(t,
		"\n{% if messages[0].role != 'user' %}{{ raise_exception('begin with the user') }}{% "+
			"endif %}\n{{ 1 // (messages | length - 1) }}"))
	refused(t, s, openai.ChatPath, `{"messages":[{"role":"tool","content":"x"}]}`, 400, "messages",
		"(line 2): begin with the user")
	refused(t, s, openai.ChatPath, `{`+hiChat+`}`, 400, "messages", "line 3")

	s = newServer(t, func(o *Options) { o.Info.Template = nil })
	refused(t, s, openai.ChatPath, `{`+hiChat+`}`, 400, "messages", "--chat-template")

	s = newServer(t, func(o *Options) { o.Config.Model.TrustRequestChatTemplate = true })
	s.ok(t, openai.ChatPath, `{`+hiChat+`,"chat_template":"<{{ messages[0].content }}>"}`)
	if text := rendered(t, s); text != "<hi>" {
		t.Errorf("prompt %q", text)
	}
	for template, message := range map[string]string{
		"{% for": "chat template",
		"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}": "",
		"{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}":                      "",
		"{{ ''.__class__.__mro__[1].__subclasses__() }}":                                 "",
	} {
		refused(t, s, openai.ChatPath, `{`+hiChat+`,"chat_template":`+marshal(t, template)+`}`, 400,
			"", message)
	}
}

func TestContentParts(t *testing.T) {
	s := newServer(t)
	s.ok(t, openai.ChatPath, `{"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]}`)
	if text := rendered(
		t, s); text != "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n" {
		t.Errorf("prompt %q", text)
	}
}

func TestChatChoices(t *testing.T) {
	s := newServer(t)
	got := s.ok(t, openai.ChatPath, `{`+hiChat+`,"n":3}`)
	if n := len(got["choices"].([]any)); n != 3 {
		t.Errorf("%d choices", n)
	}
	list := chunks(t, s.post(openai.ChatPath, `{`+hiChat+`,"n":3,"stream":true}`))
	texts, roles := map[float64]string{}, 0
	for _, c := range list {
		delta := at(t, c, "choices", 0, "delta").(map[string]any)
		if delta["role"] != nil {
			roles++
		}
		texts[at(t, c, "choices", 0, "index").(float64)] += delta["content"].(string)
	}
	for i := range 3 {
		if texts[float64(i)] != " hello world" {
			t.Errorf("choice %d streamed %q", i, texts[float64(i)])
		}
	}
	if roles != 3 {
		t.Errorf("%d role chunks", roles)
	}
}

func TestChatAddSpecialTokens(t *testing.T) {
	s := newServer(t)
	tok := s.Model.Tokenizer
	s.ok(t, openai.ChatPath, `{`+hiChat+`,"add_special_tokens":true}`)
	want := tok.Encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", true)
	if got := s.engine.last(t).Prompt; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestTemplateMessageIsClipped: a template may raise what the client wrote, however long it is.
func TestTemplateMessageIsClipped(t *testing.T) {
	s := newServer(t, func(o *Options) {
		template, err := chattemplate.Parse("\n{{ raise_exception(messages[0].content) }}")
		if err != nil {
			t.Fatal(err)
		}
		info := *o.Info
		info.Template, o.Info = template, &info
	})
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat("é", 5<<20) + `"}]}`
	rec := s.post(openai.ChatPath, body)
	e := at(t, object(t, rec.Body.Bytes()), "error").(map[string]any)
	text := e["message"].(string)
	if rec.Code != 400 || len(text) > wire.MaxMessage || !strings.Contains(text, "(line 2): éé") ||
		!strings.HasSuffix(text, "é…") {
		t.Errorf("answered %d with a message of %d bytes: %s", rec.Code, len(text), wire.Clip(text))
	}
}

// TestChatBatch answers several conversations in one request, each by its choice.
func TestChatBatch(t *testing.T) {
	s := newServer(t)
	s.engine.play = func(n int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300}, []string{strings.Repeat("x", n+1)},
			sample.FinishStop)}
	}
	answer := s.ok(t, openai.ChatBatchPath, `{`+chatBatchOfTwo+`,"max_tokens":5,"seed":1}`)
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
}

// TestChatBatchOfThoughts: each conversation of a batch has the constraint and the text that it has
// alone, where the model reasons.
func TestChatBatchOfThoughts(t *testing.T) {
	s := newServer(t, hermesTemplate, func(o *Options) {
		o.Info.Tokenizer = tagTokenizer(t, "<think>")
	})
	s.engine.play = func(_ int, r *engine.Request) script {
		return script{deltas: say(r, []int32{300}, []string{"<think>t</think>x<|endoftext|>"},
			sample.FinishStop)}
	}
	const rest = `,"structured_outputs":{"choice":["x","y"]},"chat_template_kwargs":` +
		`{"thinking":true},"thinking_token_budget":3}`
	answer := s.ok(t, openai.ChatBatchPath, `{`+chatBatchOfTwo+rest)
	s.ok(t, openai.ChatPath, `{"messages":[{"role":"user","content":"a"}]`+rest)
	alone := s.engine.last(t)
	for i := range 2 {
		if got := at(t, answer, "choices", i, "message", "content"); got != "x" {
			t.Errorf("choice %d: %v", i, got)
		}
		if r := s.engine.requests[i]; r.Constraint != alone.Constraint || !r.KeepSpecial ||
			r.Params.ThinkingBudget != 3 {
			t.Errorf("conversation %d: %v, alone %v", i, r.Constraint, alone.Constraint)
		}
	}
}
