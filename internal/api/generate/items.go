package generate

import (
	"encoding/json"
	"strings"

	"github.com/eagleray/eagleray/internal/api/call"
	"github.com/eagleray/eagleray/internal/api/wire"
)

// Reference is the kind of an item that stands for one of a stored response, by its id.
const Reference = "item_reference"

// Item is an item of a conversation of the Responses API, as it goes into the prompt. An
// answer's own items become these when a later request goes on from it.
type Item struct {
	Kind, ID string
	// Role and parts are those of a message; parts are also the text of reasoning, and the output
	// of a function.
	Role  string
	Parts []string
	// CallID, name and arguments are those of a call; callID is that of its output, too. Namespace
	// is that of the function, "" for none.
	CallID, Name, Arguments, Namespace string
}

// Size is the bytes of its texts.
func (t *Item) Size() int {
	n := len(t.Arguments)
	for _, text := range t.Parts {
		n += len(text)
	}
	return n
}

// idPrefixes are what the ids of items begin with.
var idPrefixes = map[string]string{"message": "msg_", "function_call": "fc_",
	"function_call_output": "fco_", "reasoning": "rs_", Reference: ""}

// DecodeInput reads `input`: a text, or a list of items. It may be left out where there is a
// conversation already.
func DecodeInput(f *wire.Fields, optional bool) []Item {
	const field = "input"
	raw := f.Value(field)
	switch {
	case raw == nil && optional:
	case raw == nil:
		f.Fail(wire.BadRequest(field, "`input` is required: a string, or a list of items"))
	case raw[0] == '"':
		return []Item{{Kind: "message", ID: call.NewItemID("msg_"), Role: "user",
			Parts: []string{wire.Unquote(raw)}}}
	case raw[0] != '[':
		f.Fail(wire.BadRequest(field, "`input` must be a string or a list of items, got %s",
			wire.Describe(raw)))
	default:
		items, bad := DecodeItems(field, raw)
		f.Fail(bad)
		if bad == nil && len(items) == 0 {
			f.Fail(wire.BadRequest(field, "`input` must not be empty"))
		}
		return items
	}
	return nil
}

// DecodeItems reads a list of items, which stands in a field.
func DecodeItems(field string, raw []byte) ([]Item, *wire.Error) {
	var items []Item
	bad := wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
		at := wire.Path(field).Index(i)
		if raw[0] != '{' {
			return at.Bad("must be an object, got %s", wire.Describe(raw))
		}
		t, bad := decodeItem(at, raw)
		items = append(items, t)
		return bad
	})
	return items, bad
}

