package output

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain"

	"github.com/eagleray/eagleray/internal/text/typed"
)

// byteVocabulary has a token for every byte, and those texts as special tokens; the last is the
// end.
func byteVocabulary(special ...string) *constrain.Vocabulary {
	tokens := make([][]byte, 256)
	for c := range tokens {
		tokens[c] = []byte{byte(c)}
	}
	ids := map[string]int32{}
	for _, s := range special {
		ids[s] = int32(256 + len(ids))
	}
	ids["<end>"] = int32(256 + len(ids))
	return constrain.NewVocabulary(tokens, ids, ids["<end>"])
}

var envelopeTools = []Tool{
	{Name: "get_weather", Parameters: json.RawMessage(
		`{"type":"object","properties":{"city":{"enum":["Paris","Rome"]},"days":{"type":"integer","minimum":0,"maximum":99}},"required":["city"]}`)},
	{Name: "get", Parameters: json.RawMessage(
		`{"type":"object","properties":{"s":{"type":"string","maxLength":4},"l":{"type":"array","items":{"type":"boolean"},"maxItems":2}},"required":["s","l"]}`)},
	{Name: "put", Parameters: json.RawMessage(`{"type":"object","properties":{` +
		`"o":{"type":"object","properties":{"k":{"enum":["a","b\"\\c"]},` +
		`"n":{"type":["boolean","null"]},"t":{"type":"array","maxItems":2,` +
		`"items":{"type":"string","maxLength":3}}},"required":["k","n"]},` +
		`"m":{"type":"object","additionalProperties":{"enum":[null,1.5]},"maxProperties":1}},` +
		`"required":["o"]}`)},
	{Name: "now", Parameters: json.RawMessage(`{"type":"object","additionalProperties":false}`)},
}

func envelopeTypes(function, parameter string) typed.Types {
	return map[string]typed.Types{"get_weather.city": typed.String,
		"get_weather.days": typed.Number, "get.s": typed.String,
		"get.l": typed.Array, "put.o": typed.Object, "put.m": typed.Object}[function+"."+parameter]
}

// or is a list, empty where there is none.
func or[T any](list *[]T) []T {
	if list == nil {
		return nil
	}
	return *list
}

// validCall is whether a call is of one of envelopeTools, and valid.
func validCall(call [2]string) bool {
	var v struct {
		City *string
		Days *int
		S    *string
		L    *[]bool
		O    *struct {
			K string
			N *bool
			T *[]string
		}
		M *map[string]*float64
	}
	d := json.NewDecoder(strings.NewReader(call[1]))
	d.DisallowUnknownFields()
	if d.Decode(&v) != nil {
		return false
	}
	if (v.O == nil) != (call[0] != "put") || v.M != nil && v.O == nil {
		return false
	}
	switch call[0] {
	case "put":
		for _, t := range or(v.O.T) {
			if len([]rune(t)) > 3 {
				return false
			}
		}
		return v.O.K == "a" || v.O.K == `b"\c`
	case "get_weather":
		return v.City != nil && (*v.City == "Paris" || *v.City == "Rome") && v.S == nil &&
			v.L == nil && (v.Days == nil || 0 <= *v.Days && *v.Days <= 99)
	case "get":
		return v.S != nil && v.L != nil && len([]rune(*v.S)) <= 4 && len(*v.L) <= 2 &&
			v.City == nil && v.Days == nil
	}
	return call[0] == "now" && v.City == nil && v.Days == nil && v.S == nil && v.L == nil
}

// walk writes a text as a model would that knows nothing: any token that the constraint admits. It
// ends as soon as it may, or with a chance.
func walk(t *testing.T, dice *rand.Rand, c *constrain.Compiled, v *constrain.Vocabulary,
	special []string, steps int) (string, bool) {
	t.Helper()
	m := c.Matcher()
	mask := make([]uint32, v.Words())
	var text []byte
	for range steps {
		m.Mask(mask)
		var allowed []int32
		for id := range int32(256 + len(special)) {
			if mask[id>>5]>>(id&31)&1 == 1 {
				allowed = append(allowed, id)
			}
		}
		if m.Accepting() && (len(allowed) == 0 || dice.IntN(3) == 0) {
			return string(text), true
		}
		if len(allowed) == 0 {
			t.Fatalf("%q is a dead end", text)
		}
		id := allowed[dice.IntN(len(allowed))]
		// Short texts: what closes is likelier than what goes on.
		for _, c := range "\"}<" {
			if dice.IntN(3) == 0 && slices.Contains(allowed, c) {
				id = c
			}
		}
		if last := allowed[len(allowed)-1]; last >= 256 && dice.IntN(3) == 0 {
			id = last
		}
		if !m.Accept(id) {
			t.Fatalf("%q: %d is in the mask and is not accepted", text, id)
		}
		if id >= 256 {
			text = append(text, special[id-256]...)
		} else {
			text = append(text, byte(id))
		}
	}
	return string(text), false
}

