package constrain

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
)

// language has the texts of at most most bytes of each rule: the least sets that the rules keep.
func language(rules map[string][][]string, most int) map[string]map[string]bool {
	sets := map[string]map[string]bool{}
	for name := range rules {
		sets[name] = map[string]bool{}
	}
	for grown := true; grown; {
		grown = false
		for name, alts := range rules {
			for _, alt := range alts {
				texts := map[string]bool{"": true}
				for _, item := range alt {
					next := map[string]bool{}
					for t := range texts {
						if literal, ok := strings.CutPrefix(item, `"`); ok {
							if u := t + strings.TrimSuffix(literal, `"`); len(u) <= most {
								next[u] = true
							}
							continue
						}
						for u := range sets[item] {
							if len(t)+len(u) <= most {
								next[t+u] = true
							}
						}
					}
					texts = next
				}
				for t := range texts {
					if !sets[name][t] {
						sets[name][t], grown = true, true
					}
				}
			}
		}
	}
	return sets
}

// randomGrammar is a grammar of a few rules, recursive in every way.
func randomGrammar(r *rand.Rand) (text string, rules map[string][][]string) {
	names := []string{"root", "x", "y", "z"}[:2+r.IntN(3)]
	rules = map[string][][]string{}
	var b strings.Builder
	for _, name := range names {
		var alts []string
		for range 1 + r.IntN(3) {
			var items []string
			for range r.IntN(4) {
				if r.IntN(2) == 0 {
					items = append(items, names[r.IntN(len(names))])
				} else {
					items = append(items, []string{`"a"`, `"b"`, `"ab"`, `"("`, `")"`}[r.IntN(5)])
				}
			}
			rules[name] = append(rules[name], items)
			alts = append(alts, strings.Join(append([]string{`""`}, items...), " "))
		}
		fmt.Fprintf(&b, "%s ::= %s\n", name, strings.Join(alts, " |\n  "))
	}
	return b.String(), rules
}

// TestRandomGrammars compares with the sets that the rules define, text by text.
func TestRandomGrammars(t *testing.T) {
	v := small()
	r := rand.New(rand.NewPCG(9, 1))
	const most = 5
	var texts []string
	var grow func(s string)
	grow = func(s string) {
		texts = append(texts, s)
		for _, c := range "ab()" {
			if len(s) < most {
				grow(s + string(c))
			}
		}
	}
	grow("")
	compiledOnes := 0
	for range 150 {
		text, rules := randomGrammar(r)
		want := language(rules, most)["root"]
		c, err := Compile(Spec{Kind: Grammar, Text: text}, v, Limits{})
		if err != nil {
			var e *Error
			if errors.As(err, &e) && e.Code == cfg.GrammarEmpty && len(want) == 0 {
				continue
			}
			t.Fatalf("%s%v, %d texts", text, err, len(want))
		}
		compiledOnes++
		for _, s := range texts {
			if got := accepts(c, v, s); got != want[s] {
				t.Fatalf("%s%q is %v", text, s, got)
			}
		}
		for s := range want { // every beginning of a text is admitted, whatever the tokens
			m := c.Matcher()
			for rest := s; rest != ""; {
				n := 1 + r.IntN(min(2, len(rest)))
				id := v.tokenize(rest[:n])[0]
				if !m.Accept(id) {
					t.Fatalf("%s%q is refused at %q", text, s, rest)
				}
				rest = rest[len(v.tokens[id]):]
			}
			if !m.Accepting() {
				t.Fatalf("%s%q is no text", text, s)
			}
		}
		for range 3 {
			if s, ended := wander(t, r, c, v, 8); ended && len(s) <= most && !want[s] {
				t.Fatalf("%s%q ends", text, s)
			}
		}
	}
	if compiledOnes < 50 {
		t.Errorf("%d grammars", compiledOnes)
	}
}

func TestEBNF(t *testing.T) {
	v := small()
	json := `root ::= object # one
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}`
	for _, c := range []struct {
		grammar string
		yes, no []string
	}{
		{`root ::= ("list" | "listen") "ed"`, []string{"listed", "listened"}, []string{"list"}},
		{json, []string{`{}`, `{"a": [1, -0.5e+3, {"b":null}]} `, "{\n\t\"é\\n\":true}"},
			[]string{`[]`, `{"a"}`, `{"a":1,}`, "{\"\n\":1}"}},
		{`root ::= root "+" t | t
t ::= t "x" f | f
f ::= "(" root ")" | [a-z]`, []string{"a", "a+bxc", "((a))x(b+c)"}, []string{"", "a+", "(a"}},
		{"root ::= \"a\"{2} 'b'{,2} \"c\"{1,} .", []string{"aaccx", "aabbcé"}, []string{"aac",
			"abcx"}},
		{"root ::= ws \"x\" ws\nws ::= ([ \\t\\n] ws)?", []string{"x", "  x\n"}, []string{"", " "}},
		{`root ::= "a" root "b" | ""`, []string{"", "ab", "aaabbb"}, []string{"aab", "abb"}},
		{"root ::= item+\nitem ::= [ab]+ | \"(\" root \")\"", []string{"aabab(a)b", "((a)(b))"},
			[]string{"(", "()"}},
		{`root ::= "\u00e9\U0001F600\[\]\""`, []string{`é😀[]"`}, nil},
	} {
		g := compiled(t, Spec{Kind: Grammar, Text: c.grammar}, v)
		checkTexts(t, g, v, c.grammar, c.yes, c.no)
		r := rand.New(rand.NewPCG(5, 5))
		for range 10 {
			wander(t, r, g, v, 12)
		}
	}
}

