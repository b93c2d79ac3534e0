package openai

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/eagleray/eagleray/internal/text/constrain"
)

// setConstraint takes the constraint that a field states. There is one at most: two could only be
// obeyed by an answer that is within both.
func (s *sampling) setConstraint(f *fields, field string, c constrain.Spec) {
	if s.constraint.Kind != constrain.None {
		f.fail(badRequest(field, "`%s` and `%s` cannot be used together: an answer has one constraint",
			s.constraintField, field))
		return
	}
	s.constraint, s.constraintField = c, field
	s.constraint.Compact, s.constraint.AnyOrder = s.compactJSON, s.anyKeyOrder
}

// decodeConstraint reads the fields that keep an answer within a language: OpenAI's, vLLM's, and
// vLLM's older ones.
func (s *sampling) decodeConstraint(f *fields) {
	s.decodeResponseFormat(f)
	s.decodeStructuredOutputs(f)
	for _, g := range []struct {
		field string
		kind  constrain.Kind
	}{
		{"guided_json", constrain.JSONSchema},
		{"guided_regex", constrain.Regex},
		{"guided_choice", constrain.Choice},
		{"guided_grammar", constrain.Grammar},
	} {
		if raw := f.value(g.field); raw != nil {
			s.setConstraint(f, g.field, specOf(f, g.field, g.kind, raw))
		}
	}
	f.optString("guided_decoding_backend") // there is one
	f.unsupported("guided_whitespace_pattern")
}

// decodeResponseFormat reads OpenAI's field; type structural_tag is vLLM's.
func (s *sampling) decodeResponseFormat(f *fields) {
	const field = "response_format"
	raw := f.object(field)
	if raw == nil {
		return
	}
	kind := ""
	var schema []byte
	f.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		switch {
		case key == "type" && raw[0] == '"':
			kind = unquote(raw)
		case key == "json_schema":
			schema = raw
		}
		return nil
	}))
	switch kind {
	case "text":
	case "json_object":
		s.setConstraint(f, field, constrain.Spec{Kind: constrain.JSONObject})
	case "json_schema":
		s.setConstraint(f, field, formatSchema(f, schema))
	case "structural_tag":
		s.setConstraint(f, field, constrain.Spec{Kind: constrain.StructuralTag, Text: string(raw)})
	default:
		f.fail(badRequest(field,
			"`response_format.type` must be text, json_object, json_schema or structural_tag"))
	}
}

// formatSchema reads response_format.json_schema. The name and the description are for the model's
// maker. Every schema is obeyed as strict ones are; keys that it leaves open are left out unless it
// is said not to be strict, as vLLM's first back end does it: a model that may add keys hardly ends.
func formatSchema(f *fields, raw []byte) constrain.Spec {
	const field = "response_format"
	if raw == nil || raw[0] != '{' {
		f.fail(badRequest(field, "`response_format.json_schema` must be an object with `schema`"))
		return constrain.Spec{}
	}
	c := constrain.Spec{Kind: constrain.JSONSchema, Closed: true}
	f.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		switch {
		case key == "strict" && string(raw) == "false":
			c.Closed = false
		case key != "schema":
		case isSchema(raw):
			c.Text = string(raw)
		default:
			return badRequest(field, "`response_format.json_schema.schema` must be a JSON Schema, "+
				"got %s", describe(raw))
		}
		return nil
	}))
	if c.Text == "" {
		f.fail(badRequest(field, "`response_format.json_schema` has no `schema`"))
	}
	return c
}

func isSchema(raw []byte) bool { return raw[0] == '{' || raw[0] == 't' || raw[0] == 'f' }

