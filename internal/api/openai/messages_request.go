package openai

import (
	"bytes"
	"strings"
)

// messageRequest is the body of POST /v1/messages, and of its count_tokens.
type messageRequest struct {
	*chatRequest
	*translation
}

// notInMessages are fields of chat that have other names in Anthropic's API, or no place.
var notInMessages = map[string]string{
	"max_completion_tokens": "max_tokens", "stop": "stop_sequences", "response_format": "output_config.format", "reasoning_effort": "output_config.effort", "functions": "tools",
	"function_call": "tool_choice", "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
	"n": "", "logprobs": "", "top_logprobs": "", "echo": "", "prompt_logprobs": "",
	"add_generation_prompt": "", "continue_final_message": "", "return_token_ids": "",
	"return_prompt_text": "", "include_reasoning": "thinking",
}

// decodeMessage reads a request to generate, which needs max_tokens.
func decodeMessage(f *fields, m *model) (*messageRequest, *apiError) {
	if raw := f.members["max_tokens"]; raw == nil || isNull(raw) {
		f.fail(badRequest("max_tokens", "`max_tokens` is required"))
	}
	return decodeCounted(f, m)
}

// decodeCounted reads all fields.
func decodeCounted(f *fields, m *model) (*messageRequest, *apiError) {
	r := &messageRequest{translation: &translation{fields: f, route: messagesPath,
		names: map[string]string{}}}
	r.refuse(notInMessages)
	r.set("stop", f.array("stop_sequences"), "stop_sequences")
	r.decodeMessages()
	r.decodeTools()
	r.decodeThinking(m)
	r.decodeOutput()
	r.decodeService()
	var bad *apiError
	r.chatRequest, bad = r.chat(m)
	return r, bad
}

// decodeService reads what a hosted service makes something of. What would change the answer is
// refused.
func (r *messageRequest) decodeService() {
	r.object("metadata")
	r.optString("service_tier")
	r.object("cache_control") // what comes again is in the prefix cache by itself
	r.unsupported("container")
	r.unsupported("mcp_servers", "[]")
	raw := r.object("context_management")
	if raw == nil {
		return
	}
	at := path("context_management")
	r.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		if key != "edits" || raw[0] != '[' {
			return at.member(key).bad("is not supported by this server")
		}
		return eachElement(raw, func(i int, raw []byte) *apiError {
			// Templates leave out what was thought in earlier turns by themselves.
			if kind := typeOf(raw); !strings.HasPrefix(kind, "clear_thinking_") {
				return at.member(key).index(i).bad("of type %q is not supported by this server",
					clip(kind))
			}
			return nil
		})
	}))
}

// decodeMessages makes `system` and `messages` those of chat.
func (r *messageRequest) decodeMessages() {
	var d dialogue
	if raw := r.value("system"); raw != nil {
		parts, bad := decodeParts("system", raw)
		r.fail(bad)
		if len(parts) > 0 {
			d.add(&inputItem{kind: "message", role: "system", parts: parts})
		}
	}
	raw := r.array("messages")
	if raw == nil {
		r.fail(badRequest("messages", "`messages` is required: a list of messages"))
		return
	}
	var last []inputItem
	r.fail(eachElement(raw, func(i int, raw []byte) *apiError {
		items, bad := decodeTurn(path("messages").index(i), raw)
		for i := range items {
			d.add(&items[i])
		}
		last = items
		return bad
	}))
	list := d.list()
	if len(list) == len("[]") {
		r.fail(badRequest("messages", "`messages` must not be empty"))
	}
	r.set("messages", list, "messages")
	if n := len(last); n > 0 && last[n-1].role == "assistant" {
		// The answer goes on from it.
		r.set("continue_final_message", []byte("true"), "messages")
	} else if n > 0 && last[n-1].kind == "function_call" {
		r.fail(badRequest("messages", "the last message must not be a tool_use: its tool_result "+
			"comes after it"))
	}
}

