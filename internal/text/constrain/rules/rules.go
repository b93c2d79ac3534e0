// Package rules has what the notations of grammars have in common: rules over expressions as they
// are written, the check that they make sense, and the way from there to a cfg.Grammar. Rules that
// are regular become one lexeme, whatever number of them they are written as.
package rules

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// Kind says what an Expr is.
type Kind uint8

// Kinds of expressions.
const (
	Pattern Kind = iota // Ex
	Ref                 // the rule Name
	Seq                 // Subs one after another
	Alt                 // any of Subs
	Rep                 // Subs[0], Min to Max times (regex.Inf)
	And                 // all of Subs, which are regular
	Not                 // what Subs[0], which is regular, does not match
	Lazy                // the texts of Subs[0], which is regular, that begin with no other of them
	Symbol              // Sym, made elsewhere
)

// Expr is an expression as written.
type Expr struct {
	Kind     Kind
	At       int // the offset in the text
	Name     string
	Ex       regex.Ex
	Size     int // of Ex, written out
	Sym      cfg.Sym
	Subs     []*Expr
	Min, Max int
}

// Rule is a name for an expression.
type Rule struct {
	Name string
	At   int
	Body *Expr
	// Terminal makes the rule one lexeme where the grammar is read greedily. It must be regular.
	Terminal bool
}

// Source is a text with places in it.
type Source string

// Fail is an error about a place.
func (s Source) Fail(code string, at int, format string, args ...any) *cfg.Error {
	at = min(max(at, 0), len(s))
	line, start := 1, 0
	for i := range at {
		if s[i] == '\n' {
			line, start = line+1, i+1
		}
	}
	column := 1
	for range s[start:at] {
		column++
	}
	return &cfg.Error{Code: code, Line: line, Column: column, Reason: fmt.Sprintf(format, args...)}
}

// Place is where at is, as "line:column".
func (s Source) Place(at int) string {
	e := s.Fail("", at, "")
	return fmt.Sprintf("%d:%d", e.Line, e.Column)
}

// Emit adds the symbols of rules to a grammar and returns that of the rule named start. Every name
// that is used must be defined. Rules may be recursive in any way; whether they derive a text at
// all is not looked at. Where the grammar is read greedily, ignored may stand before every lexeme,
// any number of times. An error is a *cfg.Error with a line and a column.
func Emit(
	g *cfg.Grammar, src Source, list []Rule, start string, ignored regex.Ex,
) (cfg.Sym, error) {
	e := newEmitter(g, src, list)
	e.ignored = g.B.Star(ignored)
	root := e.rules[start]
	if e.err == nil && root == nil {
		e.err = src.Fail(cfg.GrammarUndefined, 0, "there is no rule %s", start)
	}
	if e.err != nil {
		return cfg.None, e.err
	}
	s := e.ref(root)
	for len(e.todo) > 0 && e.err == nil {
		r := e.todo[len(e.todo)-1]
		e.todo = e.todo[:len(e.todo)-1]
		e.define(r)
	}
	if e.err != nil {
		return cfg.None, e.err
	}
	return s, nil
}

// Regular is the expression of x, which must be regular and may use terminals of the rules.
func Regular(g *cfg.Grammar, src Source, list []Rule, x *Expr) (regex.Ex, error) {
	e := newEmitter(g, src, append(list[:len(list):len(list)],
		Rule{Name: "%", At: x.At, Body: x, Terminal: true}))
	if e.err != nil {
		return regex.Empty, e.err
	}
	r := e.rules["%"]
	if !r.regular {
		return regex.Empty, src.Fail(cfg.GrammarTooComplex, x.At, "the grammar is too complex")
	}
	return r.folded, nil
}

// newEmitter knows all rules by their names, and those that are regular as expressions.
func newEmitter(g *cfg.Grammar, src Source, list []Rule) *emitter {
	e := &emitter{g: g, src: src, rules: make(map[string]*rule, len(list)),
		rigid: map[*Expr]bool{}, repeats: map[*Expr]cfg.Sym{}}
	for i := range list {
		r := &list[i]
		if e.rules[r.Name] != nil {
			e.fail(cfg.GrammarSyntax, r.At, "the rule %s is defined twice", r.Name)
			return e
		}
		e.rules[r.Name] = &rule{Rule: r}
	}
	for i := range list {
		e.names(list[i].Body, e.rules[list[i].Name])
	}
	if e.err == nil {
		e.foldAll(list)
	}
	return e
}

// rule is a Rule with what is known of it.
type rule struct {
	*Rule
	users   []*rule
	waits   int  // names in it of other rules that are not folded
	self    bool // it has its own name in it
	regular bool // all of it is folded
	folded  regex.Ex
	size    int // of folded, written out
	sym     cfg.Sym
}

type emitter struct {
	g     *cfg.Grammar
	src   Source
	rules map[string]*rule
	todo  []*rule
	err   error

	ignored regex.Ex
	rigid   map[*Expr]bool // expressions that are not regular
	repeats map[*Expr]cfg.Sym
}

