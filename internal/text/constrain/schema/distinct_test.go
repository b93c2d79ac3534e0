package schema_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain"
)

// TestUniqueItems compares arrays of distinct items of few values, with prefixes and counts, with
// an independent validator: on arrays that are made up and on texts drawn from the masks.
func TestUniqueItems(t *testing.T) {
	vocabulary := byteVocabulary()
	n := 200
	if testing.Short() {
		n = 40
	}
	compiled := 0
	for seed := range uint64(n) {
		w := writer{rand.New(rand.NewPCG(seed, 11))}
		values := []string{"null", "true", "1", "1.0", "2", `"a"`, `"b"`, `{"a":1}`, `{"a":2,"b":null}`,
			`[1,"a"]`, `[]`}
		items := func() string {
			return w.one(`{"type":"boolean"}`, `{"enum":[1,2,"a"]}`, `{"enum":["a","b",{"a":1},[]]}`,
				`{"type":"integer","minimum":0,"maximum":2}`, `{"pattern":"^[ab]$","type":"string"}`,
				`{"const":{"b":null,"a":2}}`, `{"type":"array","prefixItems":[{"const":1},{"const":"a"}],`+
					`"minItems":2,"items":false}`,
				`{"type":"object","properties":{"a":{"enum":[1,2]},"b":{"type":"null"}},`+
					`"additionalProperties":false}`, `{"type":"string"}`, `false`)
		}
		list := []string{`"uniqueItems":true`, `"type":"array"`}
		if w.IntN(2) == 0 {
			list = append(list, `"prefixItems":[`+items()+`,`+items()+`]`)
		}
		if w.IntN(5) > 0 {
			list = append(list, `"items":`+items())
		}
		if w.IntN(3) == 0 {
			list = append(list, fmt.Sprintf(`"contains":%s,"%s":%d`, items(),
				w.one("minContains", "maxContains"), w.IntN(3)))
		}
		if w.IntN(3) == 0 {
			list = append(list, fmt.Sprintf(`"%s":%d`, w.one("minItems", "maxItems"), w.IntN(4)))
		}
		text := "{" + strings.Join(list, ",") + "}"
		c, err := constrain.Compile(constrain.Spec{Kind: constrain.JSONSchema, Text: text,
			AnyOrder: true}, vocabulary, constrain.Limits{})
		if err != nil {
			continue
		}
		compiled++
		s, err := oracle(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for range 80 {
			var l []string
			for range w.IntN(5) {
				l = append(l, w.one(values...))
			}
			doc := "[" + strings.Join(l, ",") + "]"
			if strings.Contains(doc, "1.0") { // narrowed where it is an integer
				continue
			}
			if got, want := matches(c, doc), valid(s, doc); got != want {
				t.Fatalf("seed %d: %s\n%s: matched is %v, valid is %v", seed, text, doc, got, want)
			}
		}
		for range 10 {
			if doc := w.walk(t, c, vocabulary); doc != "" && !valid(s, doc) {
				t.Fatalf("seed %d: %s\n%s is matched, and not valid", seed, text, doc)
			}
		}
	}
	if t.Logf("%d of %d are compiled", compiled, n); compiled < n/3 {
		t.Errorf("only %d of %d schemas are compiled", compiled, n)
	}
}
