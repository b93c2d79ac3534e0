package generate

import (
	"bytes"
	"cmp"
	"errors"
	"strings"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// setConstraint takes the constraint that a field states. There is one at most: two could only be
// obeyed by an answer that is within both. Clients for older and newer vLLM state one twice, in the
// fields of each.
func (s *Sampling) setConstraint(f *wire.Fields, field string, c constrain.Spec) {
	if s.constraint == c {
		return
	}
	if s.constraint.Kind != constrain.None {
		f.Fail(wire.BadRequest(field,
			"`%s` and `%s` cannot be used together: an answer has one constraint",
			s.constraintField, field))
		return
	}
	s.constraint, s.constraintField = c, field
}

// decodeConstraint reads the fields that keep an answer within a language: OpenAI's, vLLM's, and
// vLLM's older ones.
func (s *Sampling) decodeConstraint(f *wire.Fields) {
	s.decodeResponseFormat(f)
	s.decodeStructuredOutputs(f)
	for _, g := range []struct {
		field string
		Kind  constrain.Kind
	}{
		{"guided_json", constrain.JSONSchema},
		{"guided_regex", constrain.Regex},
		{"guided_choice", constrain.Choice},
		{"guided_grammar", constrain.Grammar},
	} {
		if raw := f.Value(g.field); raw != nil {
			s.setConstraint(f, g.field, specOf(f, g.field, g.Kind, raw))
		}
	}
	f.OptString("guided_decoding_backend") // there is one
	f.Unsupported("guided_whitespace_pattern")
}

// decodeResponseFormat reads OpenAI's field; type structural_tag is vLLM's.
func (s *Sampling) decodeResponseFormat(f *wire.Fields) {
	const field = "response_format"
	raw := f.Object(field)
	if raw == nil {
		return
	}
	kind := ""
	var schema []byte
	f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		switch {
		case key == "type" && raw[0] == '"':
			kind = wire.Unquote(raw)
		case key == "json_schema":
			schema = raw
		}
		return nil
	}))
	switch kind {
	case "text":
	case "json_object":
		s.SetResponseFormat(f, field, constrain.Spec{Kind: constrain.JSONObject})
	case "json_schema":
		at := wire.Path(field).Member("json_schema")
		s.SetResponseFormat(f, field, FormatSchema(f, field, at, schema))
	case "structural_tag":
		s.SetResponseFormat(f, field, constrain.Spec{Kind: constrain.StructuralTag,
			Text: string(raw)})
	default:
		f.Fail(wire.BadRequest(field,
			"`response_format.type` must be text, json_object, json_schema or structural_tag"))
	}
}

// SetResponseFormat takes the form of what is said to the user.
func (s *Sampling) SetResponseFormat(f *wire.Fields, field string, c constrain.Spec) {
	s.setConstraint(f, field, c)
	s.responseFormat = true
}

// FormatSchema reads an object with a schema, which stands at a place in a field. The name and the
// description are for the model's maker. Every schema is obeyed as strict ones are; keys that it
// leaves open are left out unless it is said not to be strict, as vLLM's first back end does it: a
// model that may add keys hardly ends.
func FormatSchema(f *wire.Fields, field string, at wire.Path, raw []byte) constrain.Spec {
	if raw == nil || raw[0] != '{' {
		f.Fail(wire.BadRequest(field, "`%s` must be an object with `schema`", at))
		return constrain.Spec{}
	}
	c := constrain.Spec{Kind: constrain.JSONSchema, Closed: true}
	f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		switch {
		case key == "strict" && string(raw) == "false":
			c.Closed = false
		case key != "schema":
		case isSchema(raw):
			c.Text = string(raw)
		default:
			return wire.BadRequest(field, "`%s.schema` must be a JSON Schema, got %s", at,
				wire.Describe(raw))
		}
		return nil
	}))
	if c.Text == "" {
		f.Fail(wire.BadRequest(field, "`%s` has no `schema`", at))
	}
	return c
}

