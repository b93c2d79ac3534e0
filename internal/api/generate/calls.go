package generate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/api/wire"
	"github.com/eagleray/eagleray/internal/sys/jsonx"
	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/output"
)

// constrainCalls chooses how calls are read, and makes the constraint of an answer that must call,
// that calls strictly, or that thinks before it keeps to a constraint of its own: c, which is the
// request's before.
func (s *Service) constrainCalls(ctx context.Context, req *Chat, c *constrain.Spec,
	o *output.Options) *wire.Error {
	forced := req.choice.forced()
	if forced && c.Kind != constrain.None {
		return wire.BadRequest(req.constraintField, "You can only either use constraints for "+
			"structured outputs or tools, not both.")
	}
	o.Single = o.Single || req.choice == oneTool
	if req.choice != noTools {
		o.Tools = s.Model.format
	}
	if forced {
		o.Tools = s.forcible(req, s.Model.format)
	}
	switch c.Kind {
	case constrain.JSONSchema, constrain.Choice, constrain.StructuralTag:
		if !json.Valid([]byte(c.Text)) {
			return nil // the engine says what is wrong
		}
	}
	own := *c
	var then output.Element
	switch {
	case forced, o.Tools != nil && o.Tools.HasTriggers() && anyStrict(req.Tools):
		tools, bad := callable(req, o.Tools)
		if bad != nil {
			return bad
		}
		if forced {
			then = o.Calls(tools)
		} else {
			then = o.FreeCalls(tools)
		}
		if c.Kind != constrain.None { // and no tool is forced
			then = output.AnyOf(o.Calls(tools), o.Content(elementOf(own)))
		}
		if req.constraintField == "" {
			req.constraintField = "tools"
		}
	case c.Kind == constrain.None:
		return nil
	case o.Tools != nil && o.Tools.HasEnvelope():
		tools, bad := callable(req, o.Tools)
		if bad != nil {
			return bad
		}
		then = output.AnyOf(o.Calls(tools), o.Content(elementOf(own)))
	case o.Reasoning == nil || o.State == output.Closed:
		return nil // the constraint is of all of the answer
	default:
		then = o.Content(elementOf(own))
	}
	req.wrapped = true
	c.Kind = constrain.StructuralTag
	c.Text = o.Constrain(then)
	if o.Tools == nil || !o.Tools.Styled() || s.enforceable(ctx, *c) {
		return nil
	}
	switch {
	case forced:
		tools, _ := callable(req, output.Listed) // which has been asked already
		o.Tools = s.forcible(req, nil)
		c.Text = o.Constrain(o.Calls(tools))
	case own.Kind != constrain.None:
		c.Text = o.Constrain(o.Content(elementOf(own)))
	default:
		*c = constrain.Spec{}
	}
	return nil
}

// enforceable is whether a constraint can be. Values without quotes cannot say all that a schema
// can.
func (s *Service) enforceable(ctx context.Context, c constrain.Spec) bool {
	var wrong *constrain.Error
	if s.Model.Grammars == nil {
		return true
	}
	_, err := s.Model.Grammars.Check(ctx, c)
	return !errors.As(err, &wrong) || wrong.Code != cfg.GrammarUnsupported
}

// forcible is how calls are written that the answer must have: as the model's family does, or as
// JSON.
func (s *Service) forcible(req *Chat, f *output.Format) *output.Format {
	if f != nil && f.HasEnvelope() {
		return f.For(func(text string) bool { return s.specials.match(text) == text })
	}
	if req.choice == oneTool {
		return output.Bare(req.allowed[0])
	}
	return output.Listed
}

func anyStrict(tools []Tool) bool {
	return slices.ContainsFunc(tools, func(t Tool) bool { return t.strict })
}

