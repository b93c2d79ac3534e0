package chattemplate

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestMessages(t *testing.T) {
	cases := []struct {
		name, in string
		format   Format
		want     string // JSON of the list, or the error after a '!'
	}{
		{"key order", `[{"zeta":1,"role":"user","content":"a","alpha":2.0}]`, FormatString,
			`[{"zeta": 1, "role": "user", "content": "a", "alpha": 2.0}]`},
		{"parts joined", `[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`, FormatString,
			`[{"role": "user", "content": "a\nb"}]`},
		{"parts kept", `[{"role":"user","content":[{"type":"text","text":"a"}]}]`, FormatOpenAI,
			`[{"role": "user", "content": [{"type": "text", "text": "a"}]}]`},
		{"text as a part", `[{"role":"user","content":"a"},{"role":"user","content":["b"]}]`,
			FormatOpenAI, `[{"role": "user", "content": [{"type": "text", "text": "a"}]}, ` +
				`{"role": "user", "content": [{"type": "text", "text": "b"}]}]`},
		{"results of tools", `[{"role":"tool","content":"a"},` +
			`{"role":"tool","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]`,
			FormatOpenAI, `[{"role": "tool", "content": "a"}, {"role": "tool", "content": "b\nc"}]`},
		{"no parts", `[{"role":"user","content":[]}]`, FormatString,
			`[{"role": "user", "content": ""}]`},
		{"null content", `[{"role":"assistant","content":null,"name":"x"}]`, FormatString,
			`[{"role": "assistant", "content": "", "name": "x"}]`},
		{"no content", `[{"role":"assistant"}]`, FormatString,
			`[{"role": "assistant", "content": ""}]`},
		{"null content as parts", `[{"role":"assistant","content":null}]`, FormatOpenAI,
			`[{"role": "assistant", "content": []}]`},
		{"arguments", `[{"role":"assistant","content":"","tool_calls":[{"id":"1","function":{"name":"f","arguments":"{\"b\": 1.0, \"a\": [\"é\"]}"}}]}]`, FormatString,
			`[{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"b": 1.0, "a": ["é"]}}}]}]`},
		{"arguments not JSON", `[{"role":"assistant","content":"","tool_calls":[{"function":{"arguments":"{\"b\": "}}]}]`, FormatString,
			`[{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{\"b\": "}}]}]`},
		{"arguments an object",
			`[{"role":"assistant","content":"","tool_calls":[{"function":{"arguments":{"a":1}}}]}]`,
			FormatString,
			`[{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": {"a": 1}}}]}]`},
		{"arguments empty", `[{"role":"assistant","content":"","tool_calls":[{"function":{"arguments":""}},{"function":{"name":"g"}}]}]`, FormatString,
			`[{"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": {}}}, {"function": {"name": "g", "arguments": {}}}]}]`},
		{"reasoning", `[{"role":"assistant","content":"a","reasoning":"r"},{"role":"assistant","content":"a","reasoning":"r","reasoning_content":"c"},` +
			`{"role":"assistant","content":"a","reasoning":null}]`, FormatString,
			`[{"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"}, ` +
				`{"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "c"}, {"role": "assistant", "content": "a", "reasoning": null}]`},
		{"reasoning beside calls",
			`[{"role":"assistant","reasoning":"r","tool_calls":[{"function":{"name":"f"}}]},` +
				`{"role":"assistant","content":"a","reasoning_content":"r",` +
				`"tool_calls":[{"function":{"name":"f"}}]}]`, FormatString,
			`[{"role": "assistant", "reasoning": "r", ` +
				`"tool_calls": [{"function": {"name": "f", "arguments": {}}}], "content": "", ` +
				`"reasoning_content": "r", "thinking": "r"}, ` +
				`{"role": "assistant", "content": "a", "reasoning_content": "r", ` +
				`"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]`},
		{"no calls", `[{"role":"assistant","content":"a","tool_calls":[]},{"role":"user","tool_calls":null,"content":"b"}]`, FormatString,
			`[{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]`},
		{"other function types",
			`[{"role":"assistant","content":"","tool_calls":[{"type":"custom"}]}]`, FormatString,
			`[{"role": "assistant", "content": "", "tool_calls": [{"type": "custom"}]}]`},
		{"image", `[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]`, FormatOpenAI,
			"!content parts of type 'image_url'"},
		{"image in string format",
			`[{"role":"user","content":"a"},{"role":"user","content":[{"type":"input_audio"}]}]`,
			FormatString, "!messages[1]: content[0]: content parts of type 'input_audio'"},
		{"untyped part", `[{"role":"user","content":[{"text":"a"}]}]`, FormatString,
			"!content[0].type must be a string"},
		{"part without text", `[{"role":"user","content":[{"type":"text"}]}]`, FormatString,
			"!content[0].text must be a string"},
		{"texts as parts", `[{"role":"user","content":["a",{"type":"text","text":"b"}]}]`,
			FormatString, `[{"role": "user", "content": "a\nb"}]`},
		{"part of wrong type", `[{"role":"user","content":[1]}]`, FormatString,
			"!content[0] must be an object, not int"},
		{"content of wrong type", `[{"role":"user","content":5}]`, FormatString,
			"!content must be a string or an array, not int"},
		{"no role", `[{"content":"a"}]`, FormatString, "!messages[0]: role must be a string"},
		{"role of wrong type", `[{"role":1,"content":"a"}]`, FormatString,
			"!role must be a string"},
		{"not an object", `["a"]`, FormatString, "!must be an object, not str"},
		{"calls of wrong type", `[{"role":"assistant","tool_calls":{}}]`, FormatString,
			"!tool_calls must be an array, not dict"},
		{"call of wrong type", `[{"role":"assistant","tool_calls":[1]}]`, FormatString,
			"!tool_calls[0]: must be an object, not int"},
		{"function of wrong type", `[{"role":"assistant","tool_calls":[{"function":1}]}]`,
			FormatString, "!function must be an object, not int"},
		{"deep", `[{"role":"user","content":"a","x":` + strings.Repeat("[", 999) +
			strings.Repeat("]", 999) + `}]`, FormatString, "!nested too deeply"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var raw []json.RawMessage
			if err := json.Unmarshal([]byte(c.in), &raw); err != nil {
				t.Fatal(err)
			}
			v, err := Messages(raw, c.format)
			if want, fails := strings.CutPrefix(c.want, "!"); fails {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("error %v, want %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := v.JSON(); err != nil || got != c.want {
				t.Fatalf("got  %s (%v)\nwant %s", got, err, c.want)
			}
		})
	}
}

