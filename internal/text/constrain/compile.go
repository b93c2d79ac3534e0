package constrain

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/ebnf"
	"github.com/eagleray/eagleray/internal/text/constrain/lark"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/constrain/schema"
	"github.com/eagleray/eagleray/internal/text/constrain/tag"
)

type regexBuilder = regex.Builder

// Limits bound what a constraint may cost. Zero fields have defaults.
type Limits struct {
	// Text is the length of a Spec's text in bytes; 1 MiB. A regular expression has a 64th of it.
	Text int
	// Compile is the operations on expressions to compile; 2²⁰.
	Compile int
	// Schema is the operations that resolving the schemas in a constraint may take; 4,000,000.
	Schema int
	// Symbols is the size of a grammar in symbols; 500,000.
	Symbols int
	// Steps and Items are the operations on expressions, and the places in rules, that one mask,
	// and going on by one token, may take; 2,000,000 and 600,000.
	Steps, Items int
	// Answer and Token bound the work of an answer in operations: Answer in all, 6,000,000, and
	// Token more for each of its tokens, 5,000. Work that was done for another answer does not
	// count again.
	Answer, Token int
	// AnswerItems is the places in rules on the way of an answer, which last as long as it does;
	// 2,000,000.
	AnswerItems int
	// Bytes is the memory of the tables of a constraint, as regex.Builder counts it; 64 MiB. A
	// process has up to three times as much for it while they grow.
	Bytes int
	// Brief gives up on what takes more than a sixteenth of Compile, Schema, Symbols and Bytes to
	// compile, with an error that is TooComplex.
	Brief bool
	// States is the lexer states that a constraint may come to have; 250,000.
	States int
	// RowItems is the places in rules at one place of the text; 20,000.
	RowItems int
	// Choices is the number of texts of a choice; 10,000.
	Choices int
	// Stop, as soon as it says so, ends Compile with ErrStopped; nil never does.
	Stop func() bool
}

// ErrStopped is why Compile has ended before it was done.
var ErrStopped = errors.New("compiling has been stopped")

// Defaults are the limits that zero fields stand for.
func Defaults() Limits { return Limits{}.filled() }

func (l Limits) filled() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{{&l.Text, 1 << 20}, {&l.Compile, 1 << 20}, {&l.Schema, schema.Fuel},
		{&l.Symbols, 500_000}, {&l.Steps, 2_000_000}, {&l.Items, 600_000}, {&l.Answer, 6_000_000},
		{&l.Token, 5000},
		{&l.AnswerItems, 2_000_000}, {&l.Bytes, 64 << 20}, {&l.States, 250_000},
		{&l.RowItems, 20_000}, {&l.Choices, 10_000}} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return l
}

// itemsPerStep is how many places in rules are the work of an operation on expressions.
const itemsPerStep = 8

// Compile makes a constraint ready. It takes no longer than the limits let it, whatever the text;
// equal specs are compiled alike everywhere. An error is an *Error, or ErrStopped.
func Compile(s Spec, v *Vocabulary, limits Limits) (*Compiled, error) {
	limits = limits.filled()
	stop := limits.Stop
	limits.Stop = nil    // masks are made long after
	most := limits.Bytes // when it is compiled
	if limits.Brief {
		const part = 16
		limits.Compile, limits.Schema = limits.Compile/part, limits.Schema/part
		limits.Symbols, limits.Bytes = limits.Symbols/part, limits.Bytes/part
	}
	longest := limits.Text
	if s.Kind == Regex {
		longest /= 64
	}
	if len(s.Text) > longest {
		return nil, &Error{TooComplex: true, Code: cfg.GrammarTooComplex, Reason: fmt.Sprintf(
			"a text of %d bytes, more than %d", len(s.Text), longest)}
	}
	if !utf8.ValidString(s.Text) {
		return nil, &Error{Code: cfg.GrammarSyntax, Reason: "the text is not UTF-8"}
	}
	b := regex.NewBuilder(limits.Compile)
	b.Limit(limits.Bytes)
	b.StopAt(stop)
	g := cfg.New(b, cfg.Greedy, limits.Symbols)
	start, place, err := front(g, s, v, limits)
	if b.Stopped() {
		return nil, ErrStopped
	}
	if b.Full() {
		return nil, tooLarge(s, limits)
	}
	if err != nil {
		return nil, err
	}
	c, e := link(g, start, v, limits)
	if b.Stopped() {
		return nil, ErrStopped
	}
	if e == nil {
		b.Limit(most)
		b.StopAt(nil)
		return c, nil
	}
	if b.Full() {
		return nil, tooLarge(s, limits)
	}
	if e.Pointer == "" {
		e.Pointer = place
	}
	return nil, e
}

