package constrain

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestLark(t *testing.T) {
	v := small()
	for _, c := range []struct {
		grammar string
		yes, no []string
	}{
		{`start: expr
?expr: expr ("+" | "-") term -> sum
    | term
term: factor
    | term "*" factor // product
factor: NUMBER | "(" expr ")"
%import common.NUMBER
%import common (WS_INLINE, WS -> BLANK)
%ignore WS_INLINE`, []string{"1", "1 + 2*(3.5-  4e1)", " 1"}, []string{"", "1 +", "1\n+2", "(1", "1 "}},
		{"start: \"list\"i [\"en\"] \"ed\"", []string{"listed", "LISTened"}, []string{"listEN",
			"listen"}},
		{"start: A ~ 2 B~1..2 C{2,3}\nA: \"a\"..\"c\"\nB: /x|y/i\nC: \"d\"", []string{"abXdd",
			"acxYddd"}, []string{"aXdd", "abXd", "abXyxdd"}},
		{"start: WORD & ~(/a.*/ | \"b\")\n%import common.WORD", []string{"b1"}[:0], []string{"abc",
			"b"}},
		{"start: W\nW: WORD & ~(/a.*/ | \"b\")\n%import common.WORD", []string{"bc", "c"},
			[]string{"abc", "b", "1"}},
		{"start: text \"x\"\ntext[lazy]: /[a-z ]*;/", []string{"ab c;x", ";x"}, []string{"ab",
			"a;b;x"}},
		{"start: %json {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}},\n" +
			" \"required\": [\"a\"], \"additionalProperties\": false} \"!\"", []string{`{"a": 1}!`},
			[]string{`{}!`, `{"a":1}`}},
		{"start: x*\nx: \"a\" | \"(\" start \")\"\n  | \"b\"", []string{"", "ab(a)(())"},
			[]string{"(", "c"}},
		{"start: ESCAPED_STRING C_COMMENT\n%import common.ESCAPED_STRING\n%import common.C_COMMENT",
			[]string{`"a\"b"/* x ** y */`}, []string{`"a"/* x`}},
		{"start: \"a\" start |\n", []string{"", "aaa"}, []string{"b"}},
	} {
		g, err := Compile(Spec{Kind: Grammar, Text: c.grammar}, v, Limits{})
		if err != nil {
			if len(c.yes) > 0 {
				t.Errorf("%s: %v", c.grammar, err)
			}
			continue
		}
		checkTexts(t, g, v, c.grammar, c.yes, c.no)
		r := rand.New(rand.NewPCG(5, 5))
		for range 5 {
			wander(t, r, g, v, 10)
		}
	}
}

func TestLarkErrors(t *testing.T) {
	v := small()
	for text, want := range map[string]string{
		"start: x":                             "at 1:8: the rule x is not defined",
		"x: \"a\"":                             "at 1:1: there is no rule start",
		"\nstart: \"a\" start":                 "at 2:1: no text satisfies it",
		"start: \"a\"\nstart: \"b\"":           "at 2:1: the rule start is defined twice",
		"start: (\"a\"":                        "missing )",
		"start: \"a\")":                        "the end of the line is expected",
		"start: \"a":                           "missing \"",
		"start: /a":                            "missing / at the end of a pattern",
		"start: /a(/":                          "at 1:8: at offset 2: missing )",
		"start: /(?>a)b/":                      "an atomic group is not supported",
		"start: /(?<=a)b/":                     "no text satisfies it",
		"start: A\nA: \"x\" A | \"y\" A \"z\"": "A is a terminal, and uses itself",
		"start: \"b\"..\"a\"":                  "a range is of two characters",
		"start{x}: x":                          "a template is not supported",
		"start.2: \"a\"":                       "a priority is not supported",
		"start[stop=\"x\"]: \"a\"":             "the attribute stop is not supported",
		"%declare X\nstart: X":                 "the directive %declare is not supported",
		"%import x.Y\nstart: Y": "an import from another module than common " +
			"is not supported",
		"%import common.NOPE\nstart: NOPE":         "there is no terminal common.NOPE",
		"start: <nothing>":                         "there is no token <nothing>",
		"start: <[1-x]>":                           "without the ids of tokens",
		"start: %regex {}":                         "%regex is not supported",
		"start: %json {":                           "%json without a schema",
		"start: %json {\"type\": 7}":               "in the schema, at /type",
		"start: \"a\"~3..2":                        "at least 3 and at most 2",
		"start: " + strings.Repeat("(", 100000):    "more than 1000 nested groups",
		"start: \"a\"" + strings.Repeat("+", 5000): "more than 1000 nested counts",
		"start: x\nx: \"a\" x & \"b\"":             "&, ~ and [lazy] are of terminals only",
		"hello world":                              "missing : after hello",
		"":                                         "there is no rule start",
	} {
		_, err := Compile(Spec{Kind: Grammar, Text: text}, v, Limits{})
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v instead of %q", text, err, want)
		}
	}
}

func FuzzLark(f *testing.F) {
	f.Add("start: a+ | B \"x\"i~2..3 //c\na: /[a-z]+/ & ~\"b\" | <[1-3]>\n  | %json {\"type\": " +
		"\"null\"}\nB[lazy]: \"q\"..\"z\"\n%ignore \" \"")
	f.Add("start: NUMBER\n%import common (NUMBER, WS -> X)\n%ignore X")
	v := small()
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "::=") {
			return
		}
		c, err := Compile(Spec{Kind: Grammar, Text: text}, v,
			Limits{Compile: 20000, Steps: 20000, Items: 20000, RowItems: 1000})
		if err != nil {
			return
		}
		m := c.Matcher()
		mask := make([]uint32, v.Words())
		for range 4 {
			m.Mask(mask)
			n, id := count(mask)
			if n == 0 || m.Exhausted() {
				return
			}
			if !m.Accept(id) && !m.Exhausted() {
				t.Fatalf("token %d is in the mask and not accepted", id)
			}
		}
	})
}