// thinkingWith is how a family thinks that writes such calls.
func thinkingWith(f *Format) *Thinking {
	for _, t := range thinkings {
		if f.layout != nil && t.layout == f.layout {
			return t
		}
	}
	return thinkings[0]
}

// TestForcedCalls: an answer that must call does, whatever the model, in every format, with its
// tags special tokens or not, and after thinking.
func TestForcedCalls(t *testing.T) {
	all := append(slices.Clone(formats), Listed, mistralListed)
	for _, f := range all {
		if !f.HasEnvelope() {
			continue
		}
		name := strings.Join(f.Names, " ")
		t.Run(name, func(t *testing.T) {
			dice := rand.New(rand.NewPCG(7, 7))
			rounds, walks, ended := 12, 4, 0
			if testing.Short() {
				rounds, walks = 6, 1
			}
			for round := range rounds {
				var special []string
				if round%2 == 0 {
					special = append(special, f.Tags()...)
					special = slices.DeleteFunc(special, func(s string) bool { return len(s) < 5 })
					special = append(special, "<think>", "</think>")
				}
				v := byteVocabulary(special...)
				thinking, state, single := thinkingWith(f), State(round%3), round%4 < 2
				o := Options{Tools: f, Types: envelopeTypes, Reasoning: thinking, State: state,
					Single: single, ID: func() string { return "made" }}
				spec := constrain.Spec{Kind: constrain.StructuralTag,
					Text: o.Constrain(o.Calls(envelopeTools))}
				c, err := constrain.Compile(spec, v, constrain.Limits{})
				if err != nil {
					t.Fatalf("%v in %s", err, spec.Text)
				}
				o.Single = false // what is read may have more calls than it should
				for range walks {
					text, done := walk(t, dice, c, v, special, 3000)
					if !done {
						continue
					}
					ended++
					got := fold(t, o, strings.Split(strings.ToValidUTF8(text, "�"), "")...)
					if len(got.calls) == 0 || single && len(got.calls) > 1 || got.content != "" {
						t.Fatalf("%q is %s", text, got)
					}
					for _, call := range got.calls {
						if !validCall(call) {
							t.Fatalf("%q has the call %q", text, call)
						}
					}
				}
			}
			if ended < rounds*walks/3 {
				t.Errorf("only %d answers came to an end", ended)
			}
		})
	}
}

// TestFreeCalls: in free text every call that begins is valid.
func TestFreeCalls(t *testing.T) {
	dice := rand.New(rand.NewPCG(8, 8))
	calls := 0
	for _, f := range formats {
		if !f.HasTriggers() {
			continue
		}
		o := Options{Tools: f, Types: envelopeTypes, State: Unsaid,
			ID: func() string { return "made" }}
		special := f.Tags()
		v := byteVocabulary(special...)
		c, err := constrain.Compile(constrain.Spec{Kind: constrain.StructuralTag,
			Text: o.Constrain(o.FreeCalls(envelopeTools))}, v, constrain.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			text, done := walk(t, dice, c, v, special, 400)
			got := fold(t, o, strings.ToValidUTF8(text, "�"))
			for i, call := range got.calls {
				if calls++; (done || i < len(got.calls)-1) && !validCall(call) {
					t.Fatalf("%q has the call %q", text, call)
				}
			}
		}
	}
	if calls < 20 {
		t.Errorf("only %d calls", calls)
	}
}

// TestBareCall: the whole answer is the arguments.
func TestBareCall(t *testing.T) {
	o := Options{Tools: Bare("get"), Single: true, ID: func() string { return "made" }}
	if got := fold(t, o, ` {"a": `, `1}`,
		` `); got.String() != `["","",[["get","{\"a\": 1}"]],["made"]]` {
		t.Error(got)
	}
	v := byteVocabulary()
	if _, err := constrain.Compile(constrain.Spec{Kind: constrain.StructuralTag,
		Text: o.Constrain(o.Calls(envelopeTools[1:2]))}, v,
		constrain.Limits{}); err != nil {
		t.Error(err)
	}
}

// TestCallsInContent: calls as JSON, of families whose own way is not known, are where the family
// has content.
func TestCallsInContent(t *testing.T) {
	for _, tt := range []struct {
		tools *Format
		text  string
	}{
		{Listed, `[{"name": "get", "parameters": {"a": 1}}]`},
		{Bare("get"), `{"a": 1}`},
	} {
		for _, family := range []struct{ name, before, after string }{
			{"openai_gptoss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" +
				"<|channel|>final<|message|>", "<|return|>"},
			{"cohere_command4", "<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>",
				"<|END_TEXT|>"},
		} {
			o := Options{Tools: tt.tools, Reasoning: ThinkingNamed(family.name),
				ID: func() string { return "made" }}
			text := o.Constrain(o.Calls(envelopeTools[1:2]))
			if !strings.Contains(text, `"begin":"`+o.layout().begin) {
				t.Errorf("%s: %s", family.name, text)
			}
			got := fold(t, o, family.before, tt.text, family.after)
			if got.String() != `["","hm",[["get","{\"a\": 1}"]],["made"]]` {
				t.Errorf("%s: %s", family.name, got)
			}
		}
	}
}