// tooLarge is the error of a constraint whose tables do not fit the limits.
func tooLarge(s Spec, limits Limits) *Error {
	e := &Error{Code: cfg.GrammarTooComplex, TooComplex: true, Subject: "memory",
		Reason: fmt.Sprintf(
			"to enforce it takes more than %d MiB of memory: fewer or simpler alternatives and "+
				"patterns "+
				"take less", limits.Bytes>>20)}
	if s.Kind == JSONSchema {
		e.Code = cfg.SchemaTooLarge
	}
	return e
}

// front is the grammar of a spec, and the place where it starts in the text, where that is known.
func front(g *cfg.Grammar, s Spec, v *Vocabulary, limits Limits) (start cfg.Sym, place string,
	err error) {

	switch s.Kind {
	case Regex:
		start, err = pattern(g, s.Text)
	case Choice:
		start, err = choice(g, s.Text, limits)
	case JSONObject:
		start = jsonObject(g, s.Compact)
	case JSONSchema:
		start, err = newSchemas(g, s, limits).compile(s.Text, schema.Options{})
	case StructuralTag:
		start, err = tag.Compile(s.Text, g, host(g, s, v, limits))
	case Grammar:
		start, place, err = grammar(g, s.Text, newSchemas(g, s, limits), v)
	default:
		err = &Error{Code: cfg.GrammarUnsupported,
			Reason: fmt.Sprintf("constraints of the kind %s are not supported", s.Kind)}
	}
	return start, place, refused(err)
}

// refused is the error of a front end.
func refused(err error) error {
	var e *cfg.Error
	if !errors.As(err, &e) {
		return err
	}
	at := e.Pointer
	if e.Line > 0 {
		at = fmt.Sprintf("%d:%d", e.Line, e.Column)
	}
	return &Error{Code: e.Code, Pointer: at, Source: e.Source, Reason: e.Reason,
		Subject:    e.Subject,
		TooComplex: e.Code == cfg.SchemaTooComplex || e.Code == cfg.GrammarTooComplex}
}

// schemas compiles the schemas of a constraint: what they may take is for all of them.
type schemas struct {
	g       *cfg.Grammar
	options schema.Options
	limits  schema.Limits
}

func newSchemas(g *cfg.Grammar, s Spec, limits Limits) *schemas {
	left := limits.Schema
	return &schemas{g, schema.Options{Compact: s.Compact, Closed: s.Closed, AnyOrder: s.AnyOrder},
		schema.Limits{Fuel: limits.Schema, Left: &left}}
}

// compile is the symbol of a schema's valid texts, as o says beside the constraint's own options.
func (s *schemas) compile(text string, o schema.Options) (cfg.Sym, error) {
	return schema.Compile(text, s.g, s.with(o), s.limits)
}

// members are those of the objects of a schema.
func (s *schemas) members(text string, o schema.Options) (schema.Object, error) {
	return schema.Members(text, s.g, s.with(o), s.limits)
}

func (s *schemas) with(o schema.Options) schema.Options {
	o.Compact, o.AnyOrder = s.options.Compact, s.options.AnyOrder
	o.Closed = o.Closed || s.options.Closed
	return o
}

