package openai

import (
	"bytes"
	"slices"

	"github.com/eagleray/eagleray/internal/api/openai/responses"
	"github.com/eagleray/eagleray/internal/api/wire"
)

const responsesPath = "/v1/responses"

// responseRequest is the body of POST /v1/responses.
type responseRequest struct {
	*chatRequest
	// translation makes the chat request, once the items that it goes on from are known.
	*translation
	// record is the response before there is one: what it repeats of the request.
	record responses.Response
	// input are the items of this request, previous the response whose conversation they go on.
	input                  []inputItem
	previous, instructions string
	storeGiven             bool
}

// chatOnly are fields of chat that have other names here, or no place.
var chatOnly = map[string]string{
	"messages": "input", "prompt": "", "max_tokens": "max_output_tokens",
	"max_completion_tokens": "max_output_tokens", "response_format": "text.format",
	"reasoning_effort": "reasoning.effort", "logprobs": "include", "functions": "tools",
	"function_call": "tool_choice", "n": "", "echo": "", "prompt_logprobs": "",
	"add_generation_prompt": "", "continue_final_message": "", "return_token_ids": "",
	"return_prompt_text": "", "return_tokens_as_token_ids": "",
}

// decodeResponse reads all fields but those that only chat has to read (finish).
func decodeResponse(f *wire.Fields) (*responseRequest, *wire.Error) {
	r := &responseRequest{translation: &translation{Fields: f, route: responsesPath,
		names: map[string]string{}}}
	rec := &r.record
	rec.Object, rec.Status = "response", responses.InProgress
	r.refuse(chatOnly)
	r.input = decodeInput(f)
	if text := f.OptString("instructions"); text != nil {
		r.instructions = *text
		rec.Instructions = wire.AppendString(nil, *text)
	}
	if rec.PreviousResponseID = f.OptString("previous_response_id"); rec.PreviousResponseID != nil {
		r.previous = *rec.PreviousResponseID
	}
	f.Unsupported("conversation")
	f.Unsupported("context_management", "[]")
	f.Unsupported("moderation")
	raw := f.Members["store"]
	r.storeGiven = raw != nil && !wire.IsNull(raw)
	rec.Store = f.OptBool("store", true)
	rec.Background = f.OptBool("background", false)
	if rec.Background && !rec.Store {
		f.Fail(wire.BadRequest("background", "`background` needs `store`: who asks for the response "+
			"later asks for what is kept"))
	}
	rec.Metadata = decodeMetadata(f)
	if raw := f.Value("max_output_tokens"); raw != nil {
		v, bad := wire.ParseInt("max_output_tokens", raw)
		f.Fail(bad)
		n := int(v)
		rec.MaxOutputTokens = &n
		r.set("max_completion_tokens", raw, "max_output_tokens")
	}
	if rec.MaxToolCalls = f.OptInt("max_tool_calls"); rec.MaxToolCalls != nil &&
		*rec.MaxToolCalls < 1 {
		f.Fail(wire.BadRequest("max_tool_calls", "`max_tool_calls` must be at least 1, got %d",
			*rec.MaxToolCalls))
	}
	r.decodeNames()
	r.decodeTruncation()
	r.decodeLogprobs()
	r.decodeReasoning()
	r.decodeText()
	r.decodeTools()
	return r, f.Err
}

// decodeNames reads what a hosted service makes something of, and is only repeated here.
func (r *responseRequest) decodeNames() {
	rec := &r.record
	rec.User = r.OptString("user")
	rec.SafetyIdentifier = r.OptString("safety_identifier")
	rec.PromptCacheKey = r.OptString("prompt_cache_key")
	r.OptString("prompt_cache_retention")
	r.Value("prompt_cache_options")
	rec.ServiceTier = "default"
	if tier := r.OptString("service_tier"); tier != nil &&
		!slices.Contains([]string{"auto", "default", "flex", "scale", "priority"}, *tier) {
		r.Fail(wire.BadRequest("service_tier", "`service_tier` must be auto, default, flex, scale or "+
			"priority, got %q", wire.Clip(*tier)))
	}
}

func (r *responseRequest) decodeTruncation() {
	r.record.Truncation = "disabled"
	if v := r.OptString("truncation"); v != nil && *v != "disabled" {
		r.Fail(wire.BadRequest("truncation", "`truncation` of %q is not supported by this server: "+
			"it must be disabled", wire.Clip(*v)))
	}
}

