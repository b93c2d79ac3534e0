package schema_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/eagleray/eagleray/internal/text/constrain"
)

// writer makes up schemas and documents over a few names and values, so that they often meet.
type writer struct{ *rand.Rand }

func (w writer) one(list ...string) string { return list[w.IntN(len(list))] }

func (w writer) number() string { return fmt.Sprint(w.IntN(7) - 2) }

// value is a small document.
func (w writer) value(depth int) string {
	n := 7
	if depth == 0 {
		n = 5
	}
	switch w.IntN(n) {
	case 0:
		return w.one("null", "true", "false")
	case 1, 2:
		return w.number()
	case 3, 4:
		return w.one(`""`, `"a"`, `"b"`, `"ab"`, `"ba"`, `"abc"`)
	case 5:
		var l []string
		for range w.IntN(4) {
			l = append(l, w.value(depth-1))
		}
		return "[" + strings.Join(l, ",") + "]"
	}
	var l []string
	keys := []string{`"a"`, `"b"`, `"ab"`, `"c"`}
	w.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, k := range keys[:w.IntN(4)] {
		l = append(l, k+":"+w.value(depth-1))
	}
	return "{" + strings.Join(l, ",") + "}"
}

// schema is a random one. What docs/structured-outputs.md lists as narrowed is not in it, so that
// verdicts must be equal.
func (w writer) schema(depth int) string {
	switch w.IntN(12) {
	case 0:
		return w.one("true", "false", "{}", "true")
	case 1:
		return `{"$ref":"#/$defs/` + w.one("x", "y") + `"}`
	}
	var l []string
	add := func(format string, args ...any) { l = append(l, fmt.Sprintf(format, args...)) }
	sub := func() string {
		if depth == 0 {
			return w.one("true", "false", `{"type":"integer"}`, `{"const":"a"}`,
				`{"type":"string"}`)
		}
		return w.schema(depth - 1)
	}
	several := func(most int) string {
		var s []string
		for range 1 + w.IntN(most) {
			s = append(s, sub())
		}
		return "[" + strings.Join(s, ",") + "]"
	}
	names := func(value func() string) string {
		var s []string
		for _, k := range []string{`"a"`, `"b"`, `"ab"`, `"c"`} {
			if w.IntN(3) == 0 {
				s = append(s, k+":"+value())
			}
		}
		return "{" + strings.Join(s, ",") + "}"
	}
	keys := func() string { return w.one(`["a"]`, `["b"]`, `["a","c"]`, `["ab"]`, `[]`) }
	pattern := func() string { return w.one(`"^a"`, `"b$"`, `"a|c"`, `"^[^d]{2}$"`, `"^b*$"`) }
	for range 1 + w.IntN(3) {
		switch w.IntN(24) {
		case 0, 1:
			add(`"type":%s`, w.one(`"integer"`, `"string"`, `"object"`, `"array"`,
				`["object","null"]`, `["array","integer"]`, `"boolean"`))
		case 2:
			add(`"enum":[%s,%s,%s]`, w.value(1), w.value(1), w.value(1))
		case 3:
			add(`"const":%s`, w.value(2))
		case 4:
			add(`"minimum":%s`, w.number())
		case 5:
			add(`"exclusiveMaximum":%s`, w.number())
		case 6:
			add(`"multipleOf":%d`, 1+w.IntN(3))
		case 7:
			add(`"%s":%d`, w.one("minLength", "maxLength"), w.IntN(3))
		case 8:
			add(`"pattern":%s`, pattern())
		case 9, 10:
			add(`"properties":%s`, names(sub))
		case 11:
			add(`"required":%s`, keys())
		case 12:
			add(`"additionalProperties":%s`, sub())
		case 13:
			add(`"patternProperties":{%s:%s}`, pattern(), sub())
		case 14:
			add(`"%s":%d`, w.one("minProperties", "maxProperties"), w.IntN(4))
		case 15:
			add(`"items":%s,"prefixItems":%s`, sub(), several(2))
		case 16:
			add(`"%s":%d`, w.one("minItems", "maxItems"), w.IntN(4))
		case 17:
			add(`"contains":%s,"%s":%d`, sub(), w.one("minContains", "maxContains"), w.IntN(3))
		case 18:
			add(`"%s":%s`, w.one("allOf", "anyOf", "oneOf"), several(3))
		case 19:
			add(`"not":%s`, sub())
		case 20:
			add(`"if":%s,"then":%s,"else":%s`, sub(), sub(), sub())
		case 21:
			add(`"dependentRequired":%s`, names(keys))
		case 22:
			add(`"%s":%s`, "dependentSchemas", names(sub))
		case 23:
			add(`"%s":%s`, w.one("unevaluatedProperties", "unevaluatedItems", "propertyNames"),
				sub())
		}
	}
	seen := map[string]bool{}
	var once []string
	for _, m := range l {
		// One member may have several keywords; the first names them.
		name, _, _ := strings.Cut(m, ":")
		if !seen[name] {
			seen[name] = true
			once = append(once, m)
		}
	}
	return "{" + strings.Join(once, ",") + "}"
}

// document is a schema with definitions, which may refer to each other.
func (w writer) document() string {
	body := strings.TrimSuffix(strings.TrimPrefix(w.schema(2), "{"), "}")
	if body == "true" || body == "false" {
		body = `"allOf":[` + body + `]`
	}
	if body != "" {
		body = "," + body
	}
	return `{"$defs":{"x":` + w.schema(1) + `,"y":` + w.schema(1) + `}` + body + `}`
}

// oracle is the same schema in the eyes of another library.
func oracle(text string) (*jsonschema.Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:///s", doc); err != nil {
		return nil, err
	}
	return c.Compile("mem:///s")
}