func (e *emitter) fail(code string, at int, format string, args ...any) {
	if e.err == nil {
		e.err = e.src.Fail(code, at, format, args...)
	}
}

// names resolves the names in an expression.
func (e *emitter) names(x *Expr, in *rule) {
	if x.Kind == Ref {
		switch to := e.rules[x.Name]; to {
		case nil:
			e.fail(cfg.GrammarUndefined, x.At, "the rule %s is not defined", x.Name)
		case in:
			in.self = true
		default:
			to.users = append(to.users, in)
			in.waits++
		}
	}
	for _, s := range x.Subs {
		e.names(s, in)
	}
}

// foldAll folds every rule that is regular: those that use folded rules only, and not themselves
// but at one end.
func (e *emitter) foldAll(list []Rule) {
	var todo []*rule
	for i := range list {
		if r := e.rules[list[i].Name]; r.waits == 0 && e.foldable(r) {
			todo = append(todo, r)
		}
	}
	for len(todo) > 0 && !e.g.B.Exhausted() {
		r := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if r.folded, r.size, r.regular = e.foldRule(r); !r.regular {
			continue
		}
		for _, u := range r.users {
			if u.waits--; u.waits == 0 && e.foldable(u) {
				todo = append(todo, u)
			}
		}
	}
	for i := range list {
		if r := e.rules[list[i].Name]; r.Terminal && !r.regular && !e.g.B.Exhausted() {
			e.fail(cfg.GrammarUnsupported, r.At,
				"%s is a terminal, and uses itself or a rule, or is too large", r.Name)
		}
	}
}

// foldable says whether a rule is to be one lexeme, if it can be.
func (e *emitter) foldable(r *rule) bool { return r.Terminal || e.g.Mode == cfg.Scannerless }

// maxFold is the size of an expression, written out, up to which rules are folded.
const maxFold = 20000

// foldRule is a rule as one expression. One that begins, or ends, with itself repeats the rest.
func (e *emitter) foldRule(r *rule) (x regex.Ex, size int, ok bool) {
	if !r.self {
		return e.fold(r.Body)
	}
	b := e.g.B
	var again, last []regex.Ex
	atEnd, atBegin := false, false
	for _, alt := range alternatives(r.Body, nil) {
		items := alt.Subs
		if alt.Kind != Seq {
			items = []*Expr{alt}
		}
		n := len(items)
		itself := func(i int) bool { return items[i].Kind == Ref && items[i].Name == r.Name }
		into := &last
		switch {
		case n > 1 && itself(n-1):
			items, into, atEnd = items[:n-1], &again, true
		case n > 1 && itself(0):
			items, into, atBegin = items[1:], &again, true
		}
		x, s, ok := e.foldSeq(items)
		if size += s; !ok {
			return 0, 0, false
		}
		*into = append(*into, x)
	}
	many, one := b.Star(b.Or(again...)), b.Or(last...)
	switch {
	case atEnd && atBegin || size > maxFold:
		return 0, 0, false
	case atEnd:
		return b.Cat(many, one), size, true
	}
	return b.Cat(one, many), size, true
}

// alternatives adds those of an expression to list; what may be missing is one more, the empty one.
func alternatives(x *Expr, list []*Expr) []*Expr {
	switch {
	case x.Kind == Alt:
		for _, s := range x.Subs {
			list = alternatives(s, list)
		}
		return list
	case x.Kind == Rep && x.Min == 0 && x.Max == 1:
		return append(alternatives(x.Subs[0], list), &Expr{Kind: Seq, At: x.At})
	case x.Kind == Seq && len(x.Subs) == 1:
		return alternatives(x.Subs[0], list)
	}
	return append(list, x)
}

func (e *emitter) foldSeq(items []*Expr) (x regex.Ex, size int, ok bool) {
	x = regex.Eps
	for i := len(items) - 1; i >= 0; i-- {
		y, s, ok := e.fold(items[i])
		if size += s; !ok || size > maxFold {
			return 0, 0, false
		}
		x = e.g.B.Cat(y, x)
	}
	return x, size, true
}

// fold is an expression without symbols and rules that are not folded, as one regular expression.
func (e *emitter) fold(x *Expr) (ex regex.Ex, size int, ok bool) {
	b := e.g.B
	if b.Exhausted() || e.rigid[x] {
		return 0, 0, false
	}
	defer func() {
		if !ok {
			e.rigid[x] = true
		}
	}()
	switch x.Kind {
	case Pattern:
		return x.Ex, x.Size + 1, true
	case Ref:
		r := e.rules[x.Name]
		return r.folded, r.size, r.regular
	case Seq:
		return e.foldSeq(x.Subs)
	case Symbol:
		return 0, 0, false
	}
	subs := make([]regex.Ex, len(x.Subs))
	for i, s := range x.Subs {
		var n int
		if subs[i], n, ok = e.fold(s); !ok {
			return 0, 0, false
		}
		if size += n; size > maxFold {
			return 0, 0, false
		}
	}
	switch x.Kind {
	case Alt:
		return b.Or(subs...), size, true
	case And:
		return b.And(subs...), size, true
	case Not:
		return b.Minus(b.AnyText(), subs[0]), size, true
	case Lazy:
		return b.Minus(subs[0], b.Cat(subs[0], b.Plus(b.AnyRune()))), size, true
	}
	return b.Rep(subs[0], x.Min, x.Max), size, true
}