// decodeItem reads one item.
func decodeItem(at wire.Path, raw []byte) (Item, *wire.Error) {
	var t Item
	members := map[string][]byte{}
	_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		if !wire.IsNull(raw) {
			members[key] = raw
		}
		return nil
	})
	text := func(key string, dst *string, needed bool) *wire.Error {
		raw := members[key]
		switch {
		case raw == nil && needed:
			return at.Member(key).Bad("is required")
		case raw == nil:
			return nil
		case raw[0] != '"':
			return at.Member(key).Bad("must be a string, got %s", wire.Describe(raw))
		}
		*dst = wire.Unquote(raw)
		return nil
	}
	first := func(list ...*wire.Error) *wire.Error {
		for _, bad := range list {
			if bad != nil {
				return bad
			}
		}
		return nil
	}
	if bad := first(text("type", &t.Kind, false), text("id", &t.ID, false)); bad != nil {
		return t, bad
	}
	switch {
	case t.Kind != "":
	case members["role"] != nil:
		t.Kind = "message"
	case t.ID != "" && len(members) == 1:
		t.Kind = Reference
	}
	prefix, known := idPrefixes[t.Kind]
	switch {
	case t.Kind == "":
		return t, at.Bad("has neither type nor role")
	case t.Kind == "custom_tool_call", t.Kind == "custom_tool_call_output":
		return t, at.Bad("of type %q is of a custom tool: %s", t.Kind, noCustomTools)
	case t.Kind == Reference && t.ID == "":
		return t, at.Member("id").Bad("is required")
	case !known:
		return t, at.Bad("of type %q is not supported by this server: it takes message, "+
			"function_call, function_call_output, reasoning and item_reference", wire.Clip(t.Kind))
	case t.ID == "":
		t.ID = call.NewItemID(prefix)
	case !wire.ValidID(t.ID):
		return t, at.Member("id").Bad("must be 1 to 128 visible ASCII characters")
	}
	var bad *wire.Error
	switch t.Kind {
	case "message":
		if bad := text("role", &t.Role, true); bad != nil {
			return t, bad
		}
		switch t.Role {
		case "user", "assistant", "system", "developer":
		default:
			return t, at.Member("role").Bad("must be user, assistant, system or developer, got %q",
				wire.Clip(t.Role))
		}
		t.Parts, bad = DecodeParts(at.Member("content"), members["content"])
	case "function_call":
		bad = first(text("call_id", &t.CallID, true), text("name", &t.Name, true),
			text("arguments", &t.Arguments, true), text("namespace", &t.Namespace, false))
	case "function_call_output":
		if bad = text("call_id", &t.CallID, true); bad == nil {
			t.Parts, bad = DecodeParts(at.Member("output"), members["output"])
		}
	case "reasoning":
		// The text itself, else what a summary keeps of it. What others encrypted says nothing
		// here.
		list, key := members["content"], "content"
		if list == nil || string(list) == "[]" {
			list, key = members["summary"], "summary"
		}
		if list != nil {
			t.Parts, bad = DecodeParts(at.Member(key), list)
		}
	}
	return t, bad
}

// DecodeParts reads a text, or a list of parts that are text.
func DecodeParts(at wire.Path, raw []byte) ([]string, *wire.Error) {
	switch {
	case raw == nil:
		return nil, at.Bad("is required")
	case raw[0] == '"':
		return []string{wire.Unquote(raw)}, nil
	case raw[0] != '[':
		return nil, at.Bad("must be a string or a list of parts, got %s", wire.Describe(raw))
	}
	var parts []string
	bad := wire.EachElement(raw, func(i int, raw []byte) *wire.Error {
		at := at.Index(i)
		if raw[0] != '{' {
			return at.Bad("must be an object, got %s", wire.Describe(raw))
		}
		kind := ""
		texts := map[string]string{}
		_ = wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
			if raw[0] == '"' {
				texts[key] = wire.Unquote(raw)
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
			return at.Bad("has type %q: only text is supported", wire.Clip(kind))
		}
		text, found := texts[key]
		if !found {
			return at.Member(key).Bad("must be a string")
		}
		parts = append(parts, text)
		return nil
	})
	return parts, bad
}