// decodeTurn reads one message, whose blocks become items.
func decodeTurn(at path, raw []byte) ([]inputItem, *apiError) {
	if raw[0] != '{' {
		return nil, at.bad("must be an object, got %s", describe(raw))
	}
	role, content := "", []byte(nil)
	_ = eachMember(raw, func(key string, raw []byte) *apiError {
		switch {
		case key == "role" && raw[0] == '"':
			role = unquote(raw)
		case key == "content":
			content = raw
		}
		return nil
	})
	switch role {
	case "user", "assistant", "system":
	default:
		return nil, at.member("role").bad("must be user, assistant or system, got %q", clip(role))
	}
	at = at.member("content")
	switch {
	case content == nil:
		return nil, at.bad("is required")
	case content[0] == '"':
		return []inputItem{{kind: "message", role: role, parts: []string{unquote(content)}}}, nil
	case content[0] != '[':
		return nil, at.bad("must be a string or a list of blocks, got %s", describe(content))
	}
	var items []inputItem
	bad := eachElement(content, func(i int, raw []byte) *apiError {
		at := at.index(i)
		if raw[0] != '{' {
			return at.bad("must be an object, got %s", describe(raw))
		}
		t, bad := decodeBlock(at, role, raw)
		if bad != nil || t.kind == "" {
			return bad
		}
		// Texts that follow one another are one message.
		if n := len(items); n > 0 && t.kind == "message" && items[n-1].kind == "message" {
			items[n-1].parts = append(items[n-1].parts, t.parts...)
		} else {
			items = append(items, t)
		}
		return nil
	})
	return items, bad
}

// decodeBlock reads one block of a message. One that says nothing to this model is no item.
func decodeBlock(at path, role string, raw []byte) (t inputItem, bad *apiError) {
	members := map[string][]byte{}
	_ = eachMember(raw, func(key string, raw []byte) *apiError {
		members[key] = raw
		return nil
	})
	text := func(key string, dst *string) {
		switch raw := members[key]; {
		case bad != nil:
		case raw == nil || raw[0] != '"':
			bad = at.member(key).bad("must be a string")
		default:
			*dst = unquote(raw)
		}
	}
	kind := typeOf(raw)
	switch role + " " + kind {
	case "user text", "assistant text", "system text":
		t = inputItem{kind: "message", role: role, parts: make([]string, 1)}
		text("text", &t.parts[0])
	case "assistant thinking":
		t = inputItem{kind: "reasoning", parts: make([]string, 1)}
		text("thinking", &t.parts[0])
	case "assistant redacted_thinking": // nobody here can read it
	case "assistant tool_use":
		t.kind = "function_call"
		text("id", &t.callID)
		text("name", &t.name)
		if input := members["input"]; input == nil || input[0] != '{' {
			return t, at.member("input").bad("must be an object")
		}
		t.arguments = string(members["input"])
	case "user tool_result":
		t.kind = "function_call_output"
		text("tool_use_id", &t.callID)
		t.parts = []string{""}
		if content := members["content"]; bad == nil && content != nil && !isNull(content) {
			t.parts, bad = decodeParts(at.member("content"), content)
		}
	default:
		return t, at.bad("has type %q, which is not supported in a message of role %s", clip(kind),
			role)
	}
	return t, bad
}

// decodeTools makes tools and tool_choice those of chat. Tools that have a type of their own are
// Anthropic's, and refused by name.
func (r *messageRequest) decodeTools() {
	list := r.array("tools")
	var tools []byte
	if list != nil {
		r.fail(eachElement(list, func(i int, raw []byte) *apiError {
			tool, bad := toolOf(path("tools").index(i), raw)
			tools = append(comma(tools, i), tool...)
			return bad
		}))
	}
	if tools != nil {
		r.set("tools", append(append([]byte{'['}, tools...), ']'), "tools")
	}
	raw := r.object("tool_choice")
	if raw == nil {
		return
	}
	var name []byte
	r.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		switch key {
		case "name":
			name = raw
		case "disable_parallel_tool_use":
			if r.parseBool("tool_choice."+key, raw, false) {
				r.set("parallel_tool_calls", []byte("false"), "tool_choice."+key)
			}
		}
		return nil
	}))
	var choice []byte
	switch kind := typeOf(raw); kind {
	case "auto", "none":
		if tools == nil {
			return
		}
		choice = appendString(nil, kind)
	case "any":
		choice = []byte(`"required"`)
	case "tool":
		choice = append([]byte(`{"type":"function","function":{"name":`), orNull(name)...)
		choice = append(choice, "}}"...)
	default:
		r.fail(path("tool_choice").member("type").bad("must be auto, any, tool or none, got %q",
			clip(kind)))
	}
	r.set("tool_choice", choice, "tool_choice")
}

