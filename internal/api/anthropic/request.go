package anthropic

import (
	"slices"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// notInMessages are fields of chat that have other names in Anthropic's API, or no place.
var notInMessages = map[string]string{
	"max_completion_tokens": "max_tokens", "stop": "stop_sequences",
	"response_format": "output_config.format", "reasoning_effort": "output_config.effort",
	"functions":     "tools",
	"function_call": "tool_choice", "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
	"n": "", "logprobs": "", "top_logprobs": "", "echo": "", "prompt_logprobs": "",
	"add_generation_prompt": "", "continue_final_message": "", "return_token_ids": "",
	"return_prompt_text": "", "include_reasoning": "thinking",
}

// decodeMessage reads a request to generate, which needs max_tokens.
func decodeMessage(f *wire.Fields, m *generate.Model) (*generate.Chat, *wire.Error) {
	if raw := f.Members["max_tokens"]; raw == nil || wire.IsNull(raw) {
		f.Fail(wire.BadRequest("max_tokens", "`max_tokens` is required"))
	}
	return decodeCounted(f, m)
}

// decodeCounted reads all fields of Anthropic's dialect, in the body of POST /v1/messages and of
// its count_tokens.
func decodeCounted(f *wire.Fields, m *generate.Model) (*generate.Chat, *wire.Error) {
	r := messageRequest{generate.NewChat("messages"), f, m}
	generate.RefuseFields(f, MessagesPath, notInMessages)
	r.SetStop(f, "stop_sequences", f.Array("stop_sequences"))
	r.DecodeMaxTokens(f, "max_tokens")
	r.decodeMessages()
	r.decodeTools()
	r.decodeThinking()
	r.decodeOutput()
	r.decodeService()
	r.DecodeShared(f, m)
	return r.Chat, f.Err
}

// messageRequest reads a request of Anthropic's dialect.
type messageRequest struct {
	*generate.Chat
	*wire.Fields
	m *generate.Model
}

// decodeService reads what a hosted service makes something of. What would change the answer is
// refused.
func (r *messageRequest) decodeService() {
	r.Object("metadata")
	r.OptString("service_tier")
	r.Object("cache_control") // what comes again is in the prefix cache by itself
	r.Unsupported("container")
	r.Unsupported("mcp_servers", "[]")
	raw := r.Object("context_management")
	if raw == nil {
		return
	}
	at := wire.Path("context_management")
	r.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		if key != "edits" || raw[0] != '[' {
			return at.Member(key).Bad("is not supported by this server")
		}
		return wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
			// Templates leave out what was thought in earlier turns by themselves.
			if kind := wire.TypeOf(raw); !strings.HasPrefix(kind, "clear_thinking_") {
				return at.Member(key).Index(i).Bad("of type %q is not supported by this server",
					wire.Clip(kind))
			}
			return nil
		})
	}))
}

// decodeMessages reads `system` and `messages`.
func (r *messageRequest) decodeMessages() {
	var d generate.Dialogue
	if raw := r.Value("system"); raw != nil {
		parts, bad := generate.DecodeParts("system", raw)
		r.Fail(bad)
		if len(parts) > 0 {
			d.Add(&generate.Item{Kind: "message", Role: "system", Parts: parts})
		}
	}
	raw := r.Array("messages")
	if raw == nil {
		r.Fail(wire.BadRequest("messages", "`messages` is required: a list of messages"))
		return
	}
	var last []generate.Item
	r.Fail(wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
		items, bad := decodeTurn(wire.Path("messages").Index(i), raw)
		for i := range items {
			d.Add(&items[i])
		}
		last = items
		return bad
	}))
	d.End(&r.Conversation)
	if len(r.Messages) == 0 {
		r.Fail(wire.BadRequest("messages", "`messages` must not be empty"))
	}
	called := func(t generate.Item) bool { return t.Kind == "function_call" }
	if slices.ContainsFunc(last, called) {
		r.Fail(wire.BadRequest("messages",
			"the last message must not be a tool_use: its tool_result comes after it"))
	} else if n := len(last); n > 0 && last[n-1].Role == "assistant" {
		// The answer goes on from it.
		r.ContinueFinal, r.AddGenerationPrompt = true, false
	}
}