// AppendItem appends an item as the API shows it.
func AppendItem(b []byte, t *Item) []byte {
	b = wire.AppendString(append(b, `{"type":`...), t.Kind)
	b = wire.AppendString(append(b, `,"id":`...), t.ID)
	b = append(b, `,"status":"completed"`...)
	parts := func(kind string) {
		b = append(b, '[')
		for i, text := range t.Parts {
			b = append(wire.Comma(b, i), `{"type":"`...)
			b = append(append(b, kind...), `","text":`...)
			b = wire.AppendString(b, text)
			if kind == "output_text" {
				b = append(b, `,"annotations":[]`...)
			}
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	switch t.Kind {
	case "message":
		b = wire.AppendString(append(b, `,"role":`...), t.Role)
		b = append(b, `,"content":`...)
		kind := "input_text"
		if t.Role == "assistant" {
			kind = "output_text"
		}
		parts(kind)
	case "function_call":
		b = wire.AppendString(append(b, `,"call_id":`...), t.CallID)
		b = wire.AppendString(append(b, `,"name":`...), t.Name)
		if t.Namespace != "" {
			b = wire.AppendString(append(b, `,"namespace":`...), t.Namespace)
		}
		b = wire.AppendString(append(b, `,"arguments":`...), t.Arguments)
	case "function_call_output":
		b = wire.AppendString(append(b, `,"call_id":`...), t.CallID)
		b = append(b, `,"output":`...)
		if len(t.Parts) == 1 {
			b = wire.AppendString(b, t.Parts[0])
		} else {
			parts("input_text")
		}
	case "reasoning":
		b = append(b, `,"summary":[],"content":`...)
		parts("reasoning_text")
	}
	return append(b, '}')
}

// FlatName is what the model knows a function by that is in a namespace, "" for none: vLLM's.
func FlatName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "__" + name
}

// Dialogue turns items into the messages of a chat: what an assistant thought, said and called in
// one go is one message.
type Dialogue struct {
	messages []json.RawMessage
	// The assistant's message that is not in messages yet.
	reasoning, content []byte
	calls              []byte
	said               bool
	// lastRole and lastTexts are those of the last of the messages.
	lastRole  string
	lastTexts []string
}

// Add takes the next item.
func (d *Dialogue) Add(t *Item) {
	switch t.Kind {
	case "reasoning":
		if d.said || len(d.calls) > 0 {
			d.flush()
		}
		d.reasoning = append(d.reasoning, strings.Join(t.Parts, "")...)
		return
	case "function_call":
		d.calls = wire.Comma(d.calls, len(d.calls))
		d.calls = wire.AppendString(append(d.calls, `{"id":`...), t.CallID)
		d.calls = append(d.calls, `,"type":"function","function":{"name":`...)
		d.calls = wire.AppendString(d.calls, FlatName(t.Namespace, t.Name))
		d.calls = wire.AppendString(append(d.calls, `,"arguments":`...), t.Arguments)
		d.calls = append(d.calls, "}}"...)
		return
	case "message":
		if t.Role == "assistant" {
			if d.said && len(d.calls) == 0 {
				d.flush()
			}
			if len(d.content) > 0 { // the rest of it is behind calls
				d.content = append(d.content, '\n')
			}
			d.content, d.said = append(d.content, strings.Join(t.Parts, "")...), true
			return
		}
	}
	d.flush()
	role := t.Role
	switch {
	case t.Kind == "function_call_output":
		role = "tool"
	case role == "developer":
		role = "system" // the name that templates know
	}
	b := wire.AppendString([]byte(`{"role":`), role)
	if t.CallID != "" {
		b = wire.AppendString(append(b, `,"tool_call_id":`...), t.CallID)
	}
	b = append(b, `,"content":`...)
	d.lastRole, d.lastTexts = role, t.Parts
	if len(t.Parts) == 1 {
		b = wire.AppendString(b, t.Parts[0])
	} else {
		b = append(b, '[')
		for i, text := range t.Parts {
			b = wire.AppendString(append(wire.Comma(b, i), `{"type":"text","text":`...), text)
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	d.messages = append(d.messages, append(b, '}'))
}

// flush ends the assistant's message.
func (d *Dialogue) flush() {
	content, reasoning := string(d.content), string(d.reasoning)
	if !d.said && len(d.calls) == 0 && reasoning == "" {
		return
	}
	b := []byte(`{"role":"assistant","content":`)
	b = wire.AppendString(b, content)
	if reasoning != "" {
		// Templates know it by one name or the other.
		b = wire.AppendString(append(b, `,"reasoning":`...), reasoning)
		b = wire.AppendString(append(b, `,"reasoning_content":`...), reasoning)
	}
	if len(d.calls) > 0 {
		b = append(append(b, `,"tool_calls":[`...), d.calls...)
		b = append(b, ']')
	}
	d.messages = append(d.messages, append(b, '}'))
	d.lastRole, d.lastTexts = "assistant", []string{content}
	d.reasoning, d.content, d.calls, d.said = nil, nil, nil, false
}

// End puts the messages into a conversation.
func (d *Dialogue) End(c *Conversation) {
	d.flush()
	c.Messages, c.LastRole, c.LastTexts = d.messages, d.lastRole, d.lastTexts
}