// toolOf makes a tool one of chat.
func toolOf(at path, raw []byte) ([]byte, *apiError) {
	if raw[0] != '{' {
		return nil, at.bad("must be an object, got %s", describe(raw))
	}
	if kind := typeOf(raw); kind != "" && kind != "custom" {
		return nil, at.bad("of type %q is not supported by this server: it has no tools of its "+
			"own, and takes those with an input_schema", clip(kind))
	}
	b := []byte(`{"type":"function","function":{`)
	name, schema := false, false
	_ = eachMember(raw, func(key string, raw []byte) *apiError {
		as := key
		switch key {
		case "name":
			name = raw[0] == '"'
		case "input_schema":
			as, schema = "parameters", raw[0] == '{'
		case "description", "strict":
			if isNull(raw) {
				return nil
			}
		default:
			return nil
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(appendString(b, as), ':')
		b = append(b, raw...)
		return nil
	})
	switch {
	case !name:
		return nil, at.member("name").bad("must be a string")
	case !schema:
		return nil, at.member("input_schema").bad("must be an object")
	}
	return append(b, "}}"...), nil
}

// decodeThinking makes `thinking` the template's enable_thinking. What is not said, the template
// decides.
func (r *messageRequest) decodeThinking(m *model) {
	raw := r.object("thinking")
	if raw == nil {
		return
	}
	at := path("thinking")
	on := true
	switch kind := typeOf(raw); kind {
	case "enabled", "adaptive":
	case "disabled":
		on = false
	default:
		r.fail(at.member("type").bad("must be enabled, adaptive or disabled, got %q", clip(kind)))
	}
	r.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		switch {
		case key == "budget_tokens" && on:
			v, bad := parseInt("thinking.budget_tokens", raw)
			if bad == nil && v < 1 {
				bad = at.member(key).bad("must be at least 1, got %d", v)
			}
			if bad == nil && m.thinking != nil {
				r.set("thinking_token_budget", raw, "thinking.budget_tokens")
			}
			return bad
		case key == "display" && string(raw) == `"omitted"`:
			r.set("include_reasoning", []byte("false"), "thinking.display")
		}
		return nil
	}))
	if r.members["chat_template_kwargs"] != nil {
		r.fail(badRequest("thinking", "`thinking` and `chat_template_kwargs` cannot be used "+
			"together"))
	}
	kwargs := []byte(`{"enable_thinking":false}`)
	if on {
		kwargs = []byte(`{"enable_thinking":true}`)
	}
	r.set("chat_template_kwargs", kwargs, "thinking")
}

// decodeOutput makes output_config, and the older output_format, fields of chat.
func (r *messageRequest) decodeOutput() {
	format := func(at path, raw []byte) *apiError {
		var schema []byte
		if kind := typeOf(raw); kind != "json_schema" {
			return at.member("type").bad("must be json_schema, got %q", clip(kind))
		}
		_ = eachMember(raw, func(key string, raw []byte) *apiError {
			if key == "schema" {
				schema = raw
			}
			return nil
		})
		var b bytes.Buffer
		b.WriteString(`{"type":"json_schema","json_schema":{"name":"output","schema":`)
		b.Write(orNull(schema))
		b.WriteString(`}}`)
		r.set("response_format", b.Bytes(), string(at))
		return nil
	}
	if raw := r.object("output_format"); raw != nil {
		r.fail(format("output_format", raw))
	}
	raw := r.object("output_config")
	if raw == nil {
		return
	}
	at := path("output_config")
	r.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		switch {
		case isNull(raw):
			return nil
		case key == "effort":
			r.set("reasoning_effort", raw, "output_config.effort")
			return nil
		case key == "format":
			return format(at.member(key), raw)
		}
		return at.member(key).bad("is not supported by this server")
	}))
}
