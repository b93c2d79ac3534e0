package constrain

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
)

// admits says whether a constraint matches a text, of which special tokens are written as such, and
// how much of it is admitted.
func admits(t *testing.T, c *Compiled, v *Vocabulary, text string, spell bool) (bool, string) {
	t.Helper()
	m := c.Matcher()
	single := map[byte]int32{}
	for id, b := range v.tokens {
		if len(b) == 1 && v.ordinary(int32(id)) {
			single[b[0]] = int32(id)
		}
	}
	for i := 0; i < len(text); {
		id, n := single[text[i]], 1
		for s, special := range v.special {
			if !spell && strings.HasPrefix(text[i:], s) {
				id, n = special, len(s)
			}
		}
		if !m.Accept(id) {
			return false, text[:i]
		}
		i += n
	}
	return m.Accepting(), text
}

func tagOf(format string) Spec {
	return Spec{Kind: StructuralTag, Text: `{"type":"structural_tag","format":` + format + `}`}
}

const (
	noteSchema = `{"type":"json_schema","closed":true,"json_schema":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}`
	anyText    = `{"type":"any_text"}`
	tagF       = `{"type":"tag","begin":"<tool>f:","content":` + noteSchema + `,"end":"</tool>"}`
	tagG       = `{"begin":"<tool>g:","content":{"type":"regex","pattern":"[ab]+"},"end":["</tool>","!"]}`
)

