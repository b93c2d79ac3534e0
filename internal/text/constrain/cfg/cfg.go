// Package cfg is the form that every kind of constraint is brought into before it is matched:
// context-free rules over lexemes (regular expressions over bytes), special tokens, and counted
// lists. A front end (JSON Schema, structural tags, EBNF, Lark) makes a Grammar with the methods
// here and names a start; package constrain matches it.
//
// What the matcher guarantees of a Grammar: a text is matched if and only if the start derives it,
// read as Mode says. Recursion of every kind is allowed, left, right and hidden, as are rules that
// match the empty text and rules that never end: a symbol that derives no finite text is cut out
// wherever it stands, and a start that does not is an error when the grammar is compiled. No text
// that is admitted so far is a dead end. What is defined and never reached costs nothing.
package cfg

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// Error says why a constraint is refused.
type Error struct {
	// Code is one of the reasons below.
	Code string
	// Pointer is the JSON pointer into the schema, or "".
	Pointer string
	// Source names the schema, where a structural tag says whose it is; Pointer is then into that
	// schema alone.
	Source string
	// Line and Column, from 1, are the place in the text of a grammar, or 0.
	Line, Column int
	// Reason is the sentence, lower case.
	Reason string
	// Subject is the keyword or construct at fault, for counts of reasons; it may be "".
	Subject string
}

// The reasons of an Error.
const (
	SchemaInvalid       = "schema_invalid"
	SchemaUnsupported   = "schema_unsupported"
	SchemaUnsatisfiable = "schema_unsatisfiable"
	SchemaTooComplex    = "schema_too_complex"
	SchemaTooLarge      = "schema_too_large"
	RemoteRef           = "remote_ref"
	RegexInvalid        = "regex_invalid"
	RegexUnsupported    = "regex_unsupported"
	GrammarSyntax       = "grammar_syntax"
	GrammarUndefined    = "grammar_undefined_rule"
	GrammarEmpty        = "grammar_empty"
	GrammarUnsupported  = "grammar_unsupported"
	GrammarTooComplex   = "grammar_too_complex"
	TagInvalid          = "structural_tag_invalid"
	ChoiceInvalid       = "choice_invalid"
)

func (e *Error) Error() string {
	at := ""
	switch {
	case e.Line > 0:
		at = fmt.Sprintf("line %d, column %d: ", e.Line, e.Column)
	case e.Pointer != "":
		at = e.Pointer + ": "
	}
	return at + e.Reason + " (" + e.Code + ")"
}

// Mode says how a text is cut into lexemes.
type Mode uint8

const (
	// Greedy takes, of the lexemes that the grammar allows here, the longest run of bytes that one
	// of them goes on with: a lexeme ends only where no allowed lexeme can take the next byte.
	// Lexemes that end together are all tried. JSON and Lark are read so.
	Greedy Mode = iota
	// Scannerless takes every way to cut the text: the language is that of the rules over
	// characters. GBNF and EBNF are read so.
	Scannerless
)

// Sym is a symbol of a Grammar.
type Sym int32

// None is no symbol: a List without a separator has it.
const None Sym = 0

// Kinds of symbols.
type Kind uint8

const (
	KindNone   Kind = iota
	KindLexeme      // Ex
	KindTokens      // IDs, Except
	KindRules       // Rules
	KindList        // List
)

// Symbol is what a Sym stands for.
type Symbol struct {
	Kind Kind
	Name string // of rules, for messages

	Ex regex.Ex

	IDs    []int32 // special tokens, sorted
	Except bool    // all special tokens but IDs

	Rules [][]Sym // alternatives of a nonterminal

	List *List
}

// Len is the number of symbols that a symbol is made of.
func (s *Symbol) Len() int {
	n := 1
	for _, r := range s.Rules {
		n += 1 + len(r)
	}
	if s.List != nil {
		n += len(s.List.Elems)
	}
	return n
}

// List is elements, each a symbol with how often it stands there, and a separator between every
// two of them.
type List struct {
	// Sep stands between two elements; None for nothing.
	Sep Sym
	// Elems cost time in proportion to how many they are at every place where the list goes on;
	// with AnyOrder and bounds of the list, to the square of that.
	Elems []Elem
	// Min and Max bound how many elements there are in all; Max may be Inf.
	Min, Max int
	// AnyOrder lets elements stand in any order, mixed; else they stand in the order of Elems.
	AnyOrder bool
	// Prefix lets the list end after every element, if Min is kept: elements stand one after
	// another without gaps, each as often as its Min says at least, but none needs to be reached.
	// It is not combined with AnyOrder.
	Prefix bool
}

// Elem is one element of a List, Min to Max times; Max may be Inf.
type Elem struct {
	Sym      Sym
	Min, Max int
}

// Inf as an upper bound is no bound.
const Inf = -1

// Grammar is a set of symbols. It is used by one goroutine at a time.
type Grammar struct {
	// B has the expressions of the lexemes.
	B *regex.Builder
	// Mode says how texts are read.
	Mode Mode

	syms    []Symbol
	lexemes map[regex.Ex]Sym
	tokens  map[string]Sym
	size    int
	limit   int
	over    bool
}

