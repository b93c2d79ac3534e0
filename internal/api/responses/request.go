package responses

import (
	"bytes"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/api/generate"
	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// Routes of OpenAI's. There is no CompactPath.
const (
	ResponsesPath   = "/v1/responses"
	InputTokensPath = ResponsesPath + "/input_tokens"
	CompactPath     = ResponsesPath + "/compact"
)

// responseRequest is the body of POST /v1/responses.
type responseRequest struct {
	*generate.Chat
	// record is the response before there is one: what it repeats of the request.
	record Response
	// input are the items of this request, which go on from a response (previous) or in a
	// conversation (talk), "" for none; history are those before them.
	input, history               []generate.Item
	previous, talk, instructions string
	storeGiven                   bool
	// namespaces are those of functions that are in one, by the names that the model knows.
	namespaces map[string]string
	// release lets others have the conversation; calling it twice is harmless.
	release func()
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

// decodeResponse reads all fields. The conversation is whole once the items are known that it goes
// on from (converse).
func decodeResponse(f *wire.Fields, m *generate.Model) (*responseRequest, *wire.Error) {
	r := responseFields{&responseRequest{Chat: generate.NewChat("input")}, f, m}
	rec := &r.record
	rec.Object, rec.Status = "response", InProgress
	generate.RefuseFields(f, ResponsesPath, chatOnly)
	if rec.PreviousResponseID = f.OptString("previous_response_id"); rec.PreviousResponseID != nil {
		r.previous = *rec.PreviousResponseID
	}
	r.decodeConversation()
	r.input = generate.DecodeInput(f, r.previous != "" || r.talk != "")
	if text := f.OptString("instructions"); text != nil {
		r.instructions = *text
		rec.Instructions = wire.AppendString(nil, *text)
	}
	f.Unsupported("context_management", "[]")
	f.Unsupported("moderation")
	raw := f.Members["store"]
	r.storeGiven = raw != nil && !wire.IsNull(raw)
	rec.Store = f.OptBool("store", true)
	rec.Background = f.OptBool("background", false)
	if rec.Background && !rec.Store {
		f.Fail(wire.BadRequest("background",
			"`background` needs `store`: who asks for the response later asks for what is kept"))
	}
	rec.Metadata = decodeMetadata(f)
	r.DecodeMaxTokens(f, "max_output_tokens")
	rec.MaxOutputTokens = r.MaxTokens
	r.IncludeReasoning = f.OptBool("include_reasoning", true)
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
	r.DecodeShared(f, m)
	return r.responseRequest, f.Err
}

// responseFields reads a request.
type responseFields struct {
	*responseRequest
	*wire.Fields
	m *generate.Model
}

// decodeNames reads what a hosted service makes something of, and is only repeated here.
func (r *responseFields) decodeNames() {
	rec := &r.record
	rec.User = r.OptString("user")
	rec.SafetyIdentifier = r.OptString("safety_identifier")
	rec.PromptCacheKey = r.OptString("prompt_cache_key")
	r.OptString("prompt_cache_retention")
	r.Value("prompt_cache_options")
	rec.ServiceTier = "default"
	if tier := r.OptString("service_tier"); tier != nil &&
		!slices.Contains([]string{"auto", "default", "flex", "scale", "priority"}, *tier) {
		r.Fail(wire.BadRequest("service_tier",
			"`service_tier` must be auto, default, flex, scale or priority, got %q",
			wire.Clip(*tier)))
	}
}

// decodeConversation reads `conversation`: an id, or an object with one.
func (r *responseFields) decodeConversation() {
	const field = "conversation"
	raw := r.Value(field)
	if raw == nil {
		return
	}
	id := wire.MemberOf(raw, "id", '"')
	if raw[0] == '"' {
		id = raw
	}
	r.talk = wire.UnquoteOr(id, "")
	switch {
	case r.talk == "":
		r.Fail(wire.BadRequest(field, "`conversation` must be the id of one, or an object with "+
			"`id`"))
	case r.previous != "":
		bad := wire.BadRequest("previous_response_id", "Mutually exclusive parameters: "+
			"'previous_response_id' and 'conversation'. A request goes on from one of them.")
		bad.Code = "mutually_exclusive_parameters"
		r.Fail(bad)
	}
	r.record.Conversation = &ConversationID{r.talk}
}

// The values of `truncation`: what is too long for the model is refused, or loses its beginning.
const (
	truncateNever = "disabled"
	truncateAuto  = "auto"
)

func (r *responseFields) decodeTruncation() {
	r.record.Truncation = truncateNever
	v := r.OptString("truncation")
	switch {
	case v == nil:
	case *v == truncateNever, *v == truncateAuto:
		r.record.Truncation = *v
	default:
		r.Fail(wire.BadRequest("truncation", "`truncation` must be auto or disabled, got %q",
			wire.Clip(*v)))
	}
}

// includable are the values of `include`. All but one ask for parts of items that hosted tools
// make, of which there are none; reasoning is in the clear already.
var includable = []string{"message.output_text.logprobs", "reasoning.encrypted_content",
	"file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
	"message.input_image.image_url", "computer_call_output.output.image_url",
	"code_interpreter_call.outputs"}

// decodeLogprobs reads `include` and top_logprobs, which chat checks.
func (r *responseFields) decodeLogprobs() {
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
	if v := r.OptInt("top_logprobs"); v != nil {
		if *v < 0 {
			r.Fail(wire.BadRequest("top_logprobs", "`top_logprobs` must be at least 0, got %d", *v))
		}
		r.record.TopLogprobs = int(*v)
		logprobs = logprobs || *v > 0
	}
	if !logprobs {
		return
	}
	shown, bad := generate.CountLogprobs("top_logprobs", int64(r.record.TopLogprobs), r.m)
	r.Fail(bad)
	r.SetLogprobs(shown)
}

// decodeReasoning reads `reasoning`. Summaries are not made: what the model thought is there
// itself.
func (r *responseFields) decodeReasoning() {
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
			return r.SetReasoningEffort("reasoning.effort", text)
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
func (r *responseFields) decodeText() {
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

// decodeFormat reads text.format, whose schema stands beside its type.
func (r *responseFields) decodeFormat(at wire.Path, raw []byte) *wire.Error {
	if raw[0] != '{' {
		return at.Bad("must be an object, got %s", wire.Describe(raw))
	}
	r.record.Text.Format = bytes.Clone(raw)
	c := constrain.Spec{Kind: constrain.JSONObject}
	switch kind := wire.TypeOf(raw); kind {
	case "text":
		return nil
	case "json_object":
	case "json_schema":
		c = generate.FormatSchema(r.Fields, string(at), at, raw)
	default:
		return at.Member("type").Bad("must be text, json_object or json_schema, got %q",
			wire.Clip(kind))
	}
	r.SetResponseFormat(r.Fields, string(at), c)
	return nil
}

// decodeTools reads tools and tool_choice, whose functions stand beside their types.
func (r *responseFields) decodeTools() {
	rec := &r.record
	rec.Tools, rec.ToolChoice = []byte("[]"), []byte(`"auto"`)
	r.Parallel = r.OptBool("parallel_tool_calls", true)
	rec.ParallelToolCalls = r.Parallel
	if raw := r.Array("tools"); raw != nil {
		rec.Tools = bytes.Clone(raw)
		tools, bad := r.functions("tools", "", raw)
		r.Fail(bad)
		if r.Err == nil && len(tools) > 0 {
			r.Fail(r.SetTools(tools))
		}
	}
	raw := r.Value("tool_choice")
	if raw != nil {
		rec.ToolChoice = bytes.Clone(raw)
	}
	switch {
	case r.Tools == nil && string(raw) == `"auto"`: // clients say what is so anyway
	case raw == nil || raw[0] != '{':
		r.Fail(r.ChooseByWord(raw, r.Tools, r.m))
	case r.Tools == nil:
		r.Fail(generate.ToolsMissing())
	default:
		r.Fail(r.decodeChoice(raw))
	}
}

// functions are the tools of a list, with those of namespaces, {"type":"namespace","name":…,
// "tools":[…]}, which are not nested. A search of the web is left out, as in vLLM: Codex offers it
// to every model, and no answer needs it.
func (r *responseFields) functions(at wire.Path, space string, list []byte) ([]generate.Tool,
	*wire.Error) {
	var tools []generate.Tool
	bad := wire.EachElement(list, func(i int, raw []byte) *wire.Error {
		at := at.Index(i)
		switch kind := wire.TypeOf(raw); {
		case space != "":
		case strings.HasPrefix(kind, "web_search"):
			return nil
		case kind == "namespace":
			name := wire.UnquoteOr(wire.MemberOf(raw, "name", '"'), "")
			if name == "" {
				return at.Member("name").Bad("must be a string that is not empty")
			}
			list := wire.MemberOf(raw, "tools", '[')
			if list == nil {
				return at.Member("tools").Bad("must be a list of tools")
			}
			within, bad := r.functions(at.Member("tools"), name, list)
			tools = append(tools, within...)
			return bad
		}
		raw, bad := nested(at, space, raw)
		if bad != nil {
			return bad
		}
		t := generate.NewTool(raw)
		if space != "" {
			if r.namespaces == nil {
				r.namespaces = map[string]string{}
			}
			r.namespaces[t.Name] = space
		}
		tools = append(tools, t)
		return nil
	})
	return tools, bad
}

// nested writes a flat tool {"type":"function","name":…} of a namespace, "" for none, as chat
// templates know it, {"type":"function","function":{"name":…}}. Tools that the provider runs are
// refused by name.
func nested(at wire.Path, space string, raw []byte) ([]byte, *wire.Error) {
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
			if name = raw[0] == '"'; name {
				raw = wire.AppendString(nil, generate.FlatName(space, wire.Unquote(raw)))
			}
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
	case kind == "custom":
		return nil, generate.RefuseCustom(at, raw)
	case kind != "function":
		return nil, at.Bad("of type %q is not supported by this server: it has no tools of its "+
			"own, and takes functions", wire.Clip(kind))
	case !name:
		return nil, at.Member("name").Bad("must be a string")
	}
	b := append([]byte(`{"type":"function","function":`), inner...)
	return append(b, "}}"...), nil
}

// decodeChoice reads {"type":"function","name":…} and
// {"type":"allowed_tools","mode":…,"tools":[…]}.
func (r *responseFields) decodeChoice(raw []byte) *wire.Error {
	at := wire.Path("tool_choice")
	function := func(at wire.Path, raw []byte) (string, *wire.Error) {
		raw, bad := nested(at, "", raw)
		if bad != nil {
			return "", bad
		}
		return generate.NewTool(raw).Name, nil
	}
	switch kind := wire.TypeOf(raw); kind {
	case "function":
		name, bad := function(at, raw)
		if bad != nil {
			return bad
		}
		return r.ChooseOne(name, r.Tools)
	case "custom":
		return generate.RefuseCustom(at, raw)
	case "allowed_tools":
		list := wire.MemberOf(raw, "tools", '[')
		if list == nil {
			return at.Member("tools").Bad("must be a list of tools")
		}
		var names []string
		if bad := wire.EachElement(list, func(i int, raw []byte) *wire.Error {
			name, bad := function(at.Member("tools").Index(i), raw)
			names = append(names, name)
			return bad
		}); bad != nil {
			return bad
		}
		return r.ChooseAmong(at, wire.UnquoteOr(wire.MemberOf(raw, "mode", '"'), ""), names,
			r.Tools, r.m)
	default:
		return at.Bad("of type %s is not supported by this server: it must be none, auto, "+
			"required, a function or allowed_tools",
			wire.Clip(string(wire.OrNull(wire.MemberOf(raw, "type", '"')))))
	}
}

// inputList is the input as a JSON array.
func (r *responseRequest) inputList() []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for i := range r.input {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(generate.AppendItem(nil, &r.input[i]))
	}
	b.WriteByte(']')
	return b.Bytes()
}

// decodeMetadata reads `metadata`: at most 16 pairs of texts.
func decodeMetadata(f *wire.Fields) []byte {
	const field = "metadata"
	raw := f.Object(field)
	if raw == nil {
		return []byte("{}")
	}
	n := 0
	f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		n++
		switch {
		case n > 16:
			return wire.BadRequest(field, "`metadata` has more than 16 pairs")
		case len([]rune(key)) > 64:
			return wire.BadRequest(field, "`metadata` has a key longer than 64 characters: %s",
				wire.Clip(key))
		case raw[0] != '"':
			return wire.BadRequest(field, "`metadata.%s` must be a string, got %s", wire.Clip(key),
				wire.Describe(raw))
		case len([]rune(wire.Unquote(raw))) > 512:
			return wire.BadRequest(field, "`metadata.%s` is longer than 512 characters",
				wire.Clip(key))
		}
		return nil
	}))
	return bytes.Clone(raw)
}
