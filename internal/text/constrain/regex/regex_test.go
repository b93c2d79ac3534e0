package regex

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

const plenty = 1 << 20

func TestPattern(t *testing.T) {
	search := Syntax{Search: true}
	for _, c := range []struct {
		pattern string
		s       Syntax
		yes, no []string
	}{
		{"abc", Syntax{}, []string{"abc"}, []string{"", "ab", "xabc", "abcd"}},
		{"abc", search, []string{"abc", "xabcx"}, []string{"", "ab"}},
		{"^a|b$", search, []string{"a", "ax", "xb"}, []string{"xa", "bx"}},
		{"^$", search, []string{""}, []string{"a"}},
		{"^", search, []string{"", "q"}, nil},
		{"a^b", search, nil, []string{"ab", "a^b"}},
		{"a?^b$", search, []string{"b"}, []string{"ab", "xb"}},
		{"(^a|b)+$", search, []string{"b", "ab", "xbb"}, []string{"xa"}},
		{"[^a-c]", Syntax{}, []string{"d", "é", "😀"}, []string{"a", "", "dd"}},
		{"[\\d-x]", Syntax{}, []string{"1", "-", "x"}, []string{"a"}},
		{"[]a]+", Syntax{Python: true}, []string{"]a"}, []string{"b"}},
		{"a{2,3}", Syntax{}, []string{"aa", "aaa"}, []string{"a", "aaaa"}},
		{"a{,2}", Syntax{Python: true}, []string{"", "aa"}, []string{"aaa", "a{,2}"}},
		{"a{,2}", Syntax{}, []string{"a{,2}"}, []string{"aa"}},
		{"{x}", Syntax{}, []string{"{x}"}, nil},
		{"(?:ab)*?c", Syntax{}, []string{"c", "ababc"}, []string{"abab"}},
		{"(?<n>a)(?P<m>b)", Syntax{Python: true}, []string{"ab"}, nil},
		{"(?i)straße[k]", Syntax{Python: true}, []string{"STRAßEK", "straßek"},
			[]string{"strasse"}},
		{"(?i:a)b", Syntax{}, []string{"Ab", "ab"}, []string{"aB"}},
		{"[^a]", Syntax{IgnoreCase: true}, []string{"b"}, []string{"a", "A"}},
		{"(?=a)\\w+", Syntax{}, []string{"a", "abc"}, []string{"b", ""}},
		{"(?!a)\\w+", Syntax{}, []string{"b", "ba"}, []string{"ab"}},
		{"^(?=.*\\d)(?=.*[a-z]).{4,8}$", search, []string{"ab12"}, []string{"abcd", "1234", "a1"}},
		{"^((?!ab).)*$", search, []string{"", "ba", "xyz"}, []string{"ab", "xaby"}},
		{"^(a$|b)", search, []string{"a", "bx"}, []string{"ax"}},
		{"\\p{L}\\p{Script=Greek}", Syntax{}, []string{"éα"}, []string{"1α", "éa"}},
		{"\\u{1F600}\\uD83D\\uDE00\\x41\\cA", Syntax{}, []string{"😀😀A\x01"}, nil},
		{"\\/\\-\\.", Syntax{}, []string{"/-."}, nil},
		{".", Syntax{}, []string{"é"}, []string{"\n", "\u2028"}},
		{".", Syntax{DotAll: true}, []string{"\n"}, nil},
		{"a|", Syntax{}, []string{"a", ""}, nil},
		{"[]", Syntax{}, nil, []string{"", "a"}},
		{"[^]", Syntax{}, []string{"\n"}, nil},
		{`^["\\]\n$`, Syntax{JSON: true, Search: true}, []string{`\"\n`, `\\\n`}, []string{"\"\n", `"\n`}},
	} {
		b := NewBuilder(plenty)
		x, err := b.Pattern(c.pattern, c.s)
		if err != nil {
			t.Errorf("%q: %v", c.pattern, err)
			continue
		}
		for _, s := range c.yes {
			if !b.Match(x, s) {
				t.Errorf("%q does not match %q", c.pattern, s)
			}
		}
		for _, s := range c.no {
			if b.Match(x, s) {
				t.Errorf("%q matches %q", c.pattern, s)
			}
		}
		if dead := c.yes == nil; dead && !b.Dead(x) {
			t.Errorf("%q is not seen to be dead", c.pattern)
		}
	}
}