// callable are the tools that the answer may call, with what their arguments are: for a tool that
// is not strict, in an answer that may call it or not, any object, where the format can say that.
func callable(req *Chat, f *output.Format) ([]output.Tool, *wire.Error) {
	var list []output.Tool
	for i := range req.Tools {
		t := &req.Tools[i]
		if req.allowed != nil && !slices.Contains(req.allowed, t.Name) {
			continue
		}
		callable := output.Tool{Name: t.Name,
			Source: fmt.Sprintf("tools[%d].function.parameters", i)}
		switch {
		case req.choice == autoTools && !t.strict && !f.Styled():
			callable.Parameters = json.RawMessage(`{"type":"object"}`)
		case t.parameters == nil:
			callable.Parameters = noParameters
		default:
			var bad *wire.Error
			if callable.Parameters, bad = objectSchema(i, t.parameters); bad != nil {
				return nil, bad
			}
		}
		list = append(list, callable)
	}
	return list, nil
}

// noParameters is the schema of a function without any.
var noParameters = json.RawMessage(`{"type":"object","additionalProperties":false}`)

// objectSchema is the schema of the arguments of tool i, which are an object, whether it says so or
// not.
func objectSchema(i int, schema []byte) (json.RawMessage, *wire.Error) {
	for key, raw := range jsonx.Members(schema) {
		if key != "type" {
			continue
		}
		if string(raw) != `"object"` {
			return nil, wire.BadRequest("tools",
				"`tools[%d].function.parameters` must be a schema of type object, got type %s", i,
				wire.Clip(string(raw)))
		}
		if p := wire.MemberOf(schema, "properties", '{'); p != nil &&
			len(bytes.TrimSpace(p[1:])) == 1 && onlyMembers(schema, "type", "properties",
			"required", "title", "description",
			"$schema") {
			return noParameters, nil
		}
		return schema, nil
	}
	rest := bytes.TrimSpace(schema[1:])
	if rest[0] == '}' {
		return json.RawMessage(`{"type":"object"}`), nil
	}
	return append(json.RawMessage(`{"type":"object",`), rest...), nil
}

// onlyMembers is whether an object has no other members.
func onlyMembers(object []byte, names ...string) bool {
	for key := range jsonx.Members(object) {
		if !slices.Contains(names, key) {
			return false
		}
	}
	return true
}

// elementOf is a constraint as a part of a structural tag.
func elementOf(c constrain.Spec) output.Element {
	switch c.Kind {
	case constrain.JSONSchema:
		return output.Element{"type": "json_schema", "json_schema": json.RawMessage(c.Text)}
	case constrain.JSONObject:
		return output.Element{"type": "json_schema",
			"json_schema": json.RawMessage(`{"type":"object"}`)}
	case constrain.Regex:
		return output.Element{"type": "regex", "pattern": c.Text}
	case constrain.Choice:
		var list []output.Element
		for _, text := range jsonx.Elements([]byte(c.Text)) {
			list = append(list, output.Element{"type": "const_string", "value": wire.Unquote(text)})
		}
		return output.AnyOf(list...)
	case constrain.Grammar:
		return output.Element{"type": "grammar", "grammar": c.Text}
	}
	if format := wire.MemberOf([]byte(c.Text), "format", '{'); format != nil {
		// As it was written: schemas in it have their keys in an order.
		return output.Element{"type": "sequence", "elements": []json.RawMessage{format}}
	}
	return legacyTag([]byte(c.Text))
}

// legacyTag is vLLM's older form of a structural tag.
func legacyTag(text []byte) output.Element {
	var tags []output.Element
	for _, s := range jsonx.Elements(wire.MemberOf(text, "structures", '[')) {
		schema := wire.MemberOf(s, "schema", '{')
		if schema == nil {
			schema = []byte("{}")
		}
		tags = append(tags, output.Element{"type": "tag",
			"begin": wire.UnquoteOr(wire.MemberOf(s, "begin", '"'), ""),
			"content": output.Element{"type": "json_schema",
				"json_schema": json.RawMessage(schema)},
			"end": wire.UnquoteOr(wire.MemberOf(s, "end", '"'), "")})
	}
	return output.Element{"type": "triggered_tags", "tags": tags,
		"triggers": json.RawMessage(wire.MemberOf(text, "triggers", '['))}
}