func isSchema(raw []byte) bool { return raw[0] == '{' || raw[0] == 't' || raw[0] == 'f' }

// decodeStructuredOutputs reads vLLM's field.
func (s *Sampling) decodeStructuredOutputs(f *wire.Fields) {
	const field = "structured_outputs"
	raw := f.Object(field)
	if raw == nil {
		return
	}
	kinds := map[string]constrain.Kind{}
	for k := constrain.JSONSchema; k < constrain.Kinds; k++ {
		kinds[k.String()] = k
	}
	stated := false
	f.Fail(wire.EachMember(raw, func(key string, raw []byte) *wire.Error {
		if wire.IsNull(raw) {
			return nil
		}
		name := field + "." + key
		switch kind := kinds[key]; {
		case kind == constrain.JSONObject && string(raw) == "false":
		case kind != constrain.None:
			stated = true
			s.setConstraint(f, name, specOf(f, name, kind, raw))
		case key == "disable_any_whitespace":
			s.compactJSON = f.ParseBool(name, raw, false)
		case key == "any_key_order": // not vLLM's
			s.anyKeyOrder = f.ParseBool(name, raw, false)
		case key == "disable_fallback":
			f.ParseBool(name, raw, false) // there is nothing to fall back to
		case key == "disable_additional_properties" && string(raw) == "false":
		default:
			return wire.BadRequest(name, "`%s` is not supported by this server", name)
		}
		return nil
	}))
	if !stated {
		f.Fail(wire.BadRequest(field, "`structured_outputs` must have one of json, regex, choice, "+
			"grammar, json_object and structural_tag"))
	}
}

// specOf reads the value of a field that states a constraint of a kind. A JSON value may be given
// as itself or as its text.
func specOf(f *wire.Fields, field string, kind constrain.Kind, raw []byte) constrain.Spec {
	c := constrain.Spec{Kind: kind}
	text := raw[0] == '"'
	switch kind {
	case constrain.JSONObject:
		if !f.ParseBool(field, raw, true) {
			return constrain.Spec{}
		}
		return c
	case constrain.Choice:
		if raw[0] != '[' {
			f.Fail(wire.BadRequest(field, "`%s` must be a list of strings, got %s", field,
				wire.Describe(raw)))
			return c
		}
		if len(f.Strings(field, raw, f.Lim.Choices, f.Lim.StopBytes)) == 0 {
			f.Fail(wire.BadRequest(field, "`%s` must not be empty", field))
		}
	case constrain.JSONSchema, constrain.StructuralTag:
		c.Closed = kind == constrain.JSONSchema
		if !text && !isSchema(raw) {
			f.Fail(wire.BadRequest(field, "`%s` must be an object, or its text, got %s", field,
				wire.Describe(raw)))
		}
	default:
		if !text {
			f.Fail(wire.BadRequest(field, "`%s` must be a string, got %s", field,
				wire.Describe(raw)))
		}
	}
	c.Text = string(raw)
	if text {
		c.Text = wire.Unquote(raw)
	}
	if len(bytes.TrimSpace([]byte(c.Text))) == 0 {
		f.Fail(wire.BadRequest(field, "`%s` must not be empty", field))
	}
	return c
}

// constraintError is the answer to a request whose constraint cannot be enforced, nil for other
// errors.
func constraintError(r *Sampling, err error) *wire.Error {
	var wrong *constrain.Error
	if !errors.As(err, &wrong) {
		return nil
	}
	field, at := cmp.Or(wrong.Source, r.constraintField), wrong.Pointer
	if r.wrapped && wrong.Source == "" { // into a tag that the client has not written
		_, at, _ = strings.Cut(at, "/json_schema")
	}
	reason := wrong.Reason
	if at != "" {
		reason = "at " + at + ": " + reason
	}
	api := wire.BadRequest(field, "`%s`: %s", field, reason)
	if wrong.TooComplex {
		api.Message = "`" + field + "` is too complex: " + reason
	}
	api.Code = wrong.Code
	return api
}
