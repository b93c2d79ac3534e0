package constrain

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// small is a vocabulary with tokens that cross every boundary: several lexemes in one, parts of
// characters, equal bytes twice, ids of nothing, special tokens.
func small() *Vocabulary {
	texts := []string{"", "a", "b", "ab", "abc", "c", "{", "}", "{\"", "\"", "\":", "\": ", "\",\"",
		"\"}", "1", "0", "-1", ".5", "e", "e+", " ", "  ", "\n", "\n\t", ",", ", \"", ":", "[", "]",
		"[[", "]]",
		"]}", "],[", "true", "tru", "e}", "null", "\\", "\\u", "\\n", "00", "é", "\xc3", "\xa9",
		"\xf0\x9f",
		"\x98\x80", "aaaaaaaaaaaaaaaaaaaaaaaa", "ab", "a", "(", ")", "()", "))", "+", "x", "xx",
		"xy", "d", "ed"}
	for c := range 256 { // what a text needs is always there
		texts = append(texts, string([]byte{byte(c)}))
	}
	tokens := make([][]byte, len(texts)+6)
	for i, t := range texts {
		tokens[i] = []byte(t)
	}
	n := int32(len(texts))
	return NewVocabulary(tokens, map[string]int32{"<tool>": n + 1, "</tool>": n + 2, "<end>": n +
		3}, n+3)
}

// agree holds that the mask of a matcher is what Accept takes, token by token, and returns it.
func agree(t *testing.T, what string, m *Matcher, v *Vocabulary) []int32 {
	t.Helper()
	mask := make([]uint32, v.Words()+1)
	mask[v.Words()] = 7
	m.Mask(mask)
	if m.Exhausted() {
		t.Fatalf("%s: exhausted", what)
	}
	var allowed []int32
	for id := range int32(32 * len(mask)) {
		set := mask[id>>5]>>(id&31)&1 == 1
		if set {
			allowed = append(allowed, id)
		}
		if taken := m.Clone().Accept(id); taken != set {
			t.Fatalf("%s: token %d: masked in is %v, accepted is %v", what, id, set, taken)
		}
	}
	return allowed
}

// wander takes random tokens of the masks, which are held to be right, and returns the text when it
// comes to an end that the constraint admits.
func wander(t *testing.T, r *rand.Rand, c *Compiled, v *Vocabulary, steps int) (text string,
	ended bool) {
	t.Helper()
	m := c.Matcher()
	for range steps {
		allowed := agree(t, text, m, v)
		if m.Accepting() && (len(allowed) == 0 || r.IntN(4) == 0) {
			return text, true
		}
		if len(allowed) == 0 {
			t.Fatalf("%q is a dead end", text)
		}
		id := allowed[r.IntN(len(allowed))]
		if r.IntN(2) == 0 { // not one of the many single bytes
			id = allowed[r.IntN(min(len(allowed), 10))]
		}
		if !m.Accept(id) {
			t.Fatalf("%q: token %d is not accepted the second time", text, id)
		}
		if int(id) < len(v.tokens) {
			text += string(v.tokens[id])
		}
	}
	return text, false
}

func compiled(t *testing.T, s Spec, v *Vocabulary) *Compiled {
	t.Helper()
	c, err := Compile(s, v, Limits{})
	if err != nil {
		t.Fatalf("%v: %v", s, err)
	}
	return c
}

func TestRegex(t *testing.T) {
	v := small()
	r := rand.New(rand.NewPCG(1, 1))
	for _, pattern := range []string{"a*b?c+", "(ab|abc)*", "[a-c]{3,40}", `-?\d+(\.\d+)?`,
		".*x{1}", "[^a]{2}é", "(?!ab)[abc]+", `"[^"\n]*"`, "(a|b){2,30}c", "[\\s\\S]{5,300}",
		"é😀?", `(?:\b[ab]+\b-?)*`, `(?:(?<!a)[ab]|(?<=a)é)+(?!a)`} {
		c := compiled(t, Spec{Kind: Regex, Text: pattern}, v)
		b := regex.NewBuilder(1 << 20)
		want, err := b.Pattern(pattern, regex.Syntax{Python: true})
		if err != nil {
			t.Fatal(err)
		}
		ended := 0
		for range 20 {
			text, end := wander(t, r, c, v, 12)
			if end {
				ended++
			}
			if end != b.Match(want, text) && end {
				t.Fatalf("%q: %q ends: %v", pattern, text, end)
			}
			x := want
			for _, k := range []byte(text) {
				x = b.Derivative(x, k)
			}
			m := c.Matcher()
			for _, k := range v.tokenize(text) {
				m.Accept(k)
			}
			if m.Accepting() != b.Nullable(x) {
				t.Fatalf("%q after %q: accepting is %v", pattern, text, m.Accepting())
			}
			for _, id := range agree(t, text, m, v) {
				y := x
				for _, k := range v.tokens[id] {
					y = b.Derivative(y, k)
				}
				if b.Dead(y) {
					t.Fatalf("%q after %q: token %q is a dead end", pattern, text, v.tokens[id])
				}
			}
		}
		if ended == 0 && !strings.Contains(pattern, "{") {
			t.Errorf("%q never ends", pattern)
		}
	}
}