// decodeTurn reads one message, whose blocks become items.
func decodeTurn(at wire.Path, raw []byte) ([]generate.Item, *wire.Error) {
	if raw[0] != '{' {
		return nil, at.Bad("must be an object, got %s", wire.Describe(raw))
	}
	role, content := "", []byte(nil)
	_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		switch {
		case key == "role" && raw[0] == '"':
			role = wire.Unquote(raw)
		case key == "content":
			content = raw
		}
		return nil
	})
	switch role {
	case "user", "assistant", "system":
	default:
		return nil, at.Member("role").Bad("must be user, assistant or system, got %q",
			wire.Clip(role))
	}
	at = at.Member("content")
	switch {
	case content == nil:
		return nil, at.Bad("is required")
	case content[0] == '"':
		return []generate.Item{{Kind: "message", Role: role,
			Parts: []string{wire.Unquote(content)}}}, nil
	case content[0] != '[':
		return nil, at.Bad("must be a string or a list of blocks, got %s", wire.Describe(content))
	}
	var items []generate.Item
	bad := wire.EachElement(content, func(i int, raw []byte) *wire.Error {
		at := at.Index(i)
		if raw[0] != '{' {
			return at.Bad("must be an object, got %s", wire.Describe(raw))
		}
		t, bad := decodeBlock(at, role, raw)
		if bad != nil || t.Kind == "" {
			return bad
		}
		// Texts that follow one another are one message.
		if n := len(items); n > 0 && t.Kind == "message" && items[n-1].Kind == "message" {
			items[n-1].Parts = append(items[n-1].Parts, t.Parts...)
		} else {
			items = append(items, t)
		}
		return nil
	})
	return items, bad
}

// decodeBlock reads one block of a message. One that says nothing to this model is no item.
func decodeBlock(at wire.Path, role string, raw []byte) (t generate.Item, bad *wire.Error) {
	members := map[string][]byte{}
	_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		members[key] = raw
		return nil
	})
	text := func(key string, dst *string) {
		switch raw := members[key]; {
		case bad != nil:
		case raw == nil || raw[0] != '"':
			bad = at.Member(key).Bad("must be a string")
		default:
			*dst = wire.Unquote(raw)
		}
	}
	kind := wire.TypeOf(raw)
	switch role + " " + kind {
	case "user text", "assistant text", "system text":
		t = generate.Item{Kind: "message", Role: role, Parts: make([]string, 1)}
		text("text", &t.Parts[0])
	case "assistant thinking":
		t = generate.Item{Kind: "reasoning", Parts: make([]string, 1)}
		text("thinking", &t.Parts[0])
	case "assistant redacted_thinking": // it cannot be read here
	case "assistant tool_use":
		t.Kind = "function_call"
		text("id", &t.CallID)
		text("name", &t.Name)
		if input := members["input"]; input == nil || input[0] != '{' {
			return t, at.Member("input").Bad("must be an object")
		}
		t.Arguments = string(members["input"])
	case "user tool_result":
		t.Kind = "function_call_output"
		text("tool_use_id", &t.CallID)
		t.Parts = []string{""}
		if content := members["content"]; bad == nil && content != nil && !wire.IsNull(content) {
			t.Parts, bad = generate.DecodeParts(at.Member("content"), content)
		}
	default:
		return t, at.Bad("has type %q, which is not supported in a message of role %s",
			wire.Clip(kind), role)
	}
	return t, bad
}

// decodeTools reads tools and tool_choice. Tools that have a type of their own are Anthropic's, and
// refused by name.
func (r *messageRequest) decodeTools() {
	if list := r.Array("tools"); list != nil {
		tools := []generate.Tool{}
		r.Fail(wire.EachElement(list, func(i int, raw []byte) *wire.Error {
			raw, bad := toolOf(wire.Path("tools").Index(i), raw)
			if bad == nil {
				tools = append(tools, generate.NewTool(raw))
			}
			return bad
		}))
		if r.Err == nil && len(tools) > 0 {
			r.Fail(r.SetTools(tools))
		}
	}
	raw := r.Object("tool_choice")
	if raw == nil {
		r.Fail(r.ChooseByWord(nil, r.Tools, r.m))
		return
	}
	r.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		if key == "disable_parallel_tool_use" {
			r.Parallel = !r.ParseBool("tool_choice."+key, raw, false)
		}
		return nil
	}))
	switch kind := wire.TypeOf(raw); kind {
	case "auto", "none":
		if r.Tools != nil {
			r.Fail(r.ChooseByWord(wire.AppendString(nil, kind), r.Tools, r.m))
		}
	case "any":
		r.Fail(r.ChooseByWord([]byte(`"required"`), r.Tools, r.m))
	case "tool":
		r.Fail(r.ChooseOne(wire.UnquoteOr(wire.MemberOf(raw, "name", '"'), ""), r.Tools))
	default:
		r.Fail(wire.Path("tool_choice").Member("type").Bad(
			"must be auto, any, tool or none, got %q", wire.Clip(kind)))
	}
}