// includable are the values of `include`. All but one ask for parts of items that hosted tools
// make, of which there are none; reasoning is in the clear already.
var includable = []string{"message.output_text.logprobs", "reasoning.encrypted_content",
	"file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
	"message.input_image.image_url", "computer_call_output.output.image_url",
	"code_interpreter_call.outputs"}

// decodeLogprobs reads `include` and top_logprobs, which chat checks.
func (r *responseRequest) decodeLogprobs() {
	logprobs := false
	if raw := r.Array("include"); raw != nil {
		r.Fail(wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
			if raw[0] != '"' || !slices.Contains(includable, wire.Unquote(raw)) {
				return wire.Path("include").Index(i).Bad("is not known: %s", wire.Clip(string(raw)))
			}
			logprobs = logprobs || wire.Unquote(raw) == includable[0]
			return nil
		}))
	}
	raw := r.Members["top_logprobs"]
	if raw != nil && !wire.IsNull(raw) {
		v, bad := wire.ParseInt("top_logprobs", raw)
		if bad == nil && v < 0 {
			bad = wire.BadRequest("top_logprobs", "`top_logprobs` must be at least 0, got %d", v)
		}
		r.Fail(bad)
		r.record.TopLogprobs = int(v)
		logprobs = logprobs || v > 0
	}
	if logprobs {
		r.set("logprobs", []byte("true"), "include")
	} else {
		r.Take("top_logprobs")
	}
}

// decodeReasoning reads `reasoning`. Summaries are not made: what the model thought is there itself.
func (r *responseRequest) decodeReasoning() {
	raw := r.Object("reasoning")
	if raw == nil {
		return
	}
	r.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		at := wire.Path("reasoning").Member(key)
		switch {
		case wire.IsNull(raw):
			return nil
		case raw[0] != '"':
			return at.Bad("must be a string, got %s", wire.Describe(raw))
		}
		text := wire.Unquote(raw)
		switch key {
		case "effort":
			r.record.Reasoning.Effort = &text
			r.set("reasoning_effort", raw, "reasoning.effort")
		case "summary", "generate_summary":
			if text != "auto" {
				return at.Bad("of %q is not supported by this server: it must be null or auto, "+
					"which makes none; reasoning is given as it is", wire.Clip(text))
			}
			r.record.Reasoning.Summary = &text
		default:
			return at.Bad("is not supported by this server")
		}
		return nil
	}))
}

// decodeText reads `text`.
func (r *responseRequest) decodeText() {
	r.record.Text.Format = []byte(`{"type":"text"}`)
	raw := r.Object("text")
	if raw == nil {
		return
	}
	r.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		at := wire.Path("text").Member(key)
		switch {
		case wire.IsNull(raw):
		case key == "format":
			return r.decodeFormat(at, raw)
		case key == "verbosity":
			if string(raw) != `"medium"` {
				return at.Bad("is not supported by this server: it must be medium")
			}
			v := "medium"
			r.record.Text.Verbosity = &v
		default:
			return at.Bad("is not supported by this server")
		}
		return nil
	}))
}

// decodeFormat makes text.format, whose schema stands beside its type, chat's response_format.
func (r *responseRequest) decodeFormat(at wire.Path, raw []byte) *wire.Error {
	if raw[0] != '{' {
		return at.Bad("must be an object, got %s", wire.Describe(raw))
	}
	kind := ""
	_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		if key == "type" && raw[0] == '"' {
			kind = wire.Unquote(raw)
		}
		return nil
	})
	r.record.Text.Format = bytes.Clone(raw)
	switch kind {
	case "text":
	case "json_object":
		r.set("response_format", raw, string(at))
	case "json_schema":
		b := []byte(`{"type":"json_schema","json_schema":`)
		r.set("response_format", append(append(b, raw...), '}'), string(at))
	default:
		return at.Member("type").Bad("must be text, json_object or json_schema, got %q", wire.Clip(kind))
	}
	return nil
}