// ref is the symbol of a rule.
func (e *emitter) ref(r *rule) cfg.Sym {
	if r.sym == cfg.None {
		if r.regular {
			r.sym = e.lexeme(r.folded)
		} else {
			r.sym = e.g.Nonterminal(r.Name)
			e.todo = append(e.todo, r)
		}
	}
	return r.sym
}

func (e *emitter) lexeme(x regex.Ex) cfg.Sym {
	if e.g.Mode == cfg.Greedy {
		x = e.g.B.Cat(e.ignored, x)
	}
	return e.g.Lexeme(x)
}

func (e *emitter) define(r *rule) {
	if e.g.Full() || e.g.B.Exhausted() {
		e.fail(cfg.GrammarTooComplex, r.At, "the grammar is too complex")
		return
	}
	for _, alt := range alternatives(r.Body, nil) {
		e.g.Rule(r.sym, e.sequence(alt)...)
	}
}

// sequence is the symbols of an expression, one after another: runs that are regular are one.
func (e *emitter) sequence(x *Expr) []cfg.Sym {
	items := []*Expr{x}
	if x.Kind == Seq {
		items = x.Subs
	}
	var out []cfg.Sym
	run := regex.Eps
	size := 0
	flush := func() {
		if run != regex.Eps {
			out = append(out, e.lexeme(run))
		}
		run, size = regex.Eps, 0
	}
	for _, item := range items {
		var y regex.Ex
		n, ok := 0, false
		if e.g.Mode == cfg.Scannerless || item.Kind == Pattern || item.Kind == Ref ||
			item.Kind == And || item.Kind == Not || item.Kind == Lazy {
			y, n, ok = e.fold(item)
		}
		if !ok {
			flush()
			out = append(out, e.symbol(item))
			continue
		}
		if size+n > maxFold || e.g.Mode == cfg.Greedy {
			flush()
		}
		run, size = e.g.B.Cat(run, y), size+n
	}
	flush()
	return out
}

// symbol is that of an expression that is not regular.
func (e *emitter) symbol(x *Expr) cfg.Sym {
	switch x.Kind {
	case Symbol:
		return x.Sym
	case Ref:
		return e.ref(e.rules[x.Name])
	case Rep:
		if e.g.Mode == cfg.Scannerless && x.Min <= 1 && x.Max == regex.Inf {
			return e.repeat(x)
		}
		return e.g.Rep(e.one(x.Subs[0]), cfg.None, x.Min, x.Max)
	case And, Not, Lazy:
		e.fail(cfg.GrammarUnsupported, x.At, "&, ~ and [lazy] are of terminals only")
		return cfg.None
	}
	nt := e.g.Nonterminal("")
	for _, alt := range alternatives(x, nil) {
		e.g.Rule(nt, e.sequence(alt)...)
	}
	return nt
}

// repeat is the symbol of x* or x+. Alternatives that are regular are repeated within one lexeme,
// which never follows itself: a text that repeats them is then read in one way, not in as many as
// it can be cut.
func (e *emitter) repeat(x *Expr) cfg.Sym {
	if nt, ok := e.repeats[x]; ok { // its rules are being made
		return nt
	}
	nt := e.g.Nonterminal("")
	e.repeats[x] = nt
	body := x.Subs[0]
	for range 10 {
		if body.Kind == Seq && len(body.Subs) == 1 {
			body = body.Subs[0]
		} else if body.Kind == Ref && !e.rules[body.Name].regular {
			body = e.rules[body.Name].Body
		}
	}
	var regular []regex.Ex
	var others []cfg.Sym
	size := 0
	for _, alt := range alternatives(body, nil) {
		if y, n, ok := e.fold(alt); ok && size+n <= maxFold {
			regular, size = append(regular, y), size+n
		} else {
			others = append(others, e.g.Seq(e.sequence(alt)...))
		}
	}
	if len(regular) == 0 {
		e.g.Rule(nt, e.g.Rep(e.one(x.Subs[0]), cfg.None, x.Min, x.Max))
		return nt
	}
	run := e.g.Lexeme(e.g.B.Plus(e.g.B.Or(regular...)))
	other := e.g.Alt(others...)
	more := e.g.Rep(e.g.Seq(other, e.g.Opt(run)), cfg.None, 0, regex.Inf)
	e.g.Rule(nt, run, more)
	e.g.Rule(nt, other, e.g.Opt(run), more)
	if x.Min == 0 {
		e.g.Rule(nt)
	}
	return nt
}

// one is the symbol of any expression.
func (e *emitter) one(x *Expr) cfg.Sym {
	return e.g.Seq(e.sequence(x)...)
}
