package cfg

import (
	"testing"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

func TestSymbolsAreShared(t *testing.T) {
	g := New(regex.NewBuilder(1000), Greedy, 100)
	if a, b := g.Lit("x"), g.Lexeme(g.B.Bytes('x', 'x')); a != b {
		t.Errorf("one expression is two lexemes: %d, %d", a, b)
	}
	if a, b := g.Tokens(3, 1, 3), g.Tokens(1, 3); a != b || len(g.At(a).IDs) != 2 {
		t.Errorf("one set of tokens is two symbols: %d, %d", a, b)
	}
	if g.Tokens(1) == g.TokensExcept(1) {
		t.Error("a set of tokens is its complement")
	}
	if s := g.Lit("y"); g.Seq(s) != s || g.Alt(s) != s {
		t.Error("a single symbol is wrapped")
	}
}

func TestLimit(t *testing.T) {
	g := New(regex.NewBuilder(1000), Greedy, 50)
	nt := g.Nonterminal("n")
	for range 100 {
		g.Rule(nt, nt, nt)
	}
	if !g.Full() || len(g.At(nt).Rules) > 50 {
		t.Errorf("%d rules, full: %v", len(g.At(nt).Rules), g.Full())
	}
}

func TestError(t *testing.T) {
	for want, e := range map[string]Error{
		"/a/b: no (schema_invalid)": {Code: SchemaInvalid, Pointer: "/a/b",
			Reason: "no"},
		"line 2, column 3: no (grammar_syntax)": {Code: GrammarSyntax, Line: 2, Column: 3,
			Reason: "no"},
		"an empty list of texts (choice_invalid)": {Code: ChoiceInvalid,
			Reason: "an empty list of texts"},
	} {
		if got := e.Error(); got != want {
			t.Errorf("%q instead of %q", got, want)
		}
	}
}