// decodeTools makes tools and tool_choice, whose functions stand beside their types, those of chat.
func (r *responseRequest) decodeTools() {
	rec := &r.record
	rec.Tools, rec.ToolChoice = []byte("[]"), []byte(`"auto"`)
	rec.ParallelToolCalls = true
	if raw := r.Members["parallel_tool_calls"]; raw != nil && !wire.IsNull(raw) {
		rec.ParallelToolCalls = r.ParseBool("parallel_tool_calls", raw, true)
	}
	var tools []byte
	if raw := r.Array("tools"); raw != nil {
		rec.Tools = bytes.Clone(raw)
		r.Fail(wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
			tool, bad := nested(wire.Path("tools").Index(i), raw)
			tools = append(wire.Comma(tools, i), tool...)
			return bad
		}))
	}
	raw := r.Value("tool_choice")
	if raw != nil {
		rec.ToolChoice = bytes.Clone(raw)
	}
	if tools == nil {
		// Clients say what is so anyway.
		if raw != nil && string(raw) != `"auto"` && string(raw) != `"none"` {
			r.set("tool_choice", raw, "tool_choice")
		}
		return
	}
	r.set("tools", append(append([]byte{'['}, tools...), ']'), "tools")
	if raw == nil {
		return
	}
	if raw[0] == '{' {
		choice, bad := nestedChoice(raw)
		r.Fail(bad)
		raw = choice
	}
	r.set("tool_choice", raw, "tool_choice")
}

// nested makes a flat tool {"type":"function","name":…} one of chat, {"type":"function","function":
// {"name":…}}. Tools that the provider runs are refused by name.
func nested(at wire.Path, raw []byte) ([]byte, *wire.Error) {
	if raw[0] != '{' {
		return nil, at.Bad("must be an object, got %s", wire.Describe(raw))
	}
	kind, name := "", false
	inner := []byte{'{'}
	_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		switch {
		case key == "type":
			if raw[0] == '"' {
				kind = wire.Unquote(raw)
			}
			return nil
		case key == "name":
			name = raw[0] == '"'
		case wire.IsNull(raw):
			return nil
		}
		if len(inner) > 1 {
			inner = append(inner, ',')
		}
		inner = append(wire.AppendString(inner, key), ':')
		inner = append(inner, raw...)
		return nil
	})
	switch {
	case kind == "":
		return nil, at.Member("type").Bad("is required")
	case kind != "function":
		return nil, at.Bad("of type %q is not supported by this server: it has no tools of its "+
			"own, and takes functions", wire.Clip(kind))
	case !name:
		return nil, at.Member("name").Bad("must be a string")
	}
	b := append([]byte(`{"type":"function","function":`), inner...)
	return append(b, "}}"...), nil
}

// nestedChoice makes {"type":"function","name":…} and {"type":"allowed_tools","mode":…,"tools":…}
// those of chat.
func nestedChoice(raw []byte) ([]byte, *wire.Error) {
	at := wire.Path("tool_choice")
	members := map[string][]byte{}
	_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		members[key] = raw
		return nil
	})
	switch kind := members["type"]; {
	case string(kind) == `"function"`:
		return nested(at, raw)
	case string(kind) == `"allowed_tools"`:
		list := members["tools"]
		if list == nil || list[0] != '[' {
			return nil, at.Member("tools").Bad("must be a list of tools")
		}
		b := []byte(`{"type":"allowed_tools","allowed_tools":{"mode":`)
		b = append(b, wire.OrNull(members["mode"])...)
		b = append(b, `,"tools":[`...)
		bad := wire.EachElement(list, func(i int, raw []byte) *wire.Error {
			tool, bad := nested(at.Member("tools").Index(i), raw)
			b = append(wire.Comma(b, i), tool...)
			return bad
		})
		return append(b, "]}}"...), bad
	}
	return nil, at.Bad("of type %s is not supported by this server: it must be none, auto, "+
		"required, a function or allowed_tools", wire.Clip(string(wire.OrNull(members["type"]))))
}

// finish decodes what chat reads. history are the items before those of the request.
func (r *responseRequest) finish(m *model, history []inputItem) *wire.Error {
	var d dialogue
	if r.instructions != "" {
		d.add(&inputItem{kind: "message", role: "system", parts: []string{r.instructions}})
	}
	for i := range history {
		d.add(&history[i])
	}
	for i := range r.input {
		d.add(&r.input[i])
	}
	r.set("messages", d.list(), "input")
	var bad *wire.Error
	r.chatRequest, bad = r.chat(m)
	return bad
}

// inputList is the input as a JSON array.
func (r *responseRequest) inputList() []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for i := range r.input {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(appendItem(nil, &r.input[i]))
	}
	b.WriteByte(']')
	return b.Bytes()
}