func TestPatternErrors(t *testing.T) {
	for pattern, want := range map[string]string{
		"(":                         "offset 1: missing )",
		")":                         "unmatched )",
		"[a":                        "missing ]",
		"[b-a]":                     "range from 'b' to 'a'",
		"*":                         "nothing to repeat",
		"a**":                       "nothing to repeat",
		"a{3,2}":                    "at least 3 and at most 2",
		"a\\":                       "backslash at the end",
		"\\q":                       "unknown escape \\q",
		"\\xZZ":                     "unknown escape \\x",
		"\\p{Nothing}":              "unknown property \"Nothing\"",
		"(a)\\1":                    "a back reference is not supported",
		"(?<n>a)\\k<n>":             "a back reference is not supported",
		"a++":                       "a possessive count is not supported",
		"(?>a)":                     "an atomic group is not supported",
		"(?>(?=a)b)":                "an atomic group is not supported",
		".*(?<=a.{12})b":            "assertions that take more than 4096 states are not supported",
		"(?m)a":                     "the flag m is not supported",
		"\xff":                      "invalid UTF-8",
		strings.Repeat("(", 100000): "more than 1000 nested groups",
		"(?":                        "missing )",
		"(?<":                       "missing >",
	} {
		_, err := NewBuilder(plenty).Pattern(pattern, Syntax{Python: true})
		var s *SyntaxError
		if !errors.As(err, &s) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v instead of %q", pattern, err, want)
		} else if s.Unsupported != strings.Contains(want, "not supported") {
			t.Errorf("%.20q: Unsupported is %v", pattern, s.Unsupported)
		}
	}
}

// TestFuel holds that what blows up ends, and says so.
func TestFuel(t *testing.T) {
	var b *Builder
	nested := "^a?"
	for range 200 {
		nested = "(" + nested + "){16}"
	}
	b = NewBuilder(10000)
	if _, err := b.Pattern(nested, Syntax{Search: true}); err != ErrFuel {
		t.Errorf("%v", err)
	}
	b = NewBuilder(1 << 16)
	letter := b.Bytes('a', 'x')
	all := b.Star(letter)
	for i := range 24 { // every letter an even number of times: 2²⁴ states
		one := b.Bytes(byte('a'+i), byte('a'+i))
		other := b.Star(b.Minus(letter, one))
		all = b.And(all, b.Cat(other, b.Star(b.Cat(one, other, one, other))))
	}
	x := b.And(all, b.Cat(letter, b.Star(b.Cat(letter, letter)))) // an odd number of letters
	if b.Dead(x) || !b.Exhausted() {
		t.Error("the fuel is not seen to be out")
	}
	b.Refuel(plenty)
	if b.Exhausted() || !b.Match(all, "abba") {
		t.Error("a refuelled builder is wrong")
	}
}

// TestCounts holds that a count is one node.
func TestCounts(t *testing.T) {
	b := NewBuilder(plenty)
	x, err := b.Pattern("[a-z]{2,20000}", Syntax{})
	if err != nil || b.Len() > 40 {
		t.Fatalf("%d nodes, %v", b.Len(), err)
	}
	if !b.Match(x, strings.Repeat("q", 20000)) || b.Match(x, strings.Repeat("q", 20001)) {
		t.Error("the upper bound is wrong")
	}
	if y, err := b.Pattern("((a?b?c?){0,30}){0,30}", Syntax{}); err != nil ||
		!b.Match(y, "abcabccba") {
		t.Error("nested counts", err)
	}
}

// randomPattern makes a pattern that Go's regexp reads as we do.
func randomPattern(r *rand.Rand, depth int) string {
	switch k := r.IntN(9); {
	case depth == 0 || k < 3:
		return []string{"a", "b", "c", "[ab]", "[^a]", ".", "é"}[r.IntN(7)]
	case k < 5:
		return randomPattern(r, depth-1) + randomPattern(r, depth-1)
	case k < 6:
		return "(" + randomPattern(r, depth-1) + "|" + randomPattern(r, depth-1) + ")"
	case k < 7:
		return "(" + randomPattern(r, depth-1) + "|)"
	default:
		return "(" + randomPattern(r, depth-1) + ")" +
			[]string{"*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"}[r.IntN(7)]
	}
}

func randomText(r *rand.Rand) string {
	var s strings.Builder
	for range r.IntN(7) {
		s.WriteString([]string{"a", "b", "c", "é", "x"}[r.IntN(5)])
	}
	return s.String()
}

