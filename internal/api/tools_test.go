package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/api/responses"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/sys/fixtures"
	"github.com/eagleray/eagleray/internal/text/chattemplate"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/grammars"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// answering makes the engine write texts, a delta each, and stop.
func answering(finish sample.Finish, texts ...string) func(*Options) {
	return func(o *Options) {
		o.Engine = &fakeEngine{play: func(_ int, r *engine.Request) script {
			ids := make([]int32, len(texts))
			for i := range ids {
				ids[i] = int32(300 + i)
			}
			return script{deltas: say(r, ids, texts, finish)}
		}}
	}
}

// hermesTemplate shows calls as Hermes writes them, and reasoning.
func hermesTemplate(o *Options) {
	t, err := chattemplate.Parse(
		`{# <tool_call>{"name": "f", "arguments": {}}</tool_call> </think> #}` +
			`{{ messages | tojson }}{{ tools | tojson }}{% if thinking %}<think>{% endif %}`)
	if err != nil {
		panic(err)
	}
	o.Info.Template = t
}

const askTools = hiChat + `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`

// rejoined is the message that the chunks of a stream add up to, and why it ended.
func rejoined(t *testing.T, list []map[string]any) (message map[string]any, finish any) {
	t.Helper()
	message = map[string]any{}
	var calls []any
	for _, chunk := range list {
		if len(at(t, chunk, "choices").([]any)) == 0 {
			continue
		}
		delta := at(t, chunk, "choices", 0, "delta").(map[string]any)
		for key, v := range delta {
			switch key {
			case "tool_calls":
				for _, c := range v.([]any) {
					if int(at(t, c, "index").(float64)) == len(calls) {
						at(t, c, "id")
						calls = append(calls, c)
						continue
					}
					f := at(t, calls[len(calls)-1], "function").(map[string]any)
					f["arguments"] = f["arguments"].(string) + at(t, c, "function",
						"arguments").(string)
				}
			default:
				before, _ := message[key].(string)
				message[key] = before + v.(string)
			}
		}
		if v := at(t, chunk, "choices", 0, "finish_reason"); v != nil {
			if finish != nil || len(delta) > 0 {
				t.Errorf("ends twice, or with a delta: %v", chunk)
			}
			finish = v
		}
	}
	for _, c := range calls {
		delete(c.(map[string]any), "index")
		c.(map[string]any)["id"] = "x"
	}
	if calls != nil {
		message["tool_calls"] = calls
	}
	if message["content"] == "" && len(message) > 2 {
		delete(message, "content")
	}
	return message, finish
}