// tokenize cuts a text greedily from the left.
func (v *Vocabulary) tokenize(text string) (ids []int32) {
	for text != "" {
		best := -1
		for id, tok := range v.tokens {
			if len(tok) > 0 && strings.HasPrefix(text, string(tok)) &&
				(best < 0 || len(tok) > len(v.tokens[best])) {
				best = id
			}
		}
		if best < 0 {
			return append(ids, -1)
		}
		ids = append(ids, int32(best))
		text = text[len(v.tokens[best]):]
	}
	return ids
}

func TestChoice(t *testing.T) {
	v := small()
	c := compiled(t, Spec{Kind: Choice, Text: `["ab","abc","xé","ab"]`}, v)
	r := rand.New(rand.NewPCG(2, 1))
	seen := map[string]bool{}
	for range 100 {
		text, ended := wander(t, r, c, v, 12)
		if !ended {
			t.Fatalf("%q does not end", text)
		}
		seen[text] = true
	}
	if len(seen) != 3 || !seen["ab"] || !seen["abc"] || !seen["xé"] {
		t.Errorf("%v", seen)
	}
}

func TestJSONObject(t *testing.T) {
	v := small()
	for _, compact := range []bool{false, true} {
		c := compiled(t, Spec{Kind: JSONObject, Compact: compact}, v)
		r := rand.New(rand.NewPCG(3, 1))
		ends := 0
		for range 60 {
			text, ended := wander(t, r, c, v, 40)
			if ended {
				ends++
				if !json.Valid([]byte(text)) || text[0] != '{' {
					t.Fatalf("%q is no object", text)
				}
			}
		}
		if ends == 0 {
			t.Error("no object ends")
		}
		for text, want := range map[string]bool{`{}`: true, `{"a":1}`: true,
			`{"a":[1,true,null,{"b":0.5e+1}]}`: true,
			`{"a": 1, "b": []}`:                !compact, "{\n\t\"a\":1\n}": !compact, `{"a":1,}`: false,
			`[]`:  false,
			` {}`: false, `{} `: false, `{"a" "b"}`: false, `{"\u00e9\n":"é"}`: true,
			"{\"\n\":1}": false,
			`{"a":01}`:   false, `{"a":1.}`: false} {
			if got := accepts(c, v, text); got != want {
				t.Errorf("%q is %v", text, got)
			}
		}
	}
}

// accepts says whether a constraint matches a text, cut into tokens or, where there are none, not
// at all.
func accepts(c *Compiled, v *Vocabulary, text string) bool {
	m := c.Matcher()
	m.refuel(math.MaxInt)
	at := c.text(m.root, m.threads, []byte(text))
	m.threads = slices.Clone(at)
	return len(at) > 0 && m.Accepting() || text == "" && c.Matcher().Accepting()
}

func TestErrors(t *testing.T) {
	v := small()
	for _, c := range []struct {
		spec Spec
		code string
	}{
		{Spec{Kind: Regex, Text: "(a"}, cfg.RegexInvalid},
		{Spec{Kind: Regex, Text: "(a)\\1"}, cfg.RegexUnsupported},
		{Spec{Kind: Regex, Text: "a\x00"}, cfg.RegexInvalid},
		{Spec{Kind: Regex, Text: "\xff"}, cfg.GrammarSyntax},
		{Spec{Kind: Regex, Text: "[^\\s\\S]"}, cfg.GrammarEmpty},
		{Spec{Kind: Regex, Text: "a(?!b)(?=b)b"}, cfg.GrammarEmpty},
		{Spec{Kind: Regex, Text: strings.Repeat("a", 1<<15)}, cfg.GrammarTooComplex},
		{Spec{Kind: Choice, Text: "[]"}, cfg.ChoiceInvalid},
		{Spec{Kind: Choice, Text: `["a",""]`}, cfg.ChoiceInvalid},
		{Spec{Kind: Choice, Text: `["a",1]`}, cfg.ChoiceInvalid},
		{Spec{Kind: Choice, Text: "[" + strings.Repeat(`"a",`, 10000) + `"a"]`}, cfg.ChoiceInvalid},
		{Spec{Kind: Kinds}, cfg.GrammarUnsupported},
	} {
		_, err := Compile(c.spec, v, Limits{})
		var e *Error
		if !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%.40v: %v instead of %s", c.spec, err, c.code)
		}
	}
}

func TestSafe(t *testing.T) {
	v := small()
	for _, s := range v.slices {
		for id, tok := range v.tokens {
			n, safe := safeRunes(tok)
			if len(tok) == 0 || safe && n != utf8.RuneCount(tok) {
				continue
			}
			in := s.mask[id>>5]>>(id&31)&1 == 1
			twin := slices.ContainsFunc(v.twins, func(l []int32) bool {
				return slices.Contains(l[1:], int32(id))
			})
			if want := safe && (s.runes < 0 || n <= s.runes) && !twin; in != want {
				t.Errorf("token %q is in the slice of %d: %v", tok, s.runes, in)
			}
		}
	}
}
