package openai

import (
	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
)

// ChatPath and CompletionPath are named by the errors of requests that are for the other one.
const (
	ChatPath       = "/v1/chat/completions"
	CompletionPath = "/v1/completions"
)

func decodeChat(f *wire.Fields, m *generate.Model) (*generate.Chat, *wire.Error) {
	r := generate.NewChat("messages")
	decodeOwn(r, f, m)
	decodeMessages(&r.Conversation, f, f.Array("messages"))
	r.DecodeShared(f, m)
	return r, f.Err
}

// decodeOwn reads what other dialects have under names of their own, or not at all, but for the
// messages.
func decodeOwn(r *generate.Chat, f *wire.Fields, m *generate.Model) {
	decodeTools(&r.Conversation, f)
	decodeToolChoice(r, f, m)
	r.Parallel = f.OptBool("parallel_tool_calls", true)
	if e := f.OptString("reasoning_effort"); e != nil {
		f.Fail(r.SetReasoningEffort("reasoning_effort", *e))
	}
	decodeGenerationPrompt(&r.Conversation, f, true)
	r.Echo = f.Boolean("echo", false)
	r.DecodeMaxTokens(f, "max_completion_tokens", "max_tokens")
	decodeLogprobs(r, f, m)
	r.ReturnPromptText = f.OptBool("return_prompt_text", false)
	r.IncludeReasoning = f.OptBool("include_reasoning", true)
	decodeHosted(f)
	f.Removed("functions", "use tools", "[]")
	f.Removed("function_call", "use tool_choice", `"none"`)
}

// decodeHosted reads OpenAI's fields that only a hosted service makes something of. What would
// change the answer, or is to be there later, is refused.
func decodeHosted(f *wire.Fields) {
	f.Unsupported("web_search_options")
	f.Unsupported("prediction")
	f.Unsupported("modalities", `["text"]`, "[]")
	f.Unsupported("audio")
	f.Unsupported("moderation")
	f.Unsupported("verbosity", `"medium"`)
	f.Unsupported("store", "false")
	f.Object("metadata")
	for _, name := range []string{"service_tier", "prompt_cache_key", "prompt_cache_retention",
		"safety_identifier"} {
		f.OptString(name)
	}
}

// DecodeConversation reads a conversation alone, in OpenAI's dialect; answered has it end where an
// answer begins, unless the client says otherwise.
func DecodeConversation(c *generate.Conversation, f *wire.Fields, m *generate.Model,
	answered bool) {
	c.Field = "messages"
	decodeMessages(c, f, f.Array(c.Field))
	decodeTools(c, f)
	if e := f.OptString("reasoning_effort"); e != nil {
		f.Fail(c.SetReasoningEffort("reasoning_effort", *e))
	}
	decodeGenerationPrompt(c, f, answered)
	c.DecodeShared(f, m)
}

func decodeLogprobs(r *generate.Chat, f *wire.Fields, m *generate.Model) {
	if r.DecodeLogprobTokens(f, m) {
		f.OptInt("top_logprobs") // as many as are named
		r.SetLogprobTokens(f, m, "logprobs", f.OptBool("logprobs", false))
		return
	}
	shown := generate.LogprobCount(f, "top_logprobs", m)
	if f.OptBool("logprobs", false) {
		r.SetLogprobs(shown)
	} else if shown != sample.NoLogprobs && shown != 0 {
		f.Fail(wire.BadRequest("top_logprobs",
			"when using `top_logprobs`, `logprobs` must be set to true."))
	}
}

// decodeGenerationPrompt reads how the rendered conversation ends.
func decodeGenerationPrompt(c *generate.Conversation, f *wire.Fields, otherwise bool) {
	c.ContinueFinal = f.Boolean("continue_final_message", false)
	_, given := f.Members["add_generation_prompt"]
	c.AddGenerationPrompt = f.Boolean("add_generation_prompt", otherwise)
	if c.ContinueFinal && c.AddGenerationPrompt {
		if given {
			f.Fail(wire.BadRequest("continue_final_message",
				"Cannot set both `continue_final_message` and `add_generation_prompt` to True."))
		}
		c.AddGenerationPrompt = false
	}
}