func TestToolCalls(t *testing.T) {
	const call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"
	tests := []struct {
		name, body, text string
		cut              bool
		want, finish     string
	}{
		{"call", askTools, "I'll see.\n" + call, false,
			`{"role":"assistant","content":"I'll see.","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]}`, "tool_calls"},
		{"call only", askTools + `,"tool_choice":"auto"`, call, false,
			`{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]}`, "tool_calls"},
		{"two", askTools, call + "\n" + call, false,
			`{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}},` +
				`{"id":"x","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]}`,
			"tool_calls"},
		{"one at a time", askTools + `,"parallel_tool_calls":false`, call + "\n" + call, false,
			`{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]}`, "tool_calls"},
		{"none", askTools + `,"tool_choice":"none"`, call, false,
			`{"role":"assistant","content":"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>"}`, "stop"},
		{"cut", askTools, call[:len(call)-19], true,
			`{"role":"assistant","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\"x"}}]}`, "length"},
		{"text", askTools, "No < call", false, `{"role":"assistant","content":"No < call"}`,
			"stop"},
		{"nothing", askTools, "", false, `{"role":"assistant","content":""}`, "stop"},
		{"reasoning", askTools, "<think>\nhm\n</think>\n\n" + call, false,
			`{"role":"assistant","reasoning":"hm","tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}]}`, "tool_calls"},
		{"reasoning only", hiChat, "<think>\nhm\n</think>\n\nyes", false,
			`{"role":"assistant","reasoning":"hm","content":"yes"}`, "stop"},
		{"reasoning begun", hiChat + `,"chat_template_kwargs":{"thinking":true}`, "hm</think>yes",
			false,
			`{"role":"assistant","reasoning":"hm","content":"yes"}`, "stop"},
		{"reasoning hidden", hiChat + `,"include_reasoning":false`, "<think>\nhm\n</think>\n\nyes",
			false,
			`{"role":"assistant","content":"yes"}`, "stop"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			finish := sample.FinishStop
			if tt.cut {
				finish = sample.FinishLength
			}
			s := newServer(t, hermesTemplate, answering(finish, strings.Split(tt.text, "")...))
			if tt.text == "" {
				s = newServer(t, hermesTemplate, answering(finish, ""))
			}
			for _, extra := range []string{"", `,"logprobs":true,"return_token_ids":true`} {
				full := s.ok(t, openai.ChatPath, `{`+tt.body+extra+`}`)
				m := at(t, full, "choices", 0, "message").(map[string]any)
				for key, v := range m {
					if v == nil {
						delete(m, key)
					}
				}
				if calls, ok := m["tool_calls"].([]any); ok {
					for _, c := range calls {
						c.(map[string]any)["id"] = "x"
					}
				}
				list := chunks(t, s.post(openai.ChatPath, `{`+tt.body+extra+`,"stream":true}`))
				streamed, finish := rejoined(t, list)
				got, _ := json.Marshal(m)
				parts, _ := json.Marshal(streamed)
				want, _ := json.Marshal(object(t, []byte(tt.want)))
				if string(got) != string(want) || string(parts) != string(want) {
					t.Errorf("answer\n%s\nstream\n%s\nwant\n%s", got, parts, want)
				}
				if f := at(t, full, "choices", 0, "finish_reason"); f != tt.finish ||
					finish != tt.finish {
					t.Errorf("ends by %v, streamed by %v, want %v", f, finish, tt.finish)
				}
				if extra != "" {
					tokens := 0
					for _, c := range list {
						ids, _ := at(t, c, "choices", 0).(map[string]any)["token_ids"].([]any)
						tokens += len(ids)
					}
					if n := len(at(t, full, "choices", 0, "token_ids").([]any)); tokens != n {
						t.Errorf("%d tokens streamed of %d", tokens, n)
					}
				}
			}
		})
	}
}

// TestToolChoiceNeedsParser: nothing is promised that no parser reads.
func TestToolChoiceNeedsParser(t *testing.T) {
	s := newServer(t)
	refused(t, s, openai.ChatPath, `{`+askTools+`}`, 400, "tool_choice", "--tool-call-parser")
	s = newServer(t, func(o *Options) { o.Config.Model.ToolCallParser = "hermes" })
	s.ok(t, openai.ChatPath, `{`+askTools+`}`)
	s = newServer(t, hermesTemplate,
		func(o *Options) { o.Config.Model.EnableAutoToolChoice = false })
	refused(t, s, openai.ChatPath, `{`+askTools+`}`, 400, "tool_choice",
		"--enable-auto-tool-choice")
}

// TestToolsNeedAPlace: tools that the template does not read are refused where the model is to
// choose, by every dialect, and are not needed there where a call is made by a constraint.
func TestToolsNeedAPlace(t *testing.T) {
	template, err := chattemplate.Parse("{{ messages[0].content }}tools")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, func(o *Options) {
		o.Config.Model.ToolCallParser, o.Info.Template = "hermes", template
	})
	const message = "no place in the chat template"
	refused(t, s, openai.ChatPath, `{`+askTools+`}`, 400, "tools", message)
	refused(t, s, responses.ResponsesPath, `{"input":"hi","tools":[{"type":"function","name":"f"}]}`,
		400, "tools", message)
	rec := s.post("/v1/messages", `{`+hiChat+`,"max_tokens":9,"tools":[{"name":"f","input_schema":{}}]}`)
	if rec.Code != 400 || !strings.Contains(rec.Body.String(), message) {
		t.Errorf("%d: %s", rec.Code, rec.Body)
	}
	for _, choice := range []string{`"none"`, `"required"`} {
		s.ok(t, openai.ChatPath, `{`+askTools+`,"tool_choice":`+choice+`}`)
	}
}