// toolOf writes a tool as chat templates know it.
func toolOf(at wire.Path, raw []byte) ([]byte, *wire.Error) {
	if raw[0] != '{' {
		return nil, at.Bad("must be an object, got %s", wire.Describe(raw))
	}
	if kind := wire.TypeOf(raw); kind != "" && kind != "custom" {
		return nil, at.Bad("of type %q is not supported by this server: it has no tools of its "+
			"own, and takes those with an input_schema", wire.Clip(kind))
	}
	b := []byte(`{"type":"function","function":{`)
	name, schema := false, false
	_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		as := key
		switch key {
		case "name":
			name = raw[0] == '"'
		case "input_schema":
			as, schema = "parameters", raw[0] == '{'
		case "description", "strict":
			if wire.IsNull(raw) {
				return nil
			}
		default:
			return nil
		}
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
		b = append(wire.AppendString(b, as), ':')
		b = append(b, raw...)
		return nil
	})
	switch {
	case !name:
		return nil, at.Member("name").Bad("must be a string")
	case !schema:
		return nil, at.Member("input_schema").Bad("must be an object")
	}
	return append(b, "}}"...), nil
}

// decodeThinking reads `thinking`, which templates know as enable_thinking. What is not said, the
// template decides.
func (r *messageRequest) decodeThinking() {
	raw := r.Object("thinking")
	if raw == nil {
		return
	}
	at := wire.Path("thinking")
	on := true
	switch kind := wire.TypeOf(raw); kind {
	case "enabled", "adaptive":
	case "disabled":
		on = false
	default:
		r.Fail(at.Member("type").Bad("must be enabled, adaptive or disabled, got %q",
			wire.Clip(kind)))
	}
	r.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		switch {
		case key == "budget_tokens" && on:
			v, bad := wire.ParseInt("thinking.budget_tokens", raw)
			if bad == nil && v < 1 {
				bad = at.Member(key).Bad("must be at least 1, got %d", v)
			}
			if bad == nil && r.m.Thinking != nil {
				bad = r.SetThinkingBudget("thinking.budget_tokens", v, r.m)
			}
			return bad
		case key == "display" && string(raw) == `"omitted"`:
			r.IncludeReasoning = false
		}
		return nil
	}))
	if r.Members["chat_template_kwargs"] != nil {
		r.Fail(wire.BadRequest("thinking", "`thinking` and `chat_template_kwargs` cannot be used "+
			"together"))
	}
	r.Kwargs = []wire.Member{{Key: "enable_thinking", Raw: strconv.AppendBool(nil, on)}}
}

// decodeOutput reads output_config, and the older output_format.
func (r *messageRequest) decodeOutput() {
	format := func(at wire.Path, raw []byte) *wire.Error {
		if kind := wire.TypeOf(raw); kind != "json_schema" {
			return at.Member("type").Bad("must be json_schema, got %q", wire.Clip(kind))
		}
		r.SetResponseFormat(r.Fields, string(at),
			generate.FormatSchema(r.Fields, string(at), at, raw))
		return nil
	}
	if raw := r.Object("output_format"); raw != nil {
		r.Fail(format("output_format", raw))
	}
	raw := r.Object("output_config")
	if raw == nil {
		return
	}
	at := wire.Path("output_config")
	r.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		switch {
		case wire.IsNull(raw):
			return nil
		case key == "effort" && raw[0] == '"':
			return r.SetReasoningEffort("output_config.effort", wire.Unquote(raw))
		case key == "effort":
			return at.Member(key).Bad("must be a string, got %s", wire.Describe(raw))
		case key == "format":
			return format(at.Member(key), raw)
		}
		return at.Member(key).Bad("is not supported by this server")
	}))
}