func TestStructuralTags(t *testing.T) {
	v := small()
	for _, tt := range []struct {
		name, format string
		yes, no      []string
	}{
		{"const", `{"type":"const_string","value":"ab<tool>c"}`, []string{"ab<tool>c"},
			[]string{"ab<tool>", "ab<tool>cc", "b"}},
		{"any text", anyText, []string{"", "x <y> é", "a<tool>b"}, []string{"a<end>"}},
		{"excludes", `{"type":"any_text","excludes":["no"]}`, []string{"n o"}, []string{"a no b"}},
		{"tag", tagF, []string{`<tool>f:{"a":1}</tool>`, "<tool>f:{\n \"a\": 1}</tool>"},
			[]string{`<tool>f:{"a":1}`, `<tool>f:{"a":"1"}</tool>`, `x<tool>f:{"a":1}</tool>`,
				`<tool>f:{"a":1,"b":2}</tool>`}},
		{"any text in a tag", `{"type":"tag","begin":"","content":` + anyText +
			`,"end":["</tool>","done"]}`, []string{"</tool>", "done", "ab </too done",
			"<tool>x</tool>"}, []string{"", "abc", "done.", "</tool>x"}},
		{"reasoning", `{"type":"sequence","elements":[{"type":"tag","begin":"","content":` +
			anyText + `,"end":"</tool>"},{"type":"regex","pattern":"[ \\n]{0,4}"},` + noteSchema +
			`]}`, []string{`hm {"a":1} </tool>{"a":1}`, "</tool>\n\n{\"a\": 1}"},
			[]string{`{"a":1}`, `</tool>x{"a":1}`, `a</tool>`}},
		{"triggered", `{"type":"triggered_tags","triggers":["<tool>"],"tags":[` + tagF + `,` +
			tagG + `]}`, []string{"", "just so", `a <tool>f:{"a":1}</tool> b <tool>g:ab! c`,
			"<tool>g:a</tool><tool>g:b</tool>"}, []string{"a<tool>", "a<tool>h", "<tool>g:c!",
			`<tool>f:{"a":1}`}},
		{"triggered once", `{"type":"triggered_tags","stop_after_first":true,"triggers":["<tool>"],"tags":[` + tagG + `]}`,
			[]string{"", "b", "x<tool>g:a!"}, []string{"x<tool>g:a! ", "<tool>g:a!<tool>g:b!"}},
		{"triggered at least once",
			`{"type":"triggered_tags","at_least_one":true,"triggers":["<tool>"],"tags":[` + tagG +
				`]}`, []string{"<tool>g:a! b", "<tool>g:a!"}, []string{"", "b", "x<tool>g:a!"}},
		{"triggered in a tag", `{"type":"tag","begin":"(","content":{"type":"triggered_tags","triggers":["<tool>"],"tags":[` + tagG + `]},"end":")"}`,
			[]string{"()", "(a<tool>g:a! b)"}, []string{"(", "(a<tool>)", "())"}},
		{"triggers spelled", `{"type":"triggered_tags","triggers":["<f","<gg"],"tags":[{"begin":"<f>","content":` + noteSchema + `,"end":"</f>"},{"begin":"<gg=1>","content":` + anyText + `,"end":"$"}]}`,
			[]string{"<", "<g", `<<f>{"a":1}</f> <g <gg=1>any <f $.`}, []string{"<f", "<f ",
				"<gg=2>", `<f>{"a":1}`}},
		{"separated", `{"type":"tags_with_separator","separator":", ","at_least_one":true,"tags":[` + tagG + `]}`,
			[]string{"<tool>g:a!", "<tool>g:a!, <tool>g:b</tool>"}, []string{"", "<tool>g:a!,",
				"<tool>g:a!<tool>g:b!", "<tool>g:a!, "}},
		{"separated once", `{"type":"tags_with_separator","separator":"","stop_after_first":true,"tags":[` + tagG + `]}`,
			[]string{"", "<tool>g:a!"}, []string{"<tool>g:a!<tool>g:a!"}},
		{"or", `{"type":"or","elements":[{"type":"const_string","value":"x"},` + tagF + `]}`,
			[]string{"x", `<tool>f:{"a":1}</tool>`}, []string{"", "xx"}},
		{"optional", `{"type":"sequence","elements":[{"type":"optional","content":{"type":"const_string","value":"x"}},{"type":"const_string","value":"y"}]}`, []string{"xy", "y"}, []string{"x", ""}},
		{"repeat", `{"type":"repeat","min":2,"max":3,"content":{"type":"const_string","value":"x"}}`, []string{"xx", "xxx"}, []string{"x", "xxxx"}},
		{"plus", `{"type":"plus","content":{"type":"const_string","value":"x"}}`, []string{"x",
			"xxx"}, []string{"", "y"}},
		{"tokens", `{"type":"sequence","elements":[{"type":"token","token":"<tool>"},{"type":"tag","begin":"","content":{"type":"any_tokens","exclude_tokens":["<tool>"]},"end":{"type":"token","token":"</tool>"}}]}`,
			[]string{"<tool>ab</tool>"}, []string{"<tool>a<tool></tool>", "<tool>", "a"}},
		{"token triggers", `{"type":"token_triggered_tags","trigger_tokens":["<tool>"],"tags":[{"begin":{"type":"token","token":"<tool>"},"content":{"type":"const_string","value":"x"},"end":{"type":"token","token":"</tool>"}}]}`,
			[]string{"", "ab", "a<tool>x</tool>b<tool>x</tool>"}, []string{"<tool>", "<tool>y"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := Compile(tagOf(tt.format), v, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			for _, spell := range []bool{false, true} {
				if spell && strings.Contains(tt.format, "token") {
					continue
				}
				for _, text := range tt.yes {
					if ok, upto := admits(t, c, v, text, spell); !ok {
						t.Errorf("%q is refused after %q (spelled: %v)", text, upto, spell)
					}
				}
				for _, text := range tt.no {
					if ok, _ := admits(t, c, v, text, spell); ok && !strings.Contains(text,
						"<end>") {
						t.Errorf("%q is admitted (spelled: %v)", text, spell)
					}
				}
			}
			r := rand.New(rand.NewPCG(1, 1))
			for range 20 {
				wander(t, r, c, v, 40)
			}
		})
	}
}

// TestLegacyTags: vLLM's older form.
func TestLegacyTags(t *testing.T) {
	v := small()
	for _, key := range []string{`"type":"structural_tag","structures"`, `"tags"`} {
		c, err := Compile(Spec{Kind: StructuralTag, Text: `{` + key +
			`:[{"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f="]}`}, v,
			Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]bool{"a <f=a>12</f> b": true, "": true, "<f=b>": false,
			"<f=a>x</f>": false} {
			if ok, upto := admits(t, c, v, text, false); ok != want {
				t.Errorf("%q is admitted: %v (as far as %q)", text, ok, upto)
			}
		}
	}
}

func TestStructuralTagErrors(t *testing.T) {
	v := small()
	deep := strings.Repeat(`{"type":"optional","content":`, 100) + anyText + strings.Repeat("}",
		100)
	for _, tt := range []struct{ text, pointer, reason string }{
		{`[]`, "", "structural tag"},
		{`{"type":"x","format":{}}`, "/type", "structural_tag"},
		{`{}`, "", "format, or structures"},
		{tagOf(`{"type":"no_such"}`).Text, "/format/type", "no_such"},
		{tagOf(`{}`).Text, "/format/type", "has a type"},
		{tagOf(`{"type":"json_schema"}`).Text, "/format/json_schema", "no json_schema"},
		{tagOf(`{"type":"json_schema","style":"morse","json_schema":{}}`).Text, "/format/style",
			"morse"},
		{tagOf(`{"type":"json_schema","json_schema":{"type":"strin"}}`).Text,
			"/format/json_schema/type", "strin"},
		{tagOf(`{"type":"sequence","elements":[` + anyText + `,` + anyText + `]}`).Text,
			"/format/elements/0", "no end of its own"},
		{tagOf(`{"type":"regex","pattern":"("}`).Text, "/format/pattern", "offset"},
		{tagOf(`{"type":"triggered_tags","triggers":["<a"],"tags":[` + tagG + `]}`).Text,
			"/format/tags/0/begin", "none of the triggers"},
		{tagOf(`{"type":"triggered_tags","triggers":["<","<t"],"tags":[` + tagG + `]}`).Text,
			"/format/triggers/0", "beginning of another"},
		{tagOf(`{"type":"token","token":"<none>"}`).Text, "/format/token", "no special token"},
		{tagOf(`{"type":"token","token":1}`).Text, "/format/token", "no special token"},
		{tagOf(`{"type":"tag","begin":"a","content":` + anyText + `}`).Text, "/format/end",
			"has an end"},
		{tagOf(`{"type":"tag","begin":"a","end":"b"}`).Text, "/format/content", "has content"},
		{tagOf(`{"type":"repeat","min":2,"max":1,"content":` + tagF + `}`).Text, "/format", "max"},
		{tagOf(deep).Text, "", "within one another"},
	} {
		_, err := Compile(Spec{Kind: StructuralTag, Text: tt.text}, v, Limits{})
		e, ok := err.(*Error)
		if !ok || tt.pointer != "" && e.Pointer != tt.pointer || !strings.Contains(e.Error(),
			tt.reason) {
			t.Errorf("%.100s: %v, want %s at %s", tt.text, err, tt.reason, tt.pointer)
		}
		if ok && e.Code == "" {
			t.Errorf("%.100s: an error without a code", tt.text)
		}
	}
}

// FuzzStructuralTag: whatever the JSON, compiling ends, with a grammar or with an error of ours.
func FuzzStructuralTag(f *testing.F) {
	f.Add(tagOf(tagF).Text)
	f.Add(tagOf(`{"type":"triggered_tags","triggers":["<tool>"],"tags":[` + tagF + `,` + tagG +
		`]}`).Text)
	f.Add(`{"structures":[{"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f="]}`)
	v := small()
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) {
			t.Skip()
		}
		c, err := Compile(Spec{Kind: StructuralTag, Text: text}, v, Limits{Compile: 1 << 16,
			Symbols: 1 << 14})
		if err != nil {
			if e, ok := err.(*Error); !ok || e.Code == "" || e.Code == cfg.GrammarUnsupported {
				t.Fatalf("%v", err)
			}
			return
		}
		mask := make([]uint32, v.Words())
		c.Matcher().Mask(mask)
	})
}

