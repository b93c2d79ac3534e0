package constrain

import (
	"math/bits"
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// Kinds of dots: what stands at a place in a rule.
const (
	dotEnd    = uint8(iota) // arg is the nonterminal that is complete
	dotLexeme               // arg is the lexeme
	dotTokens               // arg is the set of special tokens
	dotRule                 // arg is the nonterminal
	dotBefore               // arg is the list; the next thing is an element, elem at the earliest
	dotAfter                // arg is the list; the next thing is its separator, after element elem
)

// dot is a place in a rule or a list. In a rule, the next place is the next dot.
type dot struct {
	kind uint8
	arg  int32
	elem int32
}

// nonterminal has the first dots of its rules.
type nonterminal struct {
	starts   []int32
	end      int32 // a dotEnd
	nullable bool
}

// tokenSet is special tokens: those of ids, or all but those.
type tokenSet struct {
	ids    []int32 // sorted
	except bool
}

// program is a grammar as the parser wants it: flat, without what derives nothing, every symbol
// that may be empty marked as such.
type program struct {
	dots    []dot
	nts     []nonterminal
	lists   []list
	lexemes []regex.Ex
	tokens  []tokenSet
	start   int32
}

// list is a cfg.List whose elements all derive something.
type list struct {
	nt       int32
	sep      dot // of kind dotEnd for none
	elems    []element
	min, max int64
	anyOrder bool
	prefix   bool
	before   int32 // dots: before + 2i expects element i or a later one, and the next is after it
	byLexeme map[int32][]int32
	byRule   map[int32][]int32
	byTokens map[int32][]int32
	least    []int64 // elements from i on need so many in all
	most     []int64 // and have at most so many; Inf
	fields   []field // of the counts, with anyOrder: of all, then of each element
	// vectors are counts that do not fit the word of an item, by number; nil where they do.
	vectors [][]uint64
	numbers map[string]uint64
	scratch []uint64
	single  [1]uint64
}

// field is the place of a count in words.
type field struct {
	word         int32
	shift, width uint8
}

// element is one element of a list. One that is a single rule which begins with a lexeme has that
// rule's first dot: the list goes right into it.
type element struct {
	what     dot
	into     int32 // a dot after the first lexeme of the rule, or -1
	min, max int64 // Inf
	nullable bool
}

const inf = int64(cfg.Inf)

// builder makes a program of a grammar.
type builder struct {
	g          *cfg.Grammar
	p          program
	productive []bool
	nullable   []bool
	nts        []int32 // by symbol, -1 before it is asked for
	todo       []cfg.Sym
	lexemes    map[regex.Ex]int32
	byTokens   map[cfg.Sym]int32
	work       int
	complex    bool
}

// maxWork is how many symbols are looked at to find what derives a text.
const maxWork = 20_000_000

// newProgram brings a grammar into the parser's form; nil when the start derives no text. complex
// says that this is too much work to find out.
func newProgram(g *cfg.Grammar, start cfg.Sym) (p *program, complex bool) {
	b := builder{g: g, lexemes: map[regex.Ex]int32{}, byTokens: map[cfg.Sym]int32{},
		productive: make([]bool, g.Len()+1), nullable: make([]bool, g.Len()+1),
		nts: make([]int32, g.Len()+1)}
	for i := range b.nts {
		b.nts[i] = -1
	}
	b.analyse()
	if b.complex || !b.productive[start] {
		return nil, b.complex
	}
	b.p.start = b.nonterminal(start)
	for len(b.todo) > 0 {
		s := b.todo[len(b.todo)-1]
		b.todo = b.todo[:len(b.todo)-1]
		b.define(s)
	}
	return &b.p, b.complex
}

// analyse finds what derives a text, and what derives the empty one. A symbol that is found wakes
// those that have it.
func (b *builder) analyse() {
	n := b.g.Len()
	users := make([][]cfg.Sym, n+1)
	use := func(s, by cfg.Sym) {
		if u := users[s]; len(u) == 0 || u[len(u)-1] != by {
			users[s] = append(u, by)
		}
	}
	for s := cfg.Sym(1); int(s) <= n; s++ {
		switch at := b.g.At(s); at.Kind {
		case cfg.KindRules:
			for _, rhs := range at.Rules {
				for _, x := range rhs {
					use(x, s)
				}
			}
		case cfg.KindList:
			for _, e := range at.List.Elems {
				use(e.Sym, s)
			}
			use(at.List.Sep, s)
		}
	}
	fixpoint := func(mark []bool, holds func(*cfg.Symbol) bool) {
		todo := make([]cfg.Sym, 0, n)
		for s := cfg.Sym(n); s > 0; s-- {
			todo = append(todo, s)
		}
		for len(todo) > 0 {
			s := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if b.work += b.g.At(s).Len(); b.work > maxWork {
				b.complex = true
				return
			}
			if !mark[s] && holds(b.g.At(s)) {
				mark[s] = true
				for _, u := range users[s] {
					if !mark[u] {
						todo = append(todo, u)
					}
				}
			}
		}
	}
	b.productive[cfg.None] = false
	fixpoint(b.productive, b.isProductive)
	fixpoint(b.nullable, b.isNullable)
}

func all(mark []bool, syms []cfg.Sym) bool {
	return !slices.ContainsFunc(syms, func(s cfg.Sym) bool { return !mark[s] })
}

func (b *builder) isProductive(s *cfg.Symbol) bool {
	switch s.Kind {
	case cfg.KindLexeme:
		return !b.g.B.Dead(s.Ex)
	case cfg.KindTokens:
		return s.Except || len(s.IDs) > 0
	case cfg.KindRules:
		return slices.ContainsFunc(s.Rules, func(r []cfg.Sym) bool { return all(b.productive, r) })
	case cfg.KindList:
		l := b.list(s.List)
		return l != nil && l.possible()
	}
	return false
}

func (b *builder) isNullable(s *cfg.Symbol) bool {
	switch s.Kind {
	case cfg.KindLexeme:
		return b.g.B.Nullable(s.Ex)
	case cfg.KindRules:
		return slices.ContainsFunc(s.Rules, func(r []cfg.Sym) bool { return all(b.nullable, r) })
	case cfg.KindList:
		l := b.list(s.List)
		if l == nil || !l.possible() {
			return false
		}
		if l.min <= 0 && (l.prefix || l.least[0] == 0) {
			return true
		}
		return l.emptyElements(b, s.List)
	}
	return false
}

// emptyElements says whether the list can be kept with elements that are all empty, between
// separators that are empty, too.
func (l *list) emptyElements(b *builder, of *cfg.List) bool {
	if of.Sep != cfg.None && !b.nullable[of.Sep] {
		return l.max != 0 && l.min <= 1 && l.oneEmpty()
	}
	for _, e := range l.elems {
		if e.min > 0 && !e.nullable {
			return false
		}
	}
	return l.min <= 0 || slices.ContainsFunc(l.elems, func(e element) bool { return e.nullable })
}

// oneEmpty says whether the list may be a single element that may be empty.
func (l *list) oneEmpty() bool {
	need := -1
	for i, e := range l.elems {
		if e.min > 1 || e.min == 1 && need >= 0 {
			return false
		}
		if e.min == 1 {
			need = i
		}
	}
	if need >= 0 {
		return l.elems[need].nullable
	}
	return slices.ContainsFunc(l.elems, func(e element) bool { return e.nullable })
}

// list is the list with the elements that derive something; nil when one that is needed does not.
func (b *builder) list(of *cfg.List) *list {
	clamp := func(n int) int64 { return int64(min(max(n, cfg.Inf), 1<<31-1)) }
	l := &list{min: max(clamp(of.Min), 0), max: clamp(of.Max), anyOrder: of.AnyOrder,
		prefix: of.Prefix}
	bare := of.Sep == cfg.None
	if !bare && !b.productive[of.Sep] && (l.max < 0 || l.max > 1) {
		l.max = 1
	}
	for _, e := range of.Elems {
		if !b.productive[e.Sym] || e.Max == 0 {
			if e.Min <= 0 {
				continue
			}
			if of.Prefix {
				break
			}
			return nil
		}
		x := element{min: max(clamp(e.Min), 0), max: clamp(e.Max), nullable: b.nullable[e.Sym]}
		x.what.arg = int32(e.Sym) // until define
		if x.max >= 0 && x.min > x.max {
			return nil
		}
		if bare && x.nullable {
			l.min = max(l.min-countable(l.min, x.max), 0)
			x.min = 0
		}
		l.elems = append(l.elems, x)
	}
	k := len(l.elems)
	l.least, l.most = make([]int64, k+1), make([]int64, k+1)
	for i := k - 1; i >= 0; i-- {
		e := &l.elems[i]
		l.least[i] = l.least[i+1] + e.min
		l.most[i] = inf
		if l.most[i+1] >= 0 && e.max >= 0 {
			l.most[i] = l.most[i+1] + e.max
		}
	}
	return l
}

// countable is how many of n are filled by elements that may be empty.
func countable(n, most int64) int64 {
	if most < 0 {
		return n
	}
	return min(n, most)
}

// possible says whether the bounds can be kept.
func (l *list) possible() bool {
	switch {
	case l.max >= 0 && (l.min > l.max || !l.prefix && l.least[0] > l.max):
		return false
	case l.most[0] >= 0 && l.most[0] < l.min:
		return false
	}
	return true
}

// nonterminal is the parser's number of a symbol.
func (b *builder) nonterminal(s cfg.Sym) int32 {
	if b.nts[s] < 0 {
		b.nts[s] = int32(len(b.p.nts))
		b.p.nts = append(b.p.nts, nonterminal{end: b.dot(dot{kind: dotEnd, arg: b.nts[s]}),
			nullable: b.nullable[s]})
		b.todo = append(b.todo, s)
	}
	return b.nts[s]
}

func (b *builder) dot(d dot) int32 {
	b.p.dots = append(b.p.dots, d)
	return int32(len(b.p.dots) - 1)
}

// single is what stands for a symbol in a rule. Lexemes that may be empty are nonterminals, and so
// are rules; a nonterminal that is one symbol is that symbol.
func (b *builder) single(s cfg.Sym) dot {
	for range 100 {
		at := b.g.At(s)
		if at.Kind != cfg.KindRules || len(at.Rules) != 1 || len(at.Rules[0]) != 1 {
			break
		}
		s = at.Rules[0][0]
	}
	switch at := b.g.At(s); {
	case at.Kind == cfg.KindLexeme && !b.nullable[s]:
		return dot{kind: dotLexeme, arg: b.lexeme(at.Ex)}
	case at.Kind == cfg.KindTokens:
		id, ok := b.byTokens[s]
		if !ok {
			id = int32(len(b.p.tokens))
			b.byTokens[s] = id
			b.p.tokens = append(b.p.tokens, tokenSet{at.IDs, at.Except})
		}
		return dot{kind: dotTokens, arg: id}
	}
	return dot{kind: dotRule, arg: b.nonterminal(s)}
}

func (b *builder) lexeme(x regex.Ex) int32 {
	id, ok := b.lexemes[x]
	if !ok {
		id = int32(len(b.p.lexemes))
		b.lexemes[x] = id
		b.p.lexemes = append(b.p.lexemes, x)
	}
	return id
}

// rule lays out the symbols of one alternative, and returns the first dot.
func (b *builder) rule(nt int32, rhs []cfg.Sym) int32 {
	ds := make([]dot, len(rhs))
	for i, s := range rhs {
		ds[i] = b.single(s)
	}
	first := int32(len(b.p.dots))
	b.p.dots = append(b.p.dots, ds...)
	b.dot(dot{kind: dotEnd, arg: nt})
	return first
}

func (b *builder) define(s cfg.Sym) {
	nt := b.nts[s]
	switch at := b.g.At(s); at.Kind {
	case cfg.KindLexeme: // the start, or one that may be empty
		x := b.g.B.Minus(at.Ex, regex.Eps)
		if !b.nullable[s] {
			x = at.Ex
		}
		if !b.g.B.Dead(x) {
			first := b.dot(dot{kind: dotLexeme, arg: b.lexeme(x)})
			b.dot(dot{kind: dotEnd, arg: nt})
			b.p.nts[nt].starts = append(b.p.nts[nt].starts, first)
		}
	case cfg.KindTokens:
		first := b.dot(b.single(s))
		b.dot(dot{kind: dotEnd, arg: nt})
		b.p.nts[nt].starts = append(b.p.nts[nt].starts, first)
	case cfg.KindRules:
		for _, rhs := range b.loop(s, at.Rules) {
			if len(rhs) == 0 {
				continue // nullable says it
			}
			if all(b.productive, rhs) {
				first := b.rule(nt, rhs)
				b.p.nts[nt].starts = append(b.p.nts[nt].starts, first)
			}
		}
	case cfg.KindList:
		b.defineList(nt, at.List)
	}
}

func (b *builder) defineList(nt int32, of *cfg.List) {
	l := b.list(of)
	l.nt = nt
	l.byLexeme, l.byRule, l.byTokens = map[int32][]int32{}, map[int32][]int32{}, map[int32][]int32{}
	l.sep = dot{kind: dotEnd}
	if of.Sep != cfg.None && b.productive[of.Sep] {
		l.sep = b.single(of.Sep)
	}
	id := int32(len(b.p.lists))
	for i := range l.elems {
		e := &l.elems[i]
		s := cfg.Sym(e.what.arg)
		e.what, e.into = b.single(s), -1
		if e.what.kind == dotRule && !e.nullable {
			b.enter(e, s)
		}
		by := l.byRule
		switch e.what.kind {
		case dotLexeme:
			by = l.byLexeme
		case dotTokens:
			by = l.byTokens
		}
		by[e.what.arg] = append(by[e.what.arg], int32(i))
		if e.into >= 0 { // and when the rule is complete
			nt := b.nts[s]
			l.byRule[nt] = append(l.byRule[nt], int32(i))
		}
	}
	l.before = int32(len(b.p.dots))
	for i := range max(len(l.elems), 1) {
		b.dot(dot{kind: dotBefore, arg: id, elem: int32(i)})
		b.dot(dot{kind: dotAfter, arg: id, elem: int32(i)})
	}
	if l.anyOrder {
		l.pack()
	}
	if len(l.elems) > 0 && l.max != 0 {
		b.p.nts[nt].starts = append(b.p.nts[nt].starts, l.before)
	}
	b.p.lists = append(b.p.lists, *l)
}

// enter lets a list go right into an element that is one rule beginning with a lexeme.
func (b *builder) enter(e *element, s cfg.Sym) {
	at := b.g.At(s)
	if at.Kind != cfg.KindRules || len(at.Rules) != 1 || len(at.Rules[0]) < 2 {
		return
	}
	if first := b.single(at.Rules[0][0]); first.kind == dotLexeme {
		n := b.nonterminal(s)
		// The rule is laid out once more: define has not come to it, or puts it elsewhere.
		e.into = b.rule(n, at.Rules[0]) + 1
		e.what = first
	}
}

// pack gives the counts of a list in any order their places.
func (l *list) pack() {
	word, place := int32(0), uint8(0)
	add := func(least, most int64) {
		w := uint8(bits.Len64(uint64(max(least, most, 0))))
		if place+w > 64 {
			word, place = word+1, 0
		}
		l.fields = append(l.fields, field{word, place, w})
		place += w
	}
	add(l.min, l.max)
	for _, e := range l.elems {
		add(e.min, e.max)
	}
	if word > 0 {
		l.vectors, l.numbers = [][]uint64{}, map[string]uint64{}
		l.word(make([]uint64, word+1)) // number 0, where a list begins
	}
}

// loop turns right recursion into repetition: A → x A | y is any number of x, then y. A row of
// the parser then has one item for it, not one for every repetition.
func (b *builder) loop(s cfg.Sym, rules [][]cfg.Sym) [][]cfg.Sym {
	var again, last [][]cfg.Sym
	for _, rhs := range rules {
		if n := len(rhs); n > 1 && rhs[n-1] == s {
			again = append(again, rhs[:n-1])
		} else {
			last = append(last, rhs)
		}
	}
	if again == nil || !b.productive[s] {
		return rules
	}
	grow := func(rules [][]cfg.Sym) cfg.Sym {
		nt := b.g.Nonterminal("")
		nullable, productive := false, false
		for _, rhs := range rules {
			b.g.Rule(nt, rhs...)
			nullable = nullable || all(b.nullable, rhs)
			productive = productive || all(b.productive, rhs)
		}
		b.note(nt, productive, nullable)
		return nt
	}
	rep := b.g.Rep(grow(again), cfg.None, 0, cfg.Inf)
	b.note(rep, true, true)
	return [][]cfg.Sym{{rep, grow(last)}}
}

// note has what is known of a symbol that is made here.
func (b *builder) note(s cfg.Sym, productive, nullable bool) {
	for int(s) >= len(b.nts) {
		b.nts = append(b.nts, -1)
		b.productive = append(b.productive, false)
		b.nullable = append(b.nullable, false)
	}
	b.productive[s], b.nullable[s] = productive, nullable
}