// TestAgainstRegexp compares with Go's own engine, and the laws of sets with themselves.
func TestAgainstRegexp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		p, q := randomPattern(r, 4), randomPattern(r, 3)
		b := NewBuilder(plenty)
		x, err := b.Pattern(p, Syntax{})
		y, err2 := b.Pattern(q, Syntax{})
		found, err3 := b.Pattern(p, Syntax{Search: true})
		if err != nil || err2 != nil || err3 != nil {
			t.Fatal(p, q, err, err2, err3)
		}
		rp, rq := regexp.MustCompile(`^(?:`+p+`)$`), regexp.MustCompile(`^(?:`+q+`)$`)
		and, minus, or, cat := b.And(x, y), b.Minus(x, y), b.Or(x, y), b.Cat(x, y)
		either := false
		for range 10 {
			s := randomText(r)
			m, n := rp.MatchString(s), rq.MatchString(s)
			either = either || m && n
			for _, c := range []struct {
				what string
				x    Ex
				want bool
			}{
				{"x", x, m}, {"and", and, m && n}, {"minus", minus, m && !n}, {"or", or, m || n},
				{"not", b.Not(or), !m && !n},
				{"search", found, regexp.MustCompile(p).MatchString(s)},
				{"cat", cat, regexp.MustCompile(`^(?:` + p + `)(?:` + q + `)$`).MatchString(s)},
			} {
				if got := b.Match(c.x, s); got != c.want {
					t.Fatalf("%s of %q, %q on %q: %v", c.what, p, q, s, got)
				}
			}
		}
		if either && b.Dead(and) || b.Within(x, y) && !b.Dead(minus) {
			t.Fatalf("Dead or Within of %q, %q", p, q)
		}
	}
}

// TestJSONSpelling holds that the free spellings are JSON's, and the plain one is one of them.
func TestJSONSpelling(t *testing.T) {
	b := NewBuilder(plenty)
	free, text := b.Star(b.JSONFreeRune()), b.JSONText()
	for _, s := range []string{"", "a\"\\/\b\f\n\r\t\x01\x1f", "é😀\u2028\x7f", `\u0041`} {
		if spelt := JSONSpell(s); !b.Match(text, spelt) || !b.Match(free, spelt) ||
			!b.Match(b.JSONLit(s), spelt) {
			t.Errorf("%q is not matched as %q", s, spelt)
		}
	}
	alphabet := []string{"a", `"`, `\`, "u", "d", "D", "8", "c", "C", "0", "0041", "ud83d", `\`, `\u`,
		"\n", "/", "é"}
	r := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		var s strings.Builder
		for range r.IntN(8) {
			s.WriteString(alphabet[r.IntN(len(alphabet))])
		}
		var v string
		valid := json.Unmarshal([]byte(`"`+s.String()+`"`), &v) == nil && !strings.Contains(v, "\uFFFD")
		if got := b.Match(free, s.String()); got != valid {
			t.Fatalf("%q: %v, decodes to %q", s.String(), got, v)
		}
	}
}

func TestClasses(t *testing.T) {
	b := NewBuilder(plenty)
	x, _ := b.Pattern(`[a-f]+[0-9é]*|"`, Syntax{})
	class, n := b.Classes()
	if n > 24 {
		t.Errorf("%d classes", n)
	}
	for todo, seen := []Ex{x}, map[Ex]bool{}; len(todo) > 0; todo = todo[1:] {
		if seen[todo[0]] {
			continue
		}
		seen[todo[0]] = true
		by := map[uint8]Ex{}
		for c := range 256 {
			d := b.Derivative(todo[0], byte(c))
			if old, ok := by[class[c]]; ok && old != d {
				t.Fatalf("byte %d is no member of class %d", c, class[c])
			}
			by[class[c]] = d
			todo = append(todo, d)
		}
	}
}

func FuzzPattern(f *testing.F) {
	f.Add(`^(?=.*\d)[a-z\p{L}]{2,9}$`, "ab1", uint8(3))
	f.Add(`((a?b?c?){0,30}){0,30}(?!x)`, "abc", uint8(1))
	f.Fuzz(func(t *testing.T, pattern, text string, flags uint8) {
		b := NewBuilder(20000)
		x, err := b.Pattern(pattern, Syntax{JSON: flags&1 != 0, Search: flags&2 != 0,
			Python: flags&4 != 0, IgnoreCase: flags&8 != 0})
		if err == nil && b.Match(x, text) && b.Dead(x) {
			t.Errorf("%q matches %q and is dead", pattern, text)
		}
	})
}
