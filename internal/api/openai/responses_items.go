package openai

import (
	"encoding/json"
	"strings"

	"github.com/eagleray/eagleray/internal/ops/store"
)

// inputItem is an item of a conversation of the Responses API, as it goes into the prompt. An
// answer's own items become these when a later request goes on from it.
type inputItem struct {
	kind, id string
	// role and parts are those of a message; parts are also the text of reasoning, and the output of
	// a function.
	role  string
	parts []string
	// callID, name and arguments are those of a call; callID is that of its output, too.
	callID, name, arguments string
}

// idPrefixes are what the ids of items begin with.
var idPrefixes = map[string]string{"message": "msg_", "function_call": "fc_",
	"function_call_output": "fco_", "reasoning": "rs_"}

// decodeInput reads `input`: a text, or a list of items.
func decodeInput(f *fields) []inputItem {
	const field = "input"
	raw := f.value(field)
	switch {
	case raw == nil:
		f.fail(badRequest(field, "`input` is required: a string, or a list of items"))
	case raw[0] == '"':
		return []inputItem{{kind: "message", id: newItemID("msg_"), role: "user",
			parts: []string{unquote(raw)}}}
	case raw[0] != '[':
		f.fail(badRequest(field, "`input` must be a string or a list of items, got %s",
			describe(raw)))
	default:
		items, bad := decodeItems(field, raw)
		f.fail(bad)
		if bad == nil && len(items) == 0 {
			f.fail(badRequest(field, "`input` must not be empty"))
		}
		return items
	}
	return nil
}

// newItemID makes the id of an item.
func newItemID(prefix string) string { return prefix + store.NewID() }

// itemID is newItemID for an answer that may have an origin.
func (o *origin) itemID(prefix string) string {
	if o == nil {
		return newItemID(prefix)
	}
	return prefix + o.id()
}

func decodeItems(field string, raw []byte) ([]inputItem, *apiError) {
	var items []inputItem
	bad := eachElement(raw, func(i int, raw []byte) *apiError {
		at := path(field).index(i)
		if raw[0] != '{' {
			return at.bad("must be an object, got %s", describe(raw))
		}
		t, bad := decodeItem(at, raw)
		items = append(items, t)
		return bad
	})
	return items, bad
}

// decodeItem reads one item.
func decodeItem(at path, raw []byte) (inputItem, *apiError) {
	var t inputItem
	members := map[string][]byte{}
	_ = eachMember(raw, func(key string, raw []byte) *apiError {
		if !isNull(raw) {
			members[key] = raw
		}
		return nil
	})
	text := func(key string, dst *string, needed bool) *apiError {
		raw := members[key]
		switch {
		case raw == nil && needed:
			return at.member(key).bad("is required")
		case raw == nil:
			return nil
		case raw[0] != '"':
			return at.member(key).bad("must be a string, got %s", describe(raw))
		}
		*dst = unquote(raw)
		return nil
	}
	first := func(list ...*apiError) *apiError {
		for _, bad := range list {
			if bad != nil {
				return bad
			}
		}
		return nil
	}
	if bad := first(text("type", &t.kind, false), text("id", &t.id, false)); bad != nil {
		return t, bad
	}
	if t.kind == "" && members["role"] != nil {
		t.kind = "message"
	}
	prefix, known := idPrefixes[t.kind]
	switch {
	case t.kind == "":
		return t, at.bad("has neither type nor role")
	case !known:
		return t, at.bad("of type %q is not supported by this server: it takes message, "+
			"function_call, function_call_output and reasoning", clip(t.kind))
	case t.id == "":
		t.id = newItemID(prefix)
	case !validID(t.id):
		return t, at.member("id").bad("must be 1 to 128 visible ASCII characters")
	}
	var bad *apiError
	switch t.kind {
	case "message":
		if bad := text("role", &t.role, true); bad != nil {
			return t, bad
		}
		switch t.role {
		case "user", "assistant", "system", "developer":
		default:
			return t, at.member("role").bad("must be user, assistant, system or developer, got %q",
				clip(t.role))
		}
		t.parts, bad = decodeParts(at.member("content"), members["content"])
	case "function_call":
		bad = first(text("call_id", &t.callID, true), text("name", &t.name, true),
			text("arguments", &t.arguments, true))
	case "function_call_output":
		if bad = text("call_id", &t.callID, true); bad == nil {
			t.parts, bad = decodeParts(at.member("output"), members["output"])
		}
	case "reasoning":
		// The text itself, else what a summary keeps of it. What others encrypted says nothing here.
		list, key := members["content"], "content"
		if list == nil || string(list) == "[]" {
			list, key = members["summary"], "summary"
		}
		if list != nil {
			t.parts, bad = decodeParts(at.member(key), list)
		}
	}
	return t, bad
}