// TestRealTemplate: the template of a published model shows how it calls and thinks.
func TestRealTemplate(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(fixtures.Dir(t), "templates", "qwen3.jinja"))
	if err != nil {
		t.Skip(err)
	}
	s := newServer(t, func(o *Options) {
		if o.Info.Template, err = chattemplate.Parse(string(raw)); err != nil {
			t.Fatal(err)
		}
	}, answering(sample.FinishStop, "why\n</think>\n\nso"))
	for _, thinking := range []bool{true, false} {
		m := at(t, s.ok(t, openai.ChatPath,
			fmt.Sprintf(`{%s,"chat_template_kwargs":{"enable_thinking":%v}}`, hiChat, thinking)),
			"choices", 0, "message")
		// The template ends the reasoning where it is switched off: a tag is out of place then.
		if at(t, m, "reasoning") != nil || at(t, m, "content") != "why\n\n\nso" {
			t.Errorf("thinking %v: %v", thinking, m)
		}
	}
}

// TestTypedCalls: values without quotes become what the tool's schema says.
func TestTypedCalls(t *testing.T) {
	const schema = `{"type":"object","$defs":{"n":{"type":["integer","null"]}},"properties":{"zip":{"type":"string"},"n":{"$ref":"#/$defs/n"},` +
		`"e":{"enum":["1","2"]},"any":{},"u":{"anyOf":[{"type":"string"},{"type":"boolean"}]}}}`
	text := "<tool_call>\n<function=f>"
	for _, key := range []string{"zip", "n", "e", "any", "u"} {
		text += "\n<parameter=" + key + ">\n1\n</parameter>"
	}
	s := newServer(t, answering(sample.FinishStop,
		text+"\n<parameter=u>\nTrue\n</parameter>\n</function>\n</tool_call>"),
		func(o *Options) { o.Config.Model.ToolCallParser = "qwen3_xml" })
	got := s.ok(t, openai.ChatPath,
		`{`+hiChat+`,"tools":[{"type":"function","function":{"name":"f","parameters":`+schema+`}}]}`)
	const want = `{"zip": "1", "n": 1, "e": "1", "any": 1, "u": "1", "u": true}`
	if args := at(t, got, "choices", 0, "message", "tool_calls", 0, "function",
		"arguments"); args != want {
		t.Errorf("%s, want %s", args, want)
	}
}

// TestSpecialTags: the text has special tokens where a parser reads them.
func TestSpecialTags(t *testing.T) {
	s := newServer(t, hermesTemplate, func(o *Options) {
		o.Info.Tokenizer = tagTokenizer(t, "<tool_call>")
	})
	s.ok(t, openai.ChatPath, `{`+askTools+`}`)
	if !s.engine.last(t).KeepSpecial {
		t.Error("the tags are left out of the text")
	}
	s.ok(t, openai.ChatPath, `{`+askTools+`,"tool_choice":"none"}`)
	if s.engine.last(t).KeepSpecial {
		t.Error("special tokens are kept that nobody reads")
	}
}