// decodeMessages checks what every template relies on: objects with a role, and content that is
// text.
func decodeMessages(c *generate.Conversation, f *wire.Fields, raw []byte) {
	if raw == nil && f.Members["prompt"] != nil {
		f.Fail(wire.BadRequest("prompt",
			"`prompt` is for POST %s; this route, %s, takes `messages`", CompletionPath, ChatPath))
		return
	}
	if raw == nil {
		f.Fail(wire.BadRequest("messages", "`messages` must be a list of messages"))
		return
	}
	f.Fail(wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
		if raw[0] != '{' {
			return wire.BadRequest("messages", "`messages[%d]` must be an object, got %s", i,
				wire.Describe(raw))
		}
		c.Messages = append(c.Messages, raw)
		c.LastRole, c.LastTexts = "", nil
		if err := wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
			switch key {
			case "role":
				if raw[0] != '"' {
					return wire.BadRequest("messages",
						"`messages[%d].role` must be a string, got %s", i, wire.Describe(raw))
				}
				c.LastRole = wire.Unquote(raw)
			case "content":
				var bad *wire.Error
				c.LastTexts, bad = decodeContent(i, raw)
				return bad
			case "tool_calls":
				if raw[0] == '[' {
					return wire.EachElement(raw, func(j int, raw []byte) *wire.Error {
						at := wire.Path("messages").Index(i).Member(key).Index(j)
						return generate.RefuseCustom(at, raw)
					})
				}
			}
			return nil
		}); err != nil {
			return err
		}
		if c.LastRole == "" {
			return wire.BadRequest("messages", "`messages[%d]` has no role", i)
		}
		return nil
	}))
	if len(c.Messages) == 0 {
		f.Fail(wire.BadRequest("messages", "`messages` must not be empty"))
	}
}

// decodeContent accepts a string, null, or a list of parts of type text.
func decodeContent(i int, raw []byte) (texts []string, bad *wire.Error) {
	switch raw[0] {
	case '"':
		return []string{wire.Unquote(raw)}, nil
	case 'n':
		return nil, nil
	case '[':
	default:
		return nil, wire.BadRequest("messages", "`messages[%d].content` must be a string or a "+
			"list of parts, got %s", i, wire.Describe(raw))
	}
	bad = wire.EachElement(raw, func(j int, raw []byte) *wire.Error {
		if raw[0] == '"' { // vLLM takes a bare string for a part of type text
			texts = append(texts, wire.Unquote(raw))
			return nil
		}
		if raw[0] != '{' {
			return wire.BadRequest("messages",
				"`messages[%d].content[%d]` must be an object, got %s", i, j, wire.Describe(raw))
		}
		if kind := wire.TypeOf(raw); kind != "text" {
			return wire.BadRequest("messages",
				"`messages[%d].content[%d]` has type %q: only text is supported", i, j,
				wire.Clip(kind))
		}
		text := wire.MemberOf(raw, "text", '"')
		if text == nil {
			return wire.BadRequest("messages", "`messages[%d].content[%d].text` must be a string",
				i, j)
		}
		texts = append(texts, wire.Unquote(text))
		return nil
	})
	return texts, bad
}

func decodeToolChoice(r *generate.Chat, f *wire.Fields, m *generate.Model) {
	raw := f.Value("tool_choice")
	if raw == nil || raw[0] != '{' {
		f.Fail(r.ChooseByWord(raw, r.Tools, m))
		return
	}
	at := wire.Path("tool_choice")
	if wire.TypeOf(raw) != "allowed_tools" {
		f.Fail(generate.RefuseCustom(at, raw))
		f.Fail(r.ChooseOne(generate.NewTool(raw).Name, r.Tools))
		return
	}
	at = at.Member("allowed_tools")
	raw = wire.MemberOf(raw, "allowed_tools", '{')
	var names []string
	for i, t := range jsonx.Elements(wire.MemberOf(raw, "tools", '[')) {
		f.Fail(generate.RefuseCustom(at.Member("tools").Index(i), t))
		names = append(names, generate.NewTool(t).Name)
	}
	f.Fail(r.ChooseAmong(at, wire.UnquoteOr(wire.MemberOf(raw, "mode", '"'), ""), names,
		r.Tools, m))
}

func decodeTools(c *generate.Conversation, f *wire.Fields) {
	raw := f.Array("tools")
	if raw == nil {
		return
	}
	tools := []generate.Tool{}
	for i, t := range jsonx.Elements(raw) {
		f.Fail(generate.RefuseCustom(wire.Path("tools").Index(i), t))
		tools = append(tools, generate.NewTool(t))
	}
	f.Fail(c.SetTools(tools))
}
