package chattemplate

import (
	"encoding/json"
	"strings"

	"github.com/eagleray/eagleray/internal/text/chattemplate/values"
)

// Messages prepares the messages of a chat request for a template, as vLLM does: each stays as the
// client sent it, keys in order, but for these. tool_calls[].function.arguments becomes the object
// its JSON text stands for (absent or empty: an empty object; not JSON: left as it is); tool_calls
// that are empty or null go away, so that templates that ask whether they are defined see none;
// content is text, or a list of parts that are checked to be text: joined with newlines for
// FormatString and in messages of tools, and for FormatOpenAI always a list, without parts where it
// is absent or null;
// reasoning, as answers have it, is given as reasoning_content too, as templates know it, and
// beside tool_calls without content as thinking: there gpt-oss's template shows the model what it
// thought, and nowhere else.
func Messages(raw []json.RawMessage, f Format) (values.Value, error) {
	list := make([]values.Value, len(raw))
	for i, text := range raw {
		v, err := values.FromJSON(text)
		if err != nil {
			return values.Value{}, values.Errorf("messages[%d]: %s", i, message(err))
		}
		if list[i], err = prepareMessage(v, f); err != nil {
			return values.Value{}, values.Errorf("messages[%d]: %s", i, message(err))
		}
	}
	return values.NewList(list), nil
}

// message is the text of an error of this package without its prefix.
func message(err error) string {
	if e, ok := err.(*values.Error); ok {
		return e.Msg
	}
	return err.Error()
}

func prepareMessage(v values.Value, f Format) (values.Value, error) {
	m, ok := v.AsMap()
	if !ok {
		return values.Value{}, values.Errorf("must be an object, not %s", v.TypeName())
	}
	role, ok := m.Get("role")
	if !ok || !role.IsString() {
		return values.Value{}, values.Errorf("role must be a string")
	}
	if role.Text == "tool" {
		f = FormatString // most templates know results of tools as text only
	}
	content, _ := m.Get("content")
	content, err := prepareContent(content, f)
	if err != nil {
		return values.Value{}, err
	}
	m.Set("content", content)
	if reasoning, ok := m.Get("reasoning"); ok && reasoning.IsString() {
		if _, ok := m.Get("reasoning_content"); !ok {
			m.Set("reasoning_content", reasoning)
		}
	}
	calls, ok := m.Get("tool_calls")
	if !ok {
		return m.Value(), nil
	}
	items, isList := calls.AsList()
	if !isList && !calls.IsNone() {
		return values.Value{}, values.Errorf("tool_calls must be an array, not %s",
			calls.TypeName())
	}
	if len(items) == 0 {
		return m.Without("tool_calls").Value(), nil
	}
	thought, ok := m.Get("reasoning_content")
	if _, set := m.Get("thinking"); ok && !set && thought.IsString() && content.IsString() &&
		content.Text == "" {
		m.Set("thinking", thought)
	}
	for i, call := range items {
		if err := parseArguments(call); err != nil {
			return values.Value{}, values.Errorf("tool_calls[%d]: %s", i, message(err))
		}
	}
	return m.Value(), nil
}

// prepareContent gives content the form of f: a text, or parts.
func prepareContent(content values.Value, f Format) (values.Value, error) {
	var parts []values.Value
	switch content.Kind {
	case values.KindString:
		if f == FormatString {
			return content, nil
		}
		parts = []values.Value{content}
	case values.KindMissing, values.KindNone:
	default:
		var ok bool
		if parts, ok = content.AsList(); !ok {
			return values.Value{}, values.Errorf("content must be a string or an array, not %s",
				content.TypeName())
		}
	}
	texts, list := make([]string, len(parts)), make([]values.Value, len(parts))
	for i, part := range parts {
		if part.IsString() {
			m := values.NewMap()
			m.Set("type", values.Str("text"))
			m.Set("text", part)
			part = m.Value()
		}
		m, ok := part.AsMap()
		if !ok {
			return values.Value{}, values.Errorf("content[%d] must be an object, not %s", i,
				part.TypeName())
		}
		kind, _ := m.Get("type")
		if !kind.IsString() {
			return values.Value{}, values.Errorf("content[%d].type must be a string", i)
		}
		if kind.Text != "text" {
			return values.Value{},
				values.Errorf("content[%d]: content parts of type %s are not supported, only text",
					i, values.Quote(kind.Text))
		}
		text, _ := m.Get("text")
		if !text.IsString() {
			return values.Value{}, values.Errorf("content[%d].text must be a string", i)
		}
		texts[i], list[i] = text.Text, part
	}
	if f == FormatOpenAI {
		return values.NewList(list), nil
	}
	return values.Str(strings.Join(texts, "\n")), nil
}

// parseArguments replaces the JSON text of a tool call's arguments by its value. The call was made
// by FromJSON for this request, so it may be changed in place.
func parseArguments(call values.Value) error {
	m, ok := call.AsMap()
	if !ok {
		return values.Errorf("must be an object, not %s", call.TypeName())
	}
	function, ok := m.Get("function")
	if !ok {
		return nil
	}
	fn, ok := function.AsMap()
	if !ok {
		return values.Errorf("function must be an object, not %s", function.TypeName())
	}
	arguments, _ := fn.Get("arguments")
	if !arguments.IsString() && !arguments.IsNone() && !arguments.IsUndefined() {
		return nil
	}
	if strings.TrimSpace(arguments.Text) == "" {
		fn.Set("arguments", values.NewMap().Value())
		return nil
	}
	if v, err := values.FromJSON([]byte(arguments.Text)); err == nil {
		fn.Set("arguments", v)
	}
	return nil
}
