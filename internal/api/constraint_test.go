package api

import (
	"testing"

	"github.com/eagleray/eagleray/internal/api/openai"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// TestConstraintFields: every field that states a constraint reaches the engine as what it says.
func TestConstraintFields(t *testing.T) {
	const schema = `{"properties":{"a":{}}}`
	json := constrain.Spec{Kind: constrain.JSONSchema, Text: schema, Closed: true}
	open, compact, anyOrder := json, json, json
	open.Closed, compact.Compact, anyOrder.AnyOrder = false, true, true
	for fields, want := range map[string]constrain.Spec{
		`"response_format":{"type":"text"}`:        {},
		`"response_format":{"type":"json_object"}`: {Kind: constrain.JSONObject},
		`"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":` + schema +
			`}}`: json,
		`"response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":` + schema +
			`}}`: json,
		`"response_format":{"type":"json_schema","json_schema":{"strict":false,"schema":` + schema +
			`}}`: open,
		`"response_format":{"type":"json_schema","json_schema":{"schema":` + schema +
			`,"strict":false}}`: open,
		`"structured_outputs":{"json":` + schema +
			`}`: json,
		`"structured_outputs":{"json":"{\"properties\":{\"a\":{}}}"}`: json,
		`"structured_outputs":{"json":` + schema +
			`,"disable_any_whitespace":true}`: compact,
		`"structured_outputs":{"any_key_order":true,"json":` + schema +
			`}`: anyOrder,
		`"structured_outputs":{"regex":"a+","json":null}`:   {Kind: constrain.Regex, Text: "a+"},
		`"structured_outputs":{"choice":["a","b"]}`:         {Kind: constrain.Choice, Text: `["a","b"]`},
		`"structured_outputs":{"grammar":"root ::= \"a\""}`: {Kind: constrain.Grammar, Text: `root ::= "a"`},
		`"structured_outputs":{"json_object":true}`:         {Kind: constrain.JSONObject},
		`"guided_json":` + schema:                           json,
		`"guided_regex":"a"`:                                {Kind: constrain.Regex, Text: "a"},
		`"guided_choice":["a"]`:                             {Kind: constrain.Choice, Text: `["a"]`},
		`"guided_grammar":"x"`:                              {Kind: constrain.Grammar, Text: "x"},
		`"guided_regex":"a","structured_outputs":{"regex":"a"}`: {Kind: constrain.Regex,
			Text: "a"},
	} {
		s := newServer(t)
		for path, prompt := range map[string]string{completionsPath: hi, openai.ChatPath: hiChat} {
			s.ok(t, path, "{"+prompt+","+fields+"}")
			if got := s.engine.last(t).Constraint; got != want {
				t.Errorf("%s: %+v, want %+v", fields, got, want)
			}
		}
	}
	s := newServer(t, hermesTemplate, func(o *Options) {
		o.Config.Server.Answers = config.Answers{CompactJSON: true, AnyKeyOrder: true}
	})
	for _, body := range []string{
		hiChat + `,"guided_json":` + schema, askTools + `,"tool_choice":"required"`,
		askTools + `,"tool_choice":"required","response_format":{"type":"json_object"}`,
	} {
		s.ok(t, openai.ChatPath, `{`+body+`}`)
		if c := s.engine.last(t).Constraint; c.Kind == constrain.None || !c.Compact || !c.AnyOrder {
			t.Errorf("%s: %+v", body, c)
		}
	}
}
