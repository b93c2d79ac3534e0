package api

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/anthropic"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
)

const hiMessage = `"max_tokens":20,"messages":[{"role":"user","content":"hi"}]`

// TestMessagesRefusals: what is wrong with a request is named, in the words of this API.
func TestMessagesRefusals(t *testing.T) {
	s := newServer(t, hermesTemplate)
	turn := func(role, content string) string {
		return `"max_tokens":20,"messages":[{"role":"` + role + `","content":` + content + `}]`
	}
	for name, c := range map[string]struct{ fields, message string }{
		"no max_tokens": {`"messages":[]`, "`max_tokens` is required"},
		"max_tokens 0": {`"max_tokens":0,"messages":[{"role":"user","content":"hi"}]`,
			"max_tokens"},
		"no messages":    {`"max_tokens":5`, "`messages` is required"},
		"messages empty": {`"max_tokens":5,"messages":[]`, "`messages` must not be empty"},
		"message number": {`"max_tokens":5,"messages":[1]`,
			"`messages[0]` must be an object"},
		"role": {turn("tool", `"x"`), "`messages[0].role` must be user"},
		"no content": {`"max_tokens":5,"messages":[{"role":"user"}]`,
			"`messages[0].content` is required"},
		"content number": {turn("user", `1`), "string or a list of blocks"},
		"block number": {turn("user", `[1]`),
			"`messages[0].content[0]` must be an object"},
		"image":    {turn("user", `[{"type":"image"}]`), `has type "image"`},
		"document": {turn("user", `[{"type":"document"}]`), `has type "document"`},
		"text without text": {turn("user", `[{"type":"text"}]`),
			"`messages[0].content[0].text` must be a string"},
		"result of no tool": {turn("user", `[{"type":"tool_result","content":"x"}]`),
			"tool_use_id` must be a string"},
		"result by assistant": {turn("assistant", `[{"type":"tool_result","tool_use_id":"a"}]`),
			"role assistant"},
		"image in a result": {turn("user",
			`[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}]`),
			"only text"},
		"input is a list": {turn("assistant",
			`[{"type":"tool_use","id":"a","name":"f","input":[]}]`), "input` must be an object"},
		"ends with a call": {turn("assistant",
			`[{"type":"tool_use","id":"a","name":"f","input":{}}]`), "tool_result"},
		"text behind a call": {turn("assistant",
			`[{"type":"tool_use","id":"a","name":"f","input":{}},{"type":"text","text":"b"}]`),
			"tool_result"},
		"system number": {hiMessage + `,"system":1`, "`system` must be a string"},
		"system image": {hiMessage + `,"system":[{"type":"image"}]`,
			"`system[0]` has type"},
		"stop": {hiMessage + `,"stop":"a"`, "takes `stop_sequences`"},
		"stop_sequences": {hiMessage + `,"stop_sequences":"a"`,
			"`stop_sequences` must be an array"},
		"stop_sequences empty": {hiMessage + `,"stop_sequences":[""]`,
			"`stop_sequences` cannot contain"},
		"response_format": {hiMessage + `,"response_format":{"type":"text"}`,
			"takes `output_config.format`"},
		"n":         {hiMessage + `,"n":3`, "`n` is not supported by /v1/messages"},
		"container": {hiMessage + `,"container":"c"`, "`container` is not supported"},
		"mcp servers": {hiMessage + `,"mcp_servers":[{"url":"x"}]`,
			"`mcp_servers` is not supported"},
		"context management": {hiMessage +
			`,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}`,
			"clear_tool_uses"},
		"context management 2": {hiMessage + `,"context_management":{"compact":{}}`,
			"`context_management.compact`"},
		"hosted tool": {hiMessage +
			`,"tools":[{"type":"web_search_20250305","name":"web_search"}]`,
			`"web_search_20250305" is not supported`},
		"tool number":       {hiMessage + `,"tools":[1]`, "`tools[0]` must be an object"},
		"tool without name": {hiMessage + `,"tools":[{"input_schema":{}}]`, "`tools[0].name`"},
		"tool without schema": {hiMessage + `,"tools":[{"name":"f"}]`,
			"`tools[0].input_schema` must be an object"},
		"choice": {hiMessage +
			`,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"some"}`,
			"`tool_choice.type` must be auto"},
		"choice without tools": {hiMessage + `,"tool_choice":{"type":"any"}`, "tools"},
		"choice of no tool": {hiMessage +
			`,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"g"}`,
			""},
		"thinking": {hiMessage + `,"thinking":{"type":"deep"}`,
			"`thinking.type` must be enabled"},
		"budget": {hiMessage + `,"thinking":{"type":"enabled","budget_tokens":0}`,
			"`thinking.budget_tokens` must be at least 1"},
		"budget text": {hiMessage + `,"thinking":{"type":"enabled","budget_tokens":"a"}`,
			"`thinking.budget_tokens` must be an integer"},
		"thinking twice": {hiMessage +
			`,"thinking":{"type":"disabled"},"chat_template_kwargs":{}`, "cannot be used together"},
		"effort": {hiMessage + `,"output_config":{"effort":"huge"}`,
			"`output_config.effort`"},
		"output config": {hiMessage + `,"output_config":{"tone":"x"}`,
			"`output_config.tone` is not supported"},
		"format": {hiMessage + `,"output_config":{"format":{"type":"xml"}}`,
			"`output_config.format.type` must be json_schema"},
		"format without schema": {hiMessage + `,"output_format":{"type":"json_schema"}`,
			"output_format"},
		"temperature": {hiMessage + `,"temperature":-1`,
			"temperature must be at least 0"},
	} {
		rec := s.post(anthropic.MessagesPath, "{"+c.fields+"}")
		if rec.Code != 400 {
			t.Errorf("%s: answered %d: %s", name, rec.Code, rec.Body)
			continue
		}
		got := object(t, rec.Body.Bytes())
		if m, _ := at(t, got, "error", "message").(string); !strings.Contains(m, c.message) ||
			got["type"] != "error" || at(t, got, "error", "type") != "invalid_request_error" ||
			got["request_id"] != rec.Header().Get("request-id") || got["request_id"] == "" {
			t.Errorf("%s: %s", name, rec.Body)
		}
	}
	if len(s.engine.requests) > 0 {
		t.Errorf("%d requests reached the engine", len(s.engine.requests))
	}
}