func valid(s *jsonschema.Schema, text string) bool {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	return err == nil && s.Validate(doc) == nil
}

// walk is a text drawn byte by byte from the masks of a constraint, "" if it gets too long.
func (w writer) walk(t *testing.T, c *constrain.Compiled, v *constrain.Vocabulary) string {
	m := c.Matcher()
	mask := make([]uint32, v.Words())
	var text []byte
	for len(text) < 400 {
		m.Mask(mask)
		n := 0
		for _, word := range mask {
			n += bits.OnesCount32(word)
		}
		if m.Exhausted() {
			return ""
		}
		if m.Accepting() && (n == 0 || w.IntN(2) == 0) {
			return string(text)
		}
		if n == 0 {
			t.Fatalf("no way on behind %q", text)
		}
		has := func(b int) bool { return mask[b>>5]>>(b&31)&1 == 1 }
		next := -1
		for _, b := range []int{'"', '}', ']', ',', ':', 'a', 'b'} { // rather than any byte
			if next < 0 && has(b) && w.IntN(3) == 0 {
				next = b
			}
		}
		for k := w.IntN(n); next < 0; {
			for i, word := range mask {
				for ; word != 0; word &= word - 1 {
					if k == 0 {
						next = i<<5 + bits.TrailingZeros32(word)
					}
					k--
				}
			}
		}
		if !m.Accept(int32(next)) {
			t.Fatalf("%q: byte %#x is in the mask and not accepted", text, next)
		}
		text = append(text, byte(next))
	}
	return ""
}

// verdictsAgree compares one random schema with the oracle.
func verdictsAgree(t *testing.T, seed uint64, vocabulary *constrain.Vocabulary) (compiled bool) {
	w := writer{rand.New(rand.NewPCG(seed, 7))}
	text := w.document()
	c, err := constrain.Compile(constrain.Spec{Kind: constrain.JSONSchema, Text: text,
		AnyOrder: true}, vocabulary, constrain.Limits{})
	var e *constrain.Error
	none := errors.As(err, &e) && e.Code == "schema_unsatisfiable"
	if err != nil && !none {
		return false
	}
	s, err := oracle(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for range 60 {
		doc := w.value(3)
		var compact bytes.Buffer
		if err := json.Compact(&compact, []byte(doc)); err != nil {
			t.Fatal(err)
		}
		want := valid(s, doc)
		if got := !none && matches(c, doc); got != want {
			t.Fatalf("seed %d: %s\n%s: matched is %v, valid is %v", seed, text, doc, got, want)
		}
	}
	if none {
		return true
	}
	for range 12 {
		if doc := w.walk(t, c, vocabulary); doc != "" && !repeats(doc) && !valid(s, doc) {
			t.Fatalf("seed %d: %s\n%s is matched, and not valid", seed, text, doc)
		}
	}
	return true
}

// repeats says whether an object has a key twice: what that means is left to its reader.
func repeats(doc string) bool {
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	var seen []map[string]bool // by level; nil for arrays
	key := false
	for {
		t, err := d.Token()
		if err != nil {
			return false
		}
		delim, _ := t.(json.Delim)
		last := len(seen) - 1
		switch {
		case delim == '{':
			seen, key = append(seen, map[string]bool{}), true
			continue
		case delim == '[':
			seen, key = append(seen, nil), false
			continue
		case delim == '}' || delim == ']':
			seen = seen[:last]
			last--
			key = false
		}
		if key {
			name, _ := t.(string)
			if seen[last][name] {
				return true
			}
			seen[last][name] = true
		}
		key = !key && last >= 0 && seen[last] != nil
	}
}

// TestOracle compares random schemas with an independent validator: on documents that are made up,
// and on texts that are drawn from the masks.
func TestOracle(t *testing.T) {
	vocabulary := byteVocabulary()
	n, compiled := 400, 0
	if testing.Short() {
		n = 50
	}
	for seed := range uint64(n) {
		if verdictsAgree(t, seed, vocabulary) {
			compiled++
		}
	}
	t.Logf("%d of %d schemas are compiled", compiled, n)
	if compiled < n*8/10 {
		t.Errorf("only %d of %d schemas are compiled", compiled, n)
	}
}

// FuzzSchema has any text for a schema: it is compiled or refused, in bounded work.
func FuzzSchema(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(writer{rand.New(rand.NewPCG(seed, 7))}.document(), seed%2 == 0)
	}
	f.Add(`{"$ref":"#"}`, false)
	f.Add(`{"format":"date","pattern":"(?=a)","minLength":3}`, true)
	vocabulary := byteVocabulary()
	limits := constrain.Limits{Compile: 100_000, Steps: 20_000, Items: 20_000, Symbols: 20_000}
	f.Fuzz(func(t *testing.T, text string, anyOrder bool) {
		c, err := constrain.Compile(constrain.Spec{Kind: constrain.JSONSchema, Text: text,
			AnyOrder: anyOrder}, vocabulary, limits)
		if err != nil {
			return
		}
		m := c.Matcher()
		mask := make([]uint32, vocabulary.Words())
		if m.Mask(mask); !m.Exhausted() && bits.OnesCount32(mask[0]|mask[1]|mask[2]|mask[3]) == 0 {
			t.Errorf("%q: no text begins", text)
		}
	})
}

// FuzzVerdicts goes on where TestOracle ends.
func FuzzVerdicts(f *testing.F) {
	vocabulary := byteVocabulary()
	f.Add(uint64(1 << 40))
	f.Fuzz(func(t *testing.T, seed uint64) { verdictsAgree(t, seed, vocabulary) })
}
