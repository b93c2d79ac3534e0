package schema_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/text/constrain"
	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/constrain/schema"
)

// compile makes a grammar as a server would.
func compile(text string, o schema.Options) (*cfg.Grammar, cfg.Sym, error) {
	g := cfg.New(regex.NewBuilder(1<<20), cfg.Greedy, 500_000)
	start, err := schema.Compile(text, g, o, schema.Limits{})
	return g, start, err
}

// TestCases compares the verdicts on the texts of testdata/cases.json, and the errors.
func TestCases(t *testing.T) {
	raw, err := os.ReadFile("testdata/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name           string
		Schema         json.RawMessage
		Valid, Invalid []string
		Code           string
		Pointer        *string
		AnyOrder       bool `json:"any_order"`
		Closed         bool
		Compact        bool
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			g, start, err := compile(string(c.Schema), schema.Options{Compact: c.Compact,
				Closed: c.Closed, AnyOrder: c.AnyOrder})
			if c.Code != "" {
				var e *cfg.Error
				if !errors.As(err, &e) || e.Code != c.Code || c.Pointer != nil &&
					e.Pointer != *c.Pointer {
					t.Errorf("error %v instead of %s", err, c.Code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// The texts as a matcher takes them, and as the rules derive them.
			compiled, err := constrain.Compile(constrain.Spec{Kind: constrain.JSONSchema,
				Text: string(c.Schema), Compact: c.Compact, Closed: c.Closed, AnyOrder: c.AnyOrder},
				byteVocabulary(), constrain.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			for valid, texts := range map[bool][]string{true: c.Valid, false: c.Invalid} {
				for _, text := range texts {
					if got := recognises(g, start, text); got != valid {
						t.Errorf("%s: derived is %v", text, got)
					}
					if got := matches(compiled, text); got != valid {
						t.Errorf("%s: matched is %v", text, got)
					}
				}
			}
		})
	}
}

// TestJSON has texts that are no schema.
func TestJSON(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "line 1, column 1: unexpected end",
		"{\n\"a\":1,}":               "line 2, column 7: expected a key in quotes after a comma",
		`{"a":1,"a":2}`:              `line 1, column 11: the key "a" stands twice in one object`,
		`{"a":tru}`:                  "line 1, column 6: unexpected character 't'",
		`[1,2`:                       "line 1, column 5: expected , or ] in an array",
		`{"const":"\ud800"}`:         `line 1, column 11: lone surrogate \ud800`,
		`{"const":"` + "\xff" + `"}`: "line 1, column 10: invalid UTF-8 in the string",
		"{\"const\":\"\x01\"}":       "line 1, column 11: control character 0x01 in a string",
		`{} x`:                       "line 1, column 4: data after the JSON object",
		`{"minimum":-}`:              "line 1, column 13: expected a digit",
		`"x"`:                        "a schema must be an object or a boolean",
		strings.Repeat("[", 100_000): "line 1, column 129: nested deeper than 128 levels",
		`{"enum":[` + strings.Repeat("0,", 300_000) + `0]}`: "line 1, column 500006: " +
			"the schema has too many values",
	} {
		_, _, err := compile(text, schema.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: error %v instead of %q", text, err, want)
		}
	}
}

// nested wraps a schema n times.
func nested(n int, before, after string) string {
	return strings.Repeat(before, n) + "true" + strings.Repeat(after, n)
}

// TestHostile has schemas that would take too long or too much if nothing was counted. Each ends
// with an error, or is small after all.
func TestHostile(t *testing.T) {
	repeat := func(n int, item func(i int) string) string {
		var l []string
		for i := range n {
			l = append(l, item(i))
		}
		return strings.Join(l, ",")
	}
	num := func(i int) string { b, _ := json.Marshal(i); return string(b) }
	for name, c := range map[string]struct {
		text string
		code string // "" for none
	}{
		"nested deep": {nested(100_000, `{"items":`, `}`), cfg.SchemaTooComplex},
		"nested not":  {nested(120, `{"not":`, `}`), ""},
		"references that double": {`{"$ref":"#/$defs/d40","$defs":{"d0":{"type":"integer"},` +
			repeat(40, func(i int) string {
				ref := `{"$ref":"#/$defs/d` + num(i) + `"}`
				return `"d` + num(i+1) +
					`":{"type":"object","required":["a","b"],"properties":{"a":` + ref + `,"b":` +
					ref + `}}`
			}) + `}}`, ""},
		"conditions that multiply": {`{"type":"object","allOf":[` + repeat(30, func(i int) string {
			return `{"anyOf":[{"required":["a` + num(i) + `"]},{"required":["b` + num(i) + `"]}]}`
		}) + `]}`, cfg.SchemaTooComplex},
		"keys that must exist": {`{"type":"object","allOf":[` + repeat(14, func(i int) string {
			return `{"not":{"additionalProperties":{"const":` + num(i) + `}}}`
		}) + `]}`, cfg.SchemaTooComplex},
		"one key that must exist": {`{"type":"object","allOf":[` + repeat(14, func(i int) string {
			return `{"minLength":` + num(i) + `,"not":{"additionalProperties":{"type":"null"}}}`
		}) + `]}`, ""},
		"references in a circle": {`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},` +
			`"b":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}}}`,
			cfg.SchemaInvalid},
		"many values": {`{"enum":[` + repeat(50_000, func(i int) string {
			return `"v` + num(i) + `"`
		}) + `]}`, ""},
		"many properties": {`{"properties":{` + repeat(20_000, func(i int) string {
			return `"p` + num(i) + `":{"type":"integer"}`
		}) + `}}`, ""},
		"large counts": {`{"type":"array","minItems":1000000000,"maxItems":1e300,` +
			`"items":{"minLength":900000000}}`, ""},
		"a large exponent": {`{"minimum":1e999999999}`, cfg.SchemaUnsupported},
		"many patterns": {`{"type":"object","patternProperties":{` + repeat(40, func(i int) string {
			return `"x.{` + num(i) + `}y":{"minimum":` + num(i) + `}`
		}) + `},"additionalProperties":false}`, cfg.SchemaTooComplex},
	} {
		began := time.Now()
		g, _, err := compile(c.text, schema.Options{})
		took := time.Since(began)
		if took > 20*time.Second {
			t.Errorf("%s: takes %v", name, took)
		}
		var e *cfg.Error
		switch {
		case c.code == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.code != "" && (!errors.As(err, &e) || e.Code != c.code):
			t.Errorf("%s: error %v instead of %s", name, err, c.code)
		case err == nil && g.Len() > 200_000:
			t.Errorf("%s: %d symbols", name, g.Len())
		}
	}
}