// TestMessagesPrompt: blocks become the messages that chat would have.
func TestMessagesPrompt(t *testing.T) {
	s := newServer(t, withTemplate(t, `{# <tool_call>{"name": "f", "arguments": {}}</tool_call> #}`+
		"{{ messages | tojson }}{{ tools | tojson }}{{ enable_thinking }}{{ reasoning_effort }}"),
		func(o *Options) { o.Info.MaxModelLen = 2048 })
	for body, want := range map[string]string{
		hiMessage: `[{"role": "user", "content": "hi"}]null`,
		`"max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"tool_use","id":"t","name":"f","input":{}},{"type":"text","text":"b"}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"7"}]}]`: `[{"role": "assistant", "content": "a\nb", "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": {}}}]}, ` +
			`{"role": "tool", "tool_call_id": "t", "content": "7"}]null`,
		`"max_tokens":5,"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}],"thinking":{"type":"disabled"},"messages":[` +
			`{"role":"user","content":[{"type":"text","text":"hi"}]},` +
			`{"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"so"},` +
			`{"type":"tool_use","id":"t1","name":"f","input":{"x":1}},{"type":"tool_use","id":"t2","name":"f","input":{}}]},` +
			`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"7"}]},{"type":"tool_result","tool_use_id":"t2","is_error":true},` +
			`{"type":"text","text":"and"},{"type":"text","text":"now"}]}],"tools":[{"name":"f","description":"d","input_schema":{"type":"object"},"cache_control":null}],` +
			`"tool_choice":{"type":"auto","disable_parallel_tool_use":true},"output_config":{"effort":"low"}`: `[{"role": "system", "content": "a\nb"}, {"role": "user", "content": "hi"}, ` +
			`{"role": "assistant", "content": "so", "reasoning": "hm", "reasoning_content": "hm", "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}, ` +
			`{"id": "t2", "type": "function", "function": {"name": "f", "arguments": {}}}]}, {"role": "tool", "tool_call_id": "t1", "content": "7"}, ` +
			`{"role": "tool", "tool_call_id": "t2", "content": ""}, {"role": "user", "content": "and\nnow"}]` +
			`[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]Falselow`,
	} {
		got := s.ok(t, anthropic.MessagesPath, "{"+body+"}")
		if text := rendered(t, s); text != want {
			t.Errorf("%s\ngot  %s\nwant %s", body, text, want)
		}
		n := float64(len(s.engine.last(t).Prompt))
		u := at(t, got, "usage").(map[string]any)
		if u["input_tokens"].(float64)+u["cache_read_input_tokens"].(float64) != n {
			t.Errorf("usage %v of a prompt of %v tokens", u, n)
		}
		if count := s.ok(t, anthropic.CountTokensPath, "{"+body+"}"); count["input_tokens"] != n {
			t.Errorf("counted %v of %v tokens", count, n)
		}
	}
	// What the assistant has begun goes on.
	s = newServer(t)
	s.ok(t, anthropic.MessagesPath,
		`{"max_tokens":5,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"Once upon"}]}`)
	if text := rendered(t, s); !strings.HasSuffix(text, "Once upon") {
		t.Errorf("prompt %q", text)
	}
}