// decodeParts reads a text, or a list of parts that are text.
func decodeParts(at path, raw []byte) ([]string, *apiError) {
	switch {
	case raw == nil:
		return nil, at.bad("is required")
	case raw[0] == '"':
		return []string{unquote(raw)}, nil
	case raw[0] != '[':
		return nil, at.bad("must be a string or a list of parts, got %s", describe(raw))
	}
	var parts []string
	bad := eachElement(raw, func(i int, raw []byte) *apiError {
		at := at.index(i)
		if raw[0] != '{' {
			return at.bad("must be an object, got %s", describe(raw))
		}
		kind := ""
		texts := map[string]string{}
		_ = eachMember(raw, func(key string, raw []byte) *apiError {
			if raw[0] == '"' {
				texts[key] = unquote(raw)
			}
			return nil
		})
		kind = texts["type"]
		key := "text"
		switch kind {
		case "input_text", "output_text", "text", "summary_text", "reasoning_text":
		case "refusal":
			key = "refusal"
		default:
			return at.bad("has type %q: only text is supported", clip(kind))
		}
		text, found := texts[key]
		if !found {
			return at.member(key).bad("must be a string")
		}
		parts = append(parts, text)
		return nil
	})
	return parts, bad
}

// appendItem appends an item as the API shows it.
func appendItem(b []byte, t *inputItem) []byte {
	b = appendString(append(b, `{"type":`...), t.kind)
	b = appendString(append(b, `,"id":`...), t.id)
	b = append(b, `,"status":"completed"`...)
	parts := func(kind string) {
		b = append(b, '[')
		for i, text := range t.parts {
			b = append(comma(b, i), `{"type":"`...)
			b = append(append(b, kind...), `","text":`...)
			b = appendString(b, text)
			if kind == "output_text" {
				b = append(b, `,"annotations":[]`...)
			}
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	switch t.kind {
	case "message":
		b = appendString(append(b, `,"role":`...), t.role)
		b = append(b, `,"content":`...)
		if t.role == "assistant" {
			parts("output_text")
		} else {
			parts("input_text")
		}
	case "function_call":
		b = appendString(append(b, `,"call_id":`...), t.callID)
		b = appendString(append(b, `,"name":`...), t.name)
		b = appendString(append(b, `,"arguments":`...), t.arguments)
	case "function_call_output":
		b = appendString(append(b, `,"call_id":`...), t.callID)
		b = append(b, `,"output":`...)
		b = appendString(b, strings.Join(t.parts, ""))
	case "reasoning":
		b = append(b, `,"summary":[],"content":`...)
		parts("reasoning_text")
	}
	return append(b, '}')
}

// dialogue turns items into the messages of a chat: what an assistant thought, said and called in
// one go is one message.
type dialogue struct {
	messages []json.RawMessage
	// The assistant's message that is not in messages yet.
	reasoning, content string
	calls              []byte
	said               bool
}

func (d *dialogue) add(t *inputItem) {
	switch t.kind {
	case "reasoning":
		if d.said || len(d.calls) > 0 {
			d.flush()
		}
		d.reasoning += strings.Join(t.parts, "")
		return
	case "function_call":
		d.calls = comma(d.calls, len(d.calls))
		d.calls = appendString(append(d.calls, `{"id":`...), t.callID)
		d.calls = appendString(append(d.calls, `,"type":"function","function":{"name":`...), t.name)
		d.calls = appendString(append(d.calls, `,"arguments":`...), t.arguments)
		d.calls = append(d.calls, "}}"...)
		return
	case "message":
		if t.role == "assistant" {
			if d.said || len(d.calls) > 0 {
				d.flush()
			}
			d.content, d.said = strings.Join(t.parts, ""), true
			return
		}
	}
	d.flush()
	role := t.role
	switch {
	case t.kind == "function_call_output":
		role = "tool"
	case role == "developer":
		role = "system" // the name that templates know
	}
	b := appendString([]byte(`{"role":`), role)
	if t.callID != "" {
		b = appendString(append(b, `,"tool_call_id":`...), t.callID)
	}
	b = append(b, `,"content":`...)
	if len(t.parts) == 1 {
		b = appendString(b, t.parts[0])
	} else {
		b = append(b, '[')
		for i, text := range t.parts {
			b = appendString(append(comma(b, i), `{"type":"text","text":`...), text)
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	d.messages = append(d.messages, append(b, '}'))
}

// flush ends the assistant's message.
func (d *dialogue) flush() {
	if !d.said && len(d.calls) == 0 && d.reasoning == "" {
		return
	}
	b := []byte(`{"role":"assistant","content":`)
	b = appendString(b, d.content)
	if d.reasoning != "" {
		// Templates know it by one name or the other.
		b = appendString(append(b, `,"reasoning":`...), d.reasoning)
		b = appendString(append(b, `,"reasoning_content":`...), d.reasoning)
	}
	if len(d.calls) > 0 {
		b = append(append(b, `,"tool_calls":[`...), d.calls...)
		b = append(b, ']')
	}
	d.messages = append(d.messages, append(b, '}'))
	d.reasoning, d.content, d.calls, d.said = "", "", nil, false
}

// list ends the conversation: it is a JSON array of messages.
func (d *dialogue) list() []byte {
	d.flush()
	b := []byte{'['}
	for i, m := range d.messages {
		b = append(comma(b, i), m...)
	}
	return append(b, ']')
}