// decodeStructuredOutputs reads vLLM's field.
func (s *sampling) decodeStructuredOutputs(f *fields) {
	const field = "structured_outputs"
	raw := f.object(field)
	if raw == nil {
		return
	}
	kinds := map[string]constrain.Kind{}
	for k := constrain.JSONSchema; k < constrain.Kinds; k++ {
		kinds[k.String()] = k
	}
	stated := false
	f.fail(eachMember(raw, func(key string, raw []byte) *apiError {
		if isNull(raw) {
			return nil
		}
		name := field + "." + key
		switch kind := kinds[key]; {
		case kind == constrain.JSONObject && string(raw) == "false":
		case kind != constrain.None:
			stated = true
			s.setConstraint(f, name, specOf(f, name, kind, raw))
		case key == "disable_any_whitespace":
			s.compactJSON = f.parseBool(name, raw, false)
		case key == "any_key_order": // not vLLM's
			s.anyKeyOrder = f.parseBool(name, raw, false)
		case key == "disable_fallback":
			f.parseBool(name, raw, false) // there is nothing to fall back to
		case key == "disable_additional_properties" && string(raw) == "false":
		default:
			return badRequest(name, "`%s` is not supported by this server", name)
		}
		return nil
	}))
	if !stated {
		f.fail(badRequest(field, "`structured_outputs` must have one of json, regex, choice, "+
			"grammar, json_object and structural_tag"))
	}
	s.constraint.Compact, s.constraint.AnyOrder = s.compactJSON, s.anyKeyOrder
}

// specOf reads the value of a field that states a constraint of a kind. A JSON value may be given as
// itself or as its text.
func specOf(f *fields, field string, kind constrain.Kind, raw []byte) constrain.Spec {
	c := constrain.Spec{Kind: kind}
	text := raw[0] == '"'
	switch kind {
	case constrain.JSONObject:
		if !f.parseBool(field, raw, true) {
			return constrain.Spec{}
		}
		return c
	case constrain.Choice:
		if raw[0] != '[' {
			f.fail(badRequest(field, "`%s` must be a list of strings, got %s", field, describe(raw)))
			return c
		}
		if len(f.strings(field, raw, f.lim.Choices, f.lim.StopBytes)) == 0 {
			f.fail(badRequest(field, "`%s` must not be empty", field))
		}
	case constrain.JSONSchema, constrain.StructuralTag:
		c.Closed = kind == constrain.JSONSchema
		if !text && !isSchema(raw) {
			f.fail(badRequest(field, "`%s` must be an object, or its text, got %s", field,
				describe(raw)))
		}
	default:
		if !text {
			f.fail(badRequest(field, "`%s` must be a string, got %s", field, describe(raw)))
		}
	}
	c.Text = string(raw)
	if text {
		c.Text = unquote(raw)
	}
	if len(bytes.TrimSpace([]byte(c.Text))) == 0 {
		f.fail(badRequest(field, "`%s` must not be empty", field))
	}
	return c
}

// constraintError is the answer to a request whose constraint cannot be enforced, nil for other
// errors.
func constraintError(r *sampling, err error) *apiError {
	var wrong *constrain.Error
	if !errors.As(err, &wrong) {
		return nil
	}
	field, at := r.constraintField, wrong.Pointer
	if r.wrapped {
		field, at = r.unwrap(at)
	}
	reason := wrong.Reason
	if at != "" {
		reason = "at " + at + ": " + reason
	}
	api := badRequest(field, "`%s`: %s", field, reason)
	if wrong.TooComplex {
		api.message = "`" + field + "` is too complex: " + reason
	}
	return api
}

// unwrap finds the field that a place in the structural tag was made of, and the place in it.
func (r *sampling) unwrap(pointer string) (field, at string) {
	whole, at, found := strings.Cut(pointer, "/json_schema")
	_, tag, _ := strings.Cut(whole, "/tags/")
	tag, _, _ = strings.Cut(tag, "/")
	if i, err := strconv.Atoi(tag); err == nil && found && i < len(r.toolOfTag) {
		return fmt.Sprintf("tools[%d].function.parameters", r.toolOfTag[i]), at
	}
	return r.constraintField, at
}