func TestMessagesEnd(t *testing.T) {
	for want, change := range map[string]func(*script){
		"stop_sequence END": func(p *script) { p.deltas[1].StopString = "END" },
		"max_tokens <nil>":  func(p *script) { p.deltas[1].Finish = sample.FinishLength },
		"end_turn <nil>":    func(p *script) {},
		"529 overloaded":    func(p *script) { p.deltas[1].Finish = sample.FinishAbort },
		"500 api": func(p *script) {
			p.deltas, p.err = p.deltas[:1],
				fmt.Errorf("%w: rank 0 died", engine.ErrFailed)
		},
	} {
		s := newServer(t, func(o *Options) {
			o.Engine = &fakeEngine{play: func(n int, r *engine.Request) script {
				p := sayHello(n, r)
				change(&p)
				return p
			}}
		})
		body := hiMessage + `,"stop_sequences":["END"]`
		rec := s.post(anthropic.MessagesPath, "{"+body+"}")
		v := object(t, rec.Body.Bytes())
		got := fmt.Sprintf("%v %v", v["stop_reason"], v["stop_sequence"])
		if rec.Code != 200 {
			got = fmt.Sprintf("%d %s", rec.Code, strings.TrimSuffix(at(t, v, "error",
				"type").(string), "_error"))
		}
		if got != want {
			t.Errorf("%s instead of %s", got, want)
		}
		if rec.Code == 529 && !strings.Contains(rec.Body.String(), "is paused, or sleeps") {
			t.Errorf("broken off with %s", rec.Body)
		}
		list := namedEvents(t, s.post(anthropic.MessagesPath,
			"{"+body+`,"stream":true}`).Body.String())
		last := list[len(list)-1]
		if rec.Code != 200 {
			if last["type"] != "error" || marshal(t, last["error"]) != marshal(t, v["error"]) {
				t.Errorf("the stream ends with %v, without there is %v", last, v)
			}
			continue
		}
		if _, reason := foldMessage(t, list); reason != v["stop_reason"] {
			t.Errorf("%v streamed, %v without", reason, v["stop_reason"])
		}
	}
	s := newServer(t)
	s.engine.submit = func(int) error { return engine.ErrOverloaded }
	if rec := s.post(anthropic.MessagesPath, `{`+hiMessage+`}`); rec.Code != 529 ||
		rec.Header().Get("Retry-After") == "" || !strings.Contains(rec.Body.String(),
		"overloaded_error") {
		t.Errorf("overloaded: %d %s", rec.Code, rec.Body)
	}
}

func FuzzMessages(f *testing.F) {
	s := newServer(f, hermesTemplate)
	for _, seed := range []string{`{` + hiMessage + `}`, `{` + hiMessage +
		`,"stream":true,"system":"a","stop_sequences":["x"]}`,
		`{"max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"1"}]}],"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"auto"}}`,
		`{` + hiMessage + `,"thinking":{"type":"enabled","budget_tokens":5,"display":"omitted"},"output_config":{"effort":"low","format":{"type":"json_schema","schema":{}}}}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		checkAnswer(t, s, anthropic.MessagesPath, body, func(rec *httptest.ResponseRecorder) {
			namedEvents(t, rec.Body.String())
		})
	})
}