// New is a grammar without symbols, that takes at most limit symbols and elements of rules and
// lists.
func New(b *regex.Builder, mode Mode, limit int) *Grammar {
	return &Grammar{B: b, Mode: mode, syms: make([]Symbol, 1), lexemes: map[regex.Ex]Sym{},
		tokens: map[string]Sym{}, limit: limit}
}

// Full says whether the grammar has had to leave something out, because its limit is reached. A
// front end looks now and then, and gives up with the code schema_too_complex or
// grammar_too_complex.
func (g *Grammar) Full() bool { return g.over }

// Len is the number of symbols; the Syms are 1 to Len.
func (g *Grammar) Len() int { return len(g.syms) - 1 }

// At is what s stands for. The slices are the grammar's own.
func (g *Grammar) At(s Sym) *Symbol { return &g.syms[s] }

// symbolBytes is what a symbol, or an element of a rule or list, takes here and in the tables that
// are made of it, about.
const symbolBytes = 120

func (g *Grammar) add(s Symbol, size int) Sym {
	if g.spend(size + 1) {
		g.syms = append(g.syms, s)
	}
	return Sym(len(g.syms) - 1)
}

func (g *Grammar) spend(n int) bool {
	if g.size += n; g.size > g.limit {
		g.over = true
	}
	g.B.Hold(n * symbolBytes)
	return !g.over
}

// Lexeme is a symbol for a text that x matches; equal expressions are one symbol. An x that matches
// nothing is a symbol that derives nothing. The empty text, where x matches it, is matched too.
func (g *Grammar) Lexeme(x regex.Ex) Sym {
	if s, ok := g.lexemes[x]; ok {
		return s
	}
	s := g.add(Symbol{Kind: KindLexeme, Ex: x}, 0)
	g.lexemes[x] = s
	return s
}

// Lit is the lexeme of exactly text.
func (g *Grammar) Lit(text string) Sym { return g.Lexeme(g.B.Lit(text)) }

// Tokens is a symbol for one of the special tokens: those that stand for no bytes, such as
// <tool_call>. Of a token known by its text only the vocabulary has the id.
func (g *Grammar) Tokens(ids ...int32) Sym { return g.special(false, ids) }

// TokensExcept is a symbol for every special token but these. Tokens that end an answer are never
// among them.
func (g *Grammar) TokensExcept(ids ...int32) Sym { return g.special(true, ids) }

func (g *Grammar) special(except bool, ids []int32) Sym {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	key := fmt.Sprint(except, ids)
	if s, ok := g.tokens[key]; ok {
		return s
	}
	s := g.add(Symbol{Kind: KindTokens, IDs: ids, Except: except}, len(ids))
	g.tokens[key] = s
	return s
}

// Nonterminal is a symbol without rules yet: it derives nothing until Rule gives it some. The name
// is for messages, and need not be unique.
func (g *Grammar) Nonterminal(name string) Sym {
	return g.add(Symbol{Kind: KindRules, Name: name}, 0)
}

// Rule adds an alternative to a nonterminal: the symbols of rhs one after another; without any,
// the empty text.
func (g *Grammar) Rule(nt Sym, rhs ...Sym) {
	if s := &g.syms[nt]; s.Kind == KindRules && g.spend(len(rhs)+1) {
		s.Rules = append(s.Rules, slices.Clone(rhs))
	}
}

// Seq is a symbol for the symbols one after another.
func (g *Grammar) Seq(syms ...Sym) Sym {
	if len(syms) == 1 {
		return syms[0]
	}
	nt := g.Nonterminal("")
	g.Rule(nt, syms...)
	return nt
}

// Alt is a symbol for any one of the symbols; without any it derives nothing.
func (g *Grammar) Alt(syms ...Sym) Sym {
	if len(syms) == 1 {
		return syms[0]
	}
	nt := g.Nonterminal("")
	for _, s := range syms {
		g.Rule(nt, s)
	}
	return nt
}

// Opt is a symbol for s or nothing.
func (g *Grammar) Opt(s Sym) Sym {
	nt := g.Nonterminal("")
	g.Rule(nt)
	g.Rule(nt, s)
	return nt
}

// Rep is a symbol for x, lo to hi times (hi may be Inf), with sep (or None) between every two. A
// count costs the same whatever its value.
func (g *Grammar) Rep(x, sep Sym, lo, hi int) Sym {
	return g.List(List{Sep: sep, Elems: []Elem{{x, lo, hi}}, Max: Inf})
}

// List is a symbol for a list. Counts above 2³¹-1 are taken for that. A list whose bounds cannot
// be kept derives nothing. An element that may be empty is one that may be missing, where the list
// has no separator.
func (g *Grammar) List(l List) Sym {
	l.Elems = slices.Clone(l.Elems)
	return g.add(Symbol{Kind: KindList, List: &l}, len(l.Elems)+1)
}