// TestStyles: members between tags, texts as they are.
func TestStyles(t *testing.T) {
	v := small()
	const schema = `{"type":"object","$defs":{"c":{"enum":["red","blue",1]}},"properties":{` +
		`"s":{"type":"string","maxLength":9},"n":{"type":["integer","null"]},"o":{"anyOf":[{"type":"string"},{"type":"null"}]},"c":{"$ref":"#/$defs/c"}},"required":["s"]}`
	p := func(key, value string) string {
		return "<parameter=" + key + ">\n" + value +
			"\n</parameter>\n"
	}
	format := `{"type":"json_schema","style":"qwen_xml","json_schema":` + schema + `}`
	c, err := Compile(tagOf(format), v, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		p("s", ""): true, p("s", "a \"b\"\n"): true, p("s", "0123456789"): false,
		p("s", "</parameter"): false, "": false,
		p("s", "<é\n\n<"): true, p("s", "a</parameter>"): false,
		p("s", "x") + p("n", "12"): true, p("s", "x") + p("n", "null"): true,
		p("s", "x") + p("n", "x"): false, p("s", "x") + p("o", "free"): true,
		p("s", "x") + p("o", "null"): true, p("s", "x") + p("o", "{1"): true,
		p("s", "x") + p("c", "red"): true, p("s", "x") + p("c", "1"): true,
		p("s", "x") + p("c", "green"): false, p("n", "1") + p("s", "x"): false,
		p("s", "x") + p("z", "x"): false,
	} {
		if ok, upto := admits(t, c, v, text, false); ok != want {
			t.Errorf("%q is admitted: %v (as far as %q)", text, ok, upto)
		}
	}
	for style, text := range map[string]string{
		"glm_xml": "<arg_key>s</arg_key>\n<arg_value>a</arg_value>\n" +
			"<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n",
		"deepseek_xml": "<｜DSML｜parameter name=\"s\" " +
			"string=\"true\">a</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" " +
			"string=\"false\">1</｜DSML｜parameter>\n",
		"minimax_xml": "<parameter name=\"s\">a</parameter>\n<parameter name=\"n\">1</parameter>\n",
	} {
		c, err := Compile(tagOf(strings.Replace(format, "qwen_xml", style, 1)), v, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if ok, upto := admits(t, c, v, text, false); !ok {
			t.Errorf("%s: %q is refused after %q", style, text, upto)
		}
	}
	for member, pointer := range map[string]string{
		`{"type":["string","array"]}`: "/format/json_schema/properties/x",
		`{"$ref":"#/$defs/none"}`:     "/format/json_schema/properties/x/$ref",
		`{"type":"integ"}`:            "/format/json_schema/properties/x/type",
	} {
		_, err := Compile(tagOf(
			`{"type":"json_schema","style":"qwen_xml","json_schema":{"type":"object","properties":{"x":`+member+`}}}`), v, Limits{})
		if e, ok := err.(*Error); !ok || e.Pointer != pointer {
			t.Errorf("%s: %v, want an error at %s", member, err, pointer)
		}
	}
}

// TestStyledSchemas: what a schema says of a member holds in a style as it does in JSON.
func TestStyledSchemas(t *testing.T) {
	v := small()
	for schema, values := range map[string]map[string]bool{
		`{"type":"string","format":"date"}`: {"2024-02-29": true, "2023-02-29": false, "x": false},
		`{"allOf":[{"$ref":"#/$defs/short"},{"pattern":"^a"}]}`: {"ab": true, "abcd": false,
			"b": false},
		`{"not":{"enum":["no"]},"type":"string","maxLength":3}`: {"yes": true, "no": false},
		`{"type":["string","integer"],"minimum":3,"maxLength":2}`: {"7": true, "1": false,
			"ab": true, "abc": false},
		`{"type":"string","pattern":"^\"\\\\n$"}`: {`"\n`: true, `\"\\n`: false},
		`{"oneOf":[{"const":"a"},{"const":"b"}]}`: {"a": true, "c": false},
		`{"type":"array","items":{"type":"string","maxLength":1}}`: {`["a"]`: true,
			`["ab"]`: false, "a": false},
	} {
		c, err := Compile(tagOf(`{"type":"json_schema","style":"qwen_xml","json_schema":`+
			`{"$defs":{"short":{"type":"string","maxLength":3}},"properties":{"x":`+schema+
			`},"required":["x"]}}`), v, Limits{})
		if err != nil {
			t.Errorf("%s: %v", schema, err)
			continue
		}
		for value, want := range values {
			text := "<parameter=x>\n" + value + "\n</parameter>\n"
			if ok, upto := admits(t, c, v, text, false); ok != want {
				t.Errorf("%s: %s is admitted: %v (as far as %q)", schema, value, ok, upto)
			}
		}
	}
}