// tagTokenizer is the tiny model's with a tag as a special token.
func tagTokenizer(t *testing.T, tag string) *tokenizer.Tokenizer {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		raw, err := os.ReadFile(filepath.Join(tinyModel, name))
		if err != nil {
			t.Fatal(err)
		}
		raw = bytes.Replace(raw, []byte("<|im_start|>"), []byte(tag), -1)
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestForcedTools: an answer that must call has a constraint that only calls match, and is read as
// the constraint has it written.
func TestForcedTools(t *testing.T) {
	const two = hiChat + `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"type":"integer"}}}}},` +
		`{"type":"function","function":{"name":"g"}}]`
	tests := []struct {
		name, body, parser, text string
		has, lacks               []string
		calls                    int
		finish                   string
	}{
		{"required", two + `,"tool_choice":"required"`, "hermes",
			"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
			[]string{`<tool_call>\n{\"name\": \"f\"`, `\"g\"`, `"stop_after_first":false`}, nil, 1,
			"tool_calls"},
		{"required once", two + `,"tool_choice":"required","parallel_tool_calls":false`, "hermes",
			"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
			[]string{`"stop_after_first":true`}, nil, 1, "tool_calls"},
		{"named", two + `,"tool_choice":{"type":"function","function":{"name":"g"}}`, "hermes",
			"<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", []string{`\"g\"`,
				`"stop_after_first":true`}, []string{`\"f\"`}, 1, "stop"},
		{"allowed", two + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]}}`, "hermes",
			"<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", []string{`\"g\"`}, []string{`\"f\"`}, 1, "tool_calls"},
		{"required in channels", two + `,"tool_choice":"required"`, "openai",
			"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|end|>" +
				"<|start|>assistant<|channel|>commentary to=functions.g json<|message|>{}",
			[]string{"<|channel|>commentary to=functions.f <|constrain|>json<|message|>"}, nil, 2,
			"tool_calls"},
		{"required without quotes", two + `,"tool_choice":"required"`, "gemma4",
			"<|tool_call>call:f{x:1}<tool_call|><|tool_call>call:g{}<tool_call|>",
			[]string{"<|tool_call>call:f", `"style":"gemma4"`}, nil, 2, "tool_calls"},
		{"required in lines", two + `,"tool_choice":"required"`, "olmo3",
			"<function_calls>\nf(x=1)\ng()\n</function_calls>",
			[]string{`"begin":"f("`, `"style":"python_arguments"`}, nil, 2, "tool_calls"},
		{"required as JSON", two + `,"tool_choice":"required"`, "none", `[{"name": "f", "parameters": {"x": 1}}, {"name": "g", "parameters": {}}]`,
			[]string{`"value":"["`, `{\"name\": \"f\", \"parameters\": `}, nil, 2, "tool_calls"},
		{"named as JSON", two + `,"tool_choice":{"type":"function","function":{"name":"f"}}`, "none", `{"x": 1}`,
			[]string{`"begin":""`}, []string{`\"f\"`}, 1, "stop"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, answering(sample.FinishStop, strings.Split(tt.text, "")...),
				func(o *Options) { o.Config.Model.ToolCallParser = tt.parser })
			full := s.ok(t, openai.ChatPath, `{`+tt.body+`}`)
			c := s.engine.last(t).Constraint
			for _, text := range tt.has {
				if c.Kind != constrain.StructuralTag || !strings.Contains(c.Text, text) {
					t.Errorf("no %s in %v", text, c)
				}
			}
			for _, text := range tt.lacks {
				if strings.Contains(c.Text, text) {
					t.Errorf("%s in %v", text, c)
				}
			}
			vocabulary := grammars.Vocabulary(s.Model.Tokenizer)
			if _, err := constrain.Compile(c, vocabulary, constrain.Limits{}); err != nil {
				t.Error(err)
			}
			message := at(t, full, "choices", 0, "message")
			if calls := at(t, message, "tool_calls").([]any); len(calls) != tt.calls ||
				at(t, message, "content") != nil {
				t.Errorf("the answer is %v", message)
			}
			streamed, finish := rejoined(t, chunks(t, s.post(openai.ChatPath, `{`+tt.body+`,"stream":true}`)))
			if f := at(t, full, "choices", 0, "finish_reason"); f != tt.finish ||
				finish != tt.finish || len(streamed["tool_calls"].([]any)) != tt.calls {
				t.Errorf("ends by %v, streamed by %v: %v", f, finish, streamed)
			}
		})
	}
}