func TestContentFormat(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		want   Format
	}{
		"plain": {"{% for m in messages %}{{ m.content }}{% endfor %}", FormatString},
		"attribute": {"{% for m in messages %}{% for c in m.content %}{{ c.text }}{% " +
			"endfor %}{% endfor %}", FormatOpenAI},
		"item": {"{% for m in messages %}{% for c in m['content'] %}{{ c.text }}{% " +
			"endfor %}{% endfor %}", FormatOpenAI},
		"filtered": {"{% for m in messages %}{% for c in m['content']|selectattr('type', " +
			"'eq', 'text') %}{% endfor %}{% endfor %}", FormatOpenAI},
		"other item": {"{% for m in messages %}{% for c in m['tool_calls'] %}{% endfor %}{% " +
			"endfor %}", FormatString},
		"other variable": {"{% for m in tools %}{% for c in m['content'] %}{% endfor %}{% " +
			"endfor %}", FormatString},
		"slice": {"{% for m in messages[1:] %}{% for c in m.content %}{% endfor %}{% " +
			"endfor %}", FormatOpenAI},
		"assigned list": {"{% set loop_messages = messages[1:] %}{% for m in loop_messages " +
			"%}{% for c in m.content %}{% endfor %}{% endfor %}", FormatOpenAI},
		"assigned later": {"{% macro r(ms) %}{% for m in two %}{% for c in m.content %}{% " +
			"endfor %}{% endfor %}{% endmacro %}{% set two = one %}{% set one = messages %}",
			FormatOpenAI},
		"assigned parts": {"{% for m in messages %}{% set parts = m.content %}{% if parts is " +
			"not string %}{% for c in parts %}{% endfor %}{% endif %}{% endfor %}", FormatOpenAI},
		"macro": {"{% macro r(content) %}{% for c in content %}{% endfor %}{% endmacro " +
			"%}{% for m in messages %}{{ r(m.content) }}{% endfor %}", FormatOpenAI},
		"first message": {"{% for c in messages[0].content %}{% endfor %}", FormatOpenAI},
		"in generation": {"{% for m in messages %}{% generation %}{% for c in m.content %}{% " +
			"endfor %}{% endgeneration %}{% endfor %}", FormatOpenAI},
		"self assignment": {"{% set messages = messages %}{% for m in messages %}{{ m.content " +
			"}}{% endfor %}", FormatString},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := Parse(c.source)
			if err != nil {
				t.Fatal(err)
			}
			if got := tmpl.ContentFormat(); got != c.want {
				t.Fatalf("format %s, want %s", got, c.want)
			}
		})
	}
}

func TestReads(t *testing.T) {
	for source, want := range map[string]bool{
		"{% for t in tools %}{% endfor %}{% set tools = none %}":       true,
		"{% if x %}{% set tools = none %}{% endif %}{{ tools }}":       true,
		"{% set tools = tools or [] %}{{ tools }}":                     true,
		"{% macro m() %}{{ tools }}{% endmacro %}{{ m() }}":            true,
		"{% set tools = [] %}{{ tools }}":                              false,
		"{% macro m() %}{{ tools }}{% endmacro %}{% set tools = [] %}": false,
		"{{ messages }}": false,
	} {
		tmpl, err := Parse(source)
		if err != nil {
			t.Fatal(err)
		}
		if got := tmpl.Reads("tools"); got != want {
			t.Errorf("%s: reads tools is %v", source, got)
		}
	}
}