// host compiles what is inside of structural tags.
func host(g *cfg.Grammar, s Spec, v *Vocabulary, limits Limits) tag.Host {
	of := newSchemas(g, s, limits)
	return tag.Host{
		Special:   v.Special,
		IsSpecial: func(id int32) bool { return slices.Contains(v.texts, id) },
		Texts:     slices.Sorted(maps.Keys(v.special)),
		Schema:    of.compile,
		Members:   of.members,
		Pattern:   func(text string) (cfg.Sym, error) { return pattern(g, text) },
		Grammar: func(text string) (cfg.Sym, error) {
			start, _, err := grammar(g, text, of, v)
			return start, err
		},
	}
}

// grammar is that of a text in one of the notations: one with ::= is EBNF, another is Lark's.
func grammar(g *cfg.Grammar, text string, of *schemas, v *Vocabulary) (cfg.Sym, string, error) {

	if strings.Contains(text, "::=") {
		return ebnf.Compile(text, g, v.Special)
	}
	return lark.Compile(text, g, lark.Host{Special: v.Special,
		Schema: func(text string) (cfg.Sym, error) { return of.compile(text, schema.Options{}) }})
}

func pattern(g *cfg.Grammar, text string) (cfg.Sym, error) {
	for i := range len(text) {
		if text[i] == 0 {
			return cfg.None, &cfg.Error{Code: cfg.RegexInvalid, Reason: "a NUL character"}
		}
	}
	x, err := g.B.Pattern(text, regex.Syntax{Python: true})
	var syntax *regex.SyntaxError
	switch {
	case errors.As(err, &syntax) && syntax.Unsupported:
		return cfg.None, &cfg.Error{Code: cfg.RegexUnsupported, Reason: err.Error()}
	case errors.As(err, &syntax):
		return cfg.None, &cfg.Error{Code: cfg.RegexInvalid, Reason: err.Error()}
	case err != nil:
		return cfg.None, &cfg.Error{Code: cfg.GrammarTooComplex, Reason: err.Error()}
	}
	return g.Lexeme(x), nil
}

func choice(g *cfg.Grammar, text string, limits Limits) (cfg.Sym, error) {
	var texts []string
	if err := json.Unmarshal([]byte(text), &texts); err != nil {
		return cfg.None, &Error{Code: cfg.ChoiceInvalid, Reason: "a choice is a list of strings"}
	}
	switch {
	case len(texts) == 0:
		return cfg.None, &Error{Code: cfg.ChoiceInvalid, Reason: "a choice of nothing"}
	case len(texts) > limits.Choices:
		return cfg.None, &Error{Code: cfg.ChoiceInvalid, TooComplex: true,
			Reason: fmt.Sprintf("a choice of %d texts, more than %d", len(texts), limits.Choices)}
	}
	if i := slices.Index(texts, ""); i >= 0 {
		return cfg.None, &Error{Code: cfg.ChoiceInvalid, Pointer: fmt.Sprintf("/%d", i),
			Reason: "an empty text"}
	}
	return g.Lexeme(g.B.Lits(texts)), nil
}

// link makes the tables of a grammar that a front end has made.
func link(g *cfg.Grammar, start cfg.Sym, v *Vocabulary, limits Limits) (*Compiled, *Error) {
	tooComplex := func(what string) *Error {
		return &Error{Code: cfg.GrammarTooComplex, Reason: what, TooComplex: true}
	}
	p, complex := newProgram(g, start)
	switch {
	case g.Full():
		return nil, tooComplex(fmt.Sprintf("more than %d symbols", limits.Symbols))
	case g.B.Exhausted():
		return nil, tooComplex(fmt.Sprintf("more than %d operations", limits.Compile))
	case complex:
		return nil, tooComplex("too many symbols depend on each other")
	case p == nil:
		return nil, &Error{Code: cfg.GrammarEmpty, Reason: "no text satisfies it"}
	}
	c := &Compiled{b: g.B, vocab: v, limits: limits, scannerless: g.Mode == cfg.Scannerless,
		scratch: make([]uint32, v.words),
		levels:  make([]int32, v.longest+2)}
	g.B.Refuel(limits.Compile)
	c.parser = newParser(p, newLexer(g.B, limits.States), limits.Items,
		limits.RowItems)
	if c.parser.spent() {
		return nil, tooComplex(fmt.Sprintf("more than %d places in rules at the beginning",
			limits.RowItems))
	}
	return c, nil
}