// checkTexts checks which texts a constraint admits.
func checkTexts(t *testing.T, g *Compiled, v *Vocabulary, of string, yes, no []string) {
	t.Helper()
	for _, s := range yes {
		if !accepts(g, v, s) {
			t.Errorf("%s: %q is refused", of, s)
		}
	}
	for _, s := range no {
		if accepts(g, v, s) {
			t.Errorf("%s: %q is admitted", of, s)
		}
	}
}

func TestTokensInGrammars(t *testing.T) {
	v := small()
	tool, _ := v.Special("<tool>")
	end, _ := v.Special("</tool>")
	stop, _ := v.Special("<end>")
	c := compiled(t, Spec{Kind: Grammar, Text: `root ::= !<tool>* <tool> [a-c]+ </tool>`}, v)
	m := c.Matcher()
	for i, step := range []struct {
		token int32
		ok    bool
	}{{stop, false}, {1, true}, {end, true}, {tool, true}, {tool, false}, {end, false}, {3, true},
		{1, true}, {end, true}, {1, false}} {
		agree(t, "tokens", m, v)
		if got := m.Accept(step.token); got != step.ok {
			t.Fatalf("step %d: token %d: %v", i, step.token, got)
		}
	}
	if !m.Accepting() {
		t.Error("the text does not end")
	}
}

func TestEBNFErrors(t *testing.T) {
	v := small()
	for text, want := range map[string]string{
		"root ::= a":                                 "at 1:10: the rule a is not defined",
		"x ::= \"a\"":                                "at 1:1: there is no rule root",
		"root ::= \"a\" root":                        "at 1:1: no text satisfies it",
		"# c\nx ::= x\nroot ::= \"a\" x":             "at 3:1: no text satisfies it",
		"root ::= \"a\nroot ::= \"b\"":               "at 1:12: missing \"",
		"root ::= \"a\"\nroot ::= \"b\"":             "at 2:1: the rule root is defined twice",
		"root ::= (\"a\"":                            "missing )",
		"root ::= \"a\")":                            "a rule, name ::= …, is expected",
		"root ::= [b-a]":                             "range from 'b' to 'a'",
		"root ::= [a":                                "missing ]",
		"root ::= \"\\q\"":                           "unknown escape \\q",
		"root ::= \"a\"{x}":                          "a count",
		"root ::= \"a\"{3,2}":                        "at least 3 and at most 2",
		"root ::= * \"a\"":                           "'*' is not expected",
		"root ::= <nothing>":                         "there is no token <nothing>",
		"root ::= <[x]>":                             "without the id of a token",
		"root ::= (= \"a\") \"a\"":                   "look-ahead is not supported",
		"root ::= " + strings.Repeat("(", 100000):    "more than 1000 nested groups",
		"root ::= \"a\"" + strings.Repeat("*", 5000): "more than 1000 nested counts",
		"hello ::=":                                  "there is no rule root",
		"root ::= \"a\" ::= b":                       "':' is not expected",
	} {
		_, err := Compile(Spec{Kind: Grammar, Text: text}, v, Limits{})
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v instead of %q", text, err, want)
		}
	}
}

// TestDeepGrammars holds that what a grammar can be written to be in 256 KiB ends soon.
func TestDeepGrammars(t *testing.T) {
	v := small()
	var chain, doubles, wide strings.Builder
	chain.WriteString("root ::= r0\n")
	doubles.WriteString("root ::= r0\n")
	for i := range 8000 {
		fmt.Fprintf(&chain, "r%d ::= \"a\" r%d | \"(\" r0 \")\"\n", i, i+1)
		fmt.Fprintf(&doubles, "r%d ::= r%d r%d\n", i, i+1, i+1)
	}
	chain.WriteString("r8000 ::= \"b\"")
	doubles.WriteString("r8000 ::= \"b\" | \"a\"")
	wide.WriteString("root ::= \"x\" root \"y\"")
	for i := range 20000 {
		fmt.Fprintf(&wide, " | \"k%d\"", i)
	}
	for name, text := range map[string]string{"chain": chain.String(), "doubles": doubles.String(),
		"wide": wide.String(), "ambiguous": "root ::= root root root | \"a\" | \"\" | root root",
		"counts": "root ::= ((\"a\"{0,1000} \"b\"?){0,1000} root?){0,1000}"} {
		c, err := Compile(Spec{Kind: Grammar, Text: text}, v, Limits{})
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || !e.TooComplex {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		m := c.Matcher()
		mask := make([]uint32, v.Words())
		for range 30 {
			m.Mask(mask)
			n, id := count(mask)
			if n == 0 || m.Exhausted() || !m.Accept(id) {
				break
			}
		}
	}
}

func FuzzGrammar(f *testing.F) {
	f.Add("root ::= \"a\" root \"b\" | [^a-c]{2,5} x?\nx ::= x \"é\" | <tool>", uint64(1))
	f.Add("root ::= ((\"a\" | root)* \"b\"+)? #", uint64(2))
	v := small()
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		c, err := Compile(Spec{Kind: Grammar, Text: text}, v,
			Limits{Compile: 20000, Steps: 20000, Items: 20000, RowItems: 1000})
		if err != nil {
			return
		}
		r := rand.New(rand.NewPCG(seed, 1))
		m := c.Matcher()
		mask := make([]uint32, v.Words())
		for range 5 {
			m.Mask(mask)
			if m.Exhausted() {
				return
			}
			n, _ := count(mask)
			if n == 0 {
				if !m.Accepting() {
					t.Fatalf("a dead end")
				}
				return
			}
			for {
				id := int32(r.IntN(32 * len(mask)))
				if mask[id>>5]>>(id&31)&1 == 0 {
					continue
				}
				if !m.Accept(id) && !m.Exhausted() {
					t.Fatalf("token %d is in the mask and not accepted", id)
				}
				break
			}
		}
	})
}