// TestForcedCallsCut: an answer that must call has no content, at whatever character max_tokens or
// a stop string ends it, streamed or not.
func TestForcedCallsCut(t *testing.T) {
	const tool = `"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":`
	for _, tt := range []struct{ parser, choice, text string }{
		{"hermes", `"required"`, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"},
		{"qwen3_coder", `"required"`, "<tool_call>\n<function=f>\n<parameter=x>\n1\n" +
			"</parameter>\n</function>\n</tool_call>"},
		{"none", `"required"`, `[{"name": "f", "parameters": {"x": 1}}]`},
		{"none", `{"type":"function","function":{"name":"f"}}`, `{"x": 1}`},
		{"pythonic", `"required"`, "[f(x=1), f(x=2)]"},
	} {
		t.Run(tt.parser+" "+tt.choice, func(t *testing.T) {
			end, stop := 0, ""
			s := newServer(t, func(o *Options) {
				o.Config.Model.ToolCallParser = tt.parser
				o.Engine = &fakeEngine{play: func(_ int, r *engine.Request) script {
					texts := strings.Split(tt.text[:end], "")
					d := say(r, make([]int32, len(texts)), texts, sample.FinishLength)
					if stop != "" {
						d[len(d)-1].Finish, d[len(d)-1].StopString = sample.FinishStop, stop
					}
					return script{deltas: d}
				}}
			})
			body := `{` + hiChat + `,` + tool + tt.choice
			for end = 1; end < len(tt.text); end++ {
				for _, stop = range []string{"", "x"} {
					m := at(t, s.ok(t, openai.ChatPath, body+`}`), "choices", 0, "message")
					streamed, _ := rejoined(t, chunks(t, s.post(openai.ChatPath,
						body+`,"stream":true}`)))
					plain, _ := m.(map[string]any)["content"].(string)
					said, _ := streamed["content"].(string)
					if plain != "" || said != "" {
						t.Fatalf("%q says %q, streamed %q", tt.text[:end], plain, said)
					}
				}
			}
		})
	}
}

// TestMembersOfLooseTools: beside a strict tool, one that is not may have any arguments where those
// are JSON, and what its schema lists where each has a tag.
func TestMembersOfLooseTools(t *testing.T) {
	const body = `{` + hiChat + `,"tools":[{"type":"function","function":{"name":"f","strict":true}},` +
		`{"type":"function","function":{"name":"g","parameters":{"type":"object",` +
		`"properties":{"listed":{"type":"integer"}}}}}]}`
	for parser, lists := range map[string]bool{"hermes": false, "openai": false, "gemma4": false,
		"deepseek_v32": true, "qwen3_xml": true, "glm47": true, "olmo3": true} {
		s := newServer(t, func(o *Options) { o.Config.Model.ToolCallParser = parser })
		s.ok(t, openai.ChatPath, body)
		c := s.engine.last(t).Constraint
		if c.Kind != constrain.StructuralTag || strings.Contains(c.Text, `"listed"`) != lists {
			t.Errorf("%s: %v", parser, c)
		}
	}
}

// TestConstraintAfterThinking: what an answer keeps to is said of what comes after the reasoning.
func TestConstraintAfterThinking(t *testing.T) {
	s := newServer(t, hermesTemplate)
	const format = `,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"integer"}}}`
	for body, want := range map[string]string{
		hiChat + `,"chat_template_kwargs":{"thinking":true}` + format: `{"format":{"elements":[{"begin":"","content":{"type":"any_text"},"end":["</think>"],"type":"tag"},` +
			`{"pattern":"[ \\n]{0,4}","type":"regex"},{"json_schema":{"type":"integer"},"type":"json_schema"}],"type":"sequence"},"type":"structural_tag"}`,
		hiChat + `,"structured_outputs":{"choice":["a","b"]}`: `"optional"`,
		hiChat + `,"structured_outputs":{"regex":"a+"}`:       `"pattern":"a+"`,
		hiChat + `,"structured_outputs":{"json_object":true}`: `"json_schema":{"type":"object"}`,
		askTools + format: `{\"name\": \"f\"`,
		strings.Replace(askTools, `"name":"f"`, `"name":"f","strict":true`, 1):                                                          `"triggered_tags"`,
		hiChat + `,"structured_outputs":{"structural_tag":{"type":"structural_tag","format":{"type":"const_string","value":"x"}}}`:      `"value":"x"`,
		hiChat + `,"structured_outputs":{"structural_tag":{"structures":[{"begin":"<f>","schema":{},"end":"</f>"}],"triggers":["<f"]}}`: `"triggered_tags"`,
	} {
		s.ok(t, openai.ChatPath, `{`+body+`}`)
		c := s.engine.last(t).Constraint
		if c.Kind != constrain.StructuralTag || !strings.Contains(c.Text, want) {
			t.Errorf("%s makes %v, want %s", body, c, want)
		}
		vocabulary := grammars.Vocabulary(s.Model.Tokenizer)
		if _, err := constrain.Compile(c, vocabulary, constrain.Limits{}); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	s.ok(t, openai.ChatPath, `{`+askTools+`}`)
	if c := s.engine.last(t).Constraint; c.Kind != constrain.None {
		t.Errorf("tools that need not be called constrain: %v", c)
	}
}

// TestConstraintErrors name the part of the request that is at fault.
func TestConstraintErrors(t *testing.T) {
	s := newServer(t, hermesTemplate, func(o *Options) {
		v := grammars.Vocabulary(o.Info.Tokenizer)
		o.Engine = &fakeEngine{check: func(r *engine.Request) error {
			_, err := constrain.Compile(r.Constraint, v, constrain.Limits{})
			return err
		}}
	})
	const bad = `{"type":"object","properties":{"x":{"type":"strin"}}}`
	refused(t, s, openai.ChatPath, `{`+hiChat+`,"tools":[{"function":{"name":"g"}},{"function":{"name":"f","parameters":`+bad+`}}],"tool_choice":"required"}`,
		400, "tools[1].function.parameters", "at /properties/x/type")
	refused(t, s, openai.ChatPath, `{`+hiChat+`,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":`+bad+`}}}`,
		400, "response_format", "at /properties/x/type")
}

// TestToolsInPrompt: tools that are not to be called are in the prompt, unless a flag leaves them
// out.
func TestToolsInPrompt(t *testing.T) {
	for _, exclude := range []bool{false, true} {
		s := newServer(t, hermesTemplate, func(o *Options) {
			o.Config.Model.ExcludeToolsWhenToolChoiceNone = exclude
		})
		for choice, left := range map[string]bool{
			"none": exclude, "auto": false, "required": false,
		} {
			got := s.ok(t, openai.ChatPath, `{`+askTools+`,"return_prompt_text":true,"tool_choice":"`+choice+`"}`)
			if text := at(t, got, "prompt_text").(string); strings.Contains(text, `"parameters"`) == left {
				t.Errorf("excluded %v, %s: %s", exclude, choice, text)
			}
		}
	}
}

// TestForcedToolBesideFormat: a format of the answer to the user does not bind an answer that is a
// call, on any route: clients send both.
func TestForcedToolBesideFormat(t *testing.T) {
	s := newServer(t, hermesTemplate, func(o *Options) { o.Config.Model.ToolCallParser = "hermes" })
	const format = `{"type":"json_schema","json_schema":{"name":"n","schema":{"enum":["only this"]}}}`
	for path, body := range map[string]string{
		openai.ChatPath: `{` + askTools + `,"tool_choice":"required","response_format":` + format + `}`,
		responses.ResponsesPath: `{` + hiInput + `,"tools":[{"type":"function","name":"f"}],"tool_choice":"required",` +
			`"text":{"format":{"type":"json_schema","name":"n","schema":{"enum":["only this"]}}}}`,
	} {
		s.ok(t, path, body)
		c := s.engine.last(t).Constraint
		if c.Kind == constrain.None || strings.Contains(c.Text, "only this") {
			t.Errorf("%s: bound to %+v", path, c)
		}
	}
}
