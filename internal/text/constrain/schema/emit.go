package schema

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
	"github.com/eagleray/eagleray/internal/text/typed"
)

// Options say how texts of a schema are written.
type Options struct {
	// Compact leaves no white space between the tokens of JSON.
	Compact bool
	// Closed leaves out keys that a schema with properties does not mention, unless it says
	// additionalProperties, patternProperties or the like.
	Closed bool
	// AnyOrder lets the keys of an object stand in any order, where there are not too many.
	AnyOrder bool
	// Notation is how values are written, nil for JSON. Quoted is the symbol of the texts that an
	// expression matches, in its quotes, where those are not JSON's.
	Notation *typed.Notation
	Quoted   func(x regex.Ex) cfg.Sym
}

// raw says that texts stand as they are.
func (o *Options) raw() bool { return o.Notation != nil && o.Notation.Quote != "" }

// Compile adds the symbols of a schema to a greedy grammar and returns the one for its valid texts.
// An error is an *cfg.Error.
func Compile(text string, g *cfg.Grammar, options Options, lim Limits) (start cfg.Sym, err error) {
	t := texts{b: g.B, raw: options.raw()}
	err = with(text, t, options, lim, func(c *compiler) {
		e := newEmitter(c, g)
		start = e.symbol(c.schemaOf(c.docs.root, false))
		e.run()
		if c.err == nil && !productive(g, start) {
			c.fail(&cfg.Error{Code: cfg.SchemaUnsatisfiable, Subject: "unsatisfiable",
				Reason: "no value is valid against the schema"})
		}
	})
	if err != nil {
		return cfg.None, err
	}
	return start, nil
}

// with calls do with a compiler for a schema. The error is that of the compiler.
func with(text string, t texts, options Options, lim Limits, do func(c *compiler)) (err error) {
	lim = lim.withDefaults()
	if len(text) > lim.Bytes {
		return &cfg.Error{Code: cfg.SchemaTooComplex, Subject: "size",
			Reason: "the schema is longer than the limit"}
	}
	root, values, err := parse(text, lim)
	if err != nil {
		return err
	}
	c := &compiler{lim: lim, text: t, docs: newDocuments(root), ids: map[string]id{},
		patterns: map[string]regex.Ex{}, left: lim.Left, options: options}
	c.nodes = []node{{op: opTop}, {op: opBottom, sets: &sets{}}}
	defer func() {
		t.b.Hold(-c.held) // what is made of it is counted by itself
		if p := recover(); p != nil {
			if _, ok := p.(abandoned); !ok {
				panic(p)
			}
			c.place()
		}
		if c.err != nil {
			err = c.err
		}
	}()
	c.spend(len(text)/perText + 2*values)
	c.hold(values * valueBytes)
	do(c)
	return nil
}

// perText is how many bytes of a text are read in the time of an operation, valueBytes what a value
// of it takes, with what is known of it.
const (
	perText    = 16
	valueBytes = 240
)

// place says where the schema at fault is, where no other place is known.
func (c *compiler) place() {
	if c.err == nil || c.err.Pointer != "" || c.err.Code == cfg.SchemaInvalid {
		return
	}
	if src := c.source(c.at); src != nil {
		c.err.Pointer = src.pointer()
	}
}

// emitter makes the rules of a grammar for the schemas that are reached from its start.
type emitter struct {
	c       *compiler
	g       *cfg.Grammar
	numbers numbers
	symbols map[id]cfg.Sym
	todo    []id

	gap                    regex.Ex
	comma                  cfg.Sym
	openObject, openArray  cfg.Sym
	closeObject, endArray  cfg.Sym
	null, yes, no, boolean cfg.Sym
	words                  [3]string // of null, true and false
	free                   regex.Ex  // a character of a string in any spelling
	pairs                  map[pair]cfg.Sym
}

// pair is a key with its value.
type pair struct {
	keys  regex.Ex
	value cfg.Sym
}

func newEmitter(c *compiler, g *cfg.Grammar) *emitter {
	b := g.B
	e := &emitter{c: c, g: g, numbers: newNumbers(b), symbols: map[id]cfg.Sym{},
		pairs: map[pair]cfg.Sym{}}
	e.gap = regex.Eps
	if !c.options.Compact {
		// A run of white space is bounded, so that a model in a loop of it comes to an end.
		indent := b.Or(b.Lit(" "), b.Lit("\t"))
		e.gap = b.Or(b.Rep(b.Lit(" "), 0, 2),
			b.Cat(b.Opt(b.Lit("\r")), b.Lit("\n"), b.Rep(indent, 0, 40)))
	}
	around := func(s string) cfg.Sym { return g.Lexeme(b.Cat(e.gap, b.Lit(s), e.gap)) }
	e.comma = around(",")
	e.openObject = g.Lexeme(b.Cat(b.Lit("{"), e.gap))
	e.openArray = g.Lexeme(b.Cat(b.Lit("["), e.gap))
	e.closeObject = g.Lexeme(b.Cat(e.gap, b.Lit("}")))
	e.endArray = g.Lexeme(b.Cat(e.gap, b.Lit("]")))
	e.words = [3]string{"null", "true", "false"}
	e.free = b.JSONFreeRune()
	if n := c.options.Notation; n != nil {
		e.words = [3]string{n.Null, n.True, n.False}
		e.free = c.text.rune()
	}
	e.null, e.yes, e.no = g.Lit(e.words[0]), g.Lit(e.words[1]), g.Lit(e.words[2])
	e.boolean = g.Lexeme(b.Or(b.Lit(e.words[1]), b.Lit(e.words[2])))
	return e
}

// symbol is the nonterminal of a schema. Its rules are made by run.
func (e *emitter) symbol(x id) cfg.Sym {
	if s, ok := e.symbols[x]; ok {
		return s
	}
	name := ""
	if src := e.c.source(x); src != nil {
		name = src.pointer()
	}
	s := e.g.Nonterminal(name)
	e.symbols[x] = s
	if x != bottom {
		e.todo = append(e.todo, x)
	}
	return s
}

func (e *emitter) run() {
	for len(e.todo) > 0 && e.c.err == nil {
		x := e.todo[len(e.todo)-1]
		e.todo = e.todo[:len(e.todo)-1]
		e.c.at = x
		if s := e.c.resolve(x); s != nil {
			e.rules(e.symbols[x], s)
		}
		e.c.place()
		if e.g.Full() {
			e.c.tooComplex("size", "the schema makes too large a grammar")
		}
	}
}

// rules adds the alternatives of a schema.
func (e *emitter) rules(nt cfg.Sym, s *sets) {
	b := e.g.B
	if s.null {
		e.g.Rule(nt, e.null)
	}
	switch {
	case s.yes && s.no:
		e.g.Rule(nt, e.boolean)
	case s.yes:
		e.g.Rule(nt, e.yes)
	case s.no:
		e.g.Rule(nt, e.no)
	}
	if len(s.numbers) > 0 {
		var alts []regex.Ex
		for _, n := range s.numbers {
			alts = append(alts, e.numbers.text(n))
		}
		if m := e.numbers.uncounted; m != nil {
			e.c.unsupported("multipleOf", "multiples of %s are too many to count", clip(m.String()))
		}
		e.g.Rule(nt, e.g.Lexeme(b.Or(alts...)))
	}
	if s.strings != nil {
		e.g.Rule(nt, e.quoted(s.strings))
	}
	for _, a := range s.arrays {
		e.array(nt, a)
	}
	for _, o := range s.objects {
		e.object(nt, o)
	}
}

// quoted is the symbol of the strings of a set.
func (e *emitter) quoted(s *textSet) cfg.Sym {
	body := e.c.text.of(s)
	if s.most != 0 { // only the length counts, so every spelling will do
		body = e.g.B.Rep(e.free, s.least, s.most)
	}
	return e.inQuotes(body)
}

func (e *emitter) inQuotes(body regex.Ex) cfg.Sym {
	if e.c.options.raw() {
		return e.c.options.Quoted(body)
	}
	quote := e.g.B.Lit(`"`)
	return e.g.Lexeme(e.g.B.Cat(quote, body, quote))
}

// member is a key of a set and its value.
func (e *emitter) member(keys regex.Ex, value id) cfg.Sym {
	p := pair{keys, e.symbol(value)}
	if s, ok := e.pairs[p]; ok {
		return s
	}
	b := e.g.B
	colon := b.Cat(e.gap, b.Lit(":"), e.gap)
	var key cfg.Sym
	if e.c.options.raw() {
		key = e.bareKey(keys, colon)
	} else {
		if keys == e.c.text.any() {
			keys = b.Star(e.free)
		}
		quote := b.Lit(`"`)
		key = e.g.Lexeme(b.Cat(quote, keys, quote, colon))
	}
	s := e.g.Seq(key, p.value)
	e.pairs[p] = s
	return s
}

// bareKey is the symbol of keys without quotes, where they are words, and the colon: others have
// the quotes of texts.
func (e *emitter) bareKey(keys, colon regex.Ex) cfg.Sym {
	b := e.g.B
	var word regex.ByteSet
	for _, r := range []string{"az", "AZ", "09", "__", "--", "$$"} {
		word.Add(r[0], r[1])
	}
	words := b.Plus(b.Set(word))
	var alts []cfg.Sym
	if x := b.And(keys, words); !e.c.dead(x) {
		alts = append(alts, e.g.Lexeme(b.Cat(x, colon)))
	}
	if x := b.Minus(keys, words); !e.c.dead(x) {
		alts = append(alts, e.g.Seq(e.inQuotes(x), e.g.Lexeme(colon)))
	}
	return e.g.Alt(alts...)
}

// anyOrderBits is how many kinds of elements are counted one by one, anyOrderKeys how many keys may
// stand in any order.
const (
	anyOrderBits = 60
	anyOrderKeys = 500
)

func (e *emitter) object(nt cfg.Sym, o *objects) {
	b := e.g.B
	e.c.spend(len(o.props))
	named := make([]cfg.Elem, 0, len(o.props))
	var unnamed []cfg.Elem
	spelled := make([]string, 0, len(o.props))
	for _, p := range o.props {
		text := e.c.text.spell(p.name)
		spelled = append(spelled, text)
		if p.node == bottom {
			continue
		}
		x := cfg.Elem{Sym: e.member(b.Lit(text), p.node), Max: 1}
		if p.required {
			x.Min = 1
		}
		if p.named {
			named = append(named, x)
		} else {
			unnamed = append(unnamed, x)
		}
	}
	elems := append(named, unnamed...)
	declared := b.Lits(spelled)
	outside := func(keys regex.Ex) regex.Ex {
		if len(spelled) == 0 {
			return keys
		}
		return b.Minus(keys, declared)
	}
	l := cfg.List{Sep: e.comma, Min: o.least, Max: o.most,
		AnyOrder: e.c.options.AnyOrder && len(elems) <= anyOrderKeys}
	if len(o.exists) > 0 {
		e.existing(nt, o, l, elems, outside)
		return
	}
	for _, x := range o.cells {
		if x.node == bottom || e.closes(o, x) {
			continue
		}
		if keys := outside(x.keys); !e.c.dead(keys) {
			elems = append(elems, cfg.Elem{Sym: e.member(keys, x.node), Max: cfg.Inf})
		}
	}
	e.mixed(&l, elems, len(o.props))
	e.g.Rule(nt, e.openObject, e.g.List(l), e.closeObject)
}

// mixed sets the elements of a list whose first ones stand in order, and where those from one on
// are for other keys: those mix.
func (e *emitter) mixed(l *cfg.List, elems []cfg.Elem, first int) {
	first = min(first, len(elems))
	for first > 0 && elems[first-1].Max == cfg.Inf {
		first--
	}
	if rest := elems[first:]; len(rest) > 1 && !l.AnyOrder {
		var syms []cfg.Sym
		for _, x := range rest {
			syms = append(syms, x.Sym)
		}
		elems = append(slices.Clone(elems[:first]), cfg.Elem{Sym: e.g.Alt(syms...), Max: cfg.Inf})
	}
	l.Elems = elems
}

// closes says that keys which nothing was said about are left out.
func (e *emitter) closes(o *objects, x cell) bool {
	return e.c.options.Closed && x.node == top && !o.open &&
		slices.ContainsFunc(o.props, func(p prop) bool { return p.named })
}

// mostExists bounds the keys of one object that must exist and are known by a pattern only: the
// ways in which one key can be all that several ask for are many.
const mostExists = 5

// existing adds alternatives for an object of which some keys must exist that are known by a
// pattern only: each is either a key with a name, or one of the others.
func (e *emitter) existing(nt cfg.Sym, o *objects, l cfg.List, elems []cfg.Elem,
	outside func(regex.Ex) regex.Ex) {

	c := e.c
	c.spend(100 + 10*len(o.props))
	if len(o.exists) > mostExists {
		c.tooComplex("additionalProperties", "more than %d keys that are known by a pattern only "+
			"must exist", mostExists)
	}
	if c.bad() || e.g.Full() {
		return
	}
	x := o.exists[0]
	without := *o
	without.exists = o.exists[1:]
	for i, p := range o.props {
		if n := c.fits(p, x); n != bottom {
			r := without
			r.props, r.at = slices.Clone(o.props), nil
			r.props[i].node, r.props[i].required = n, true
			e.object(nt, &r)
		}
	}
	var others []cfg.Elem
	for _, y := range o.cells {
		if keys := outside(y.keys); y.node != bottom && !c.dead(keys) {
			others = append(others, cfg.Elem{Sym: e.member(keys, y.node), Max: cfg.Inf})
		}
	}
	if len(others) == 0 {
		return
	}
	// One key can be all that several ask for: every way to put them together is an alternative.
	var groups []exist
	var choose func(i int)
	choose = func(i int) {
		if c.bad() {
			return
		}
		c.spend(len(elems))
		if i == len(o.exists) {
			r := l
			r.Elems = slices.Clone(elems)
			for _, x := range groups {
				r.Elems = append(r.Elems, cfg.Elem{Sym: e.member(x.keys, x.node), Min: 1, Max: 1})
			}
			r.Elems = append(r.Elems, others...)
			e.mixing(nt, r, len(elems))
			return
		}
		x := o.exists[i]
		for j, y := range groups {
			if z, ok := c.both(y, x); ok {
				groups[j] = z
				choose(i + 1)
				groups[j] = y
			}
		}
		for _, y := range o.cells {
			if z, ok := c.both(exist{outside(y.keys), y.node}, x); ok {
				groups = append(groups, z)
				choose(i + 1)
				groups = groups[:len(groups)-1]
			}
		}
	}
	choose(0)
}

// mixing adds an object whose elements from one on stand in any order: behind the others, or among
// them if elements are counted.
func (e *emitter) mixing(nt cfg.Sym, l cfg.List, from int) {
	if len(l.Elems)-from > anyOrderBits {
		e.c.tooComplex("additionalProperties", "of keys that are known by a pattern only, more "+
			"than %d kinds are told apart", anyOrderBits)
		return
	}
	if together := l.AnyOrder && len(l.Elems) <= anyOrderBits; !together && l.Min == 0 &&
		l.Max == cfg.Inf {

		inner := cfg.List{Sep: l.Sep, Elems: l.Elems[from:], Max: cfg.Inf, AnyOrder: true}
		l.Elems = append(slices.Clone(l.Elems[:from]),
			cfg.Elem{Sym: e.g.List(inner), Min: 1, Max: 1})
		l.AnyOrder = false
	} else if l.AnyOrder = true; len(l.Elems) > anyOrderBits {
		e.c.tooComplex("minProperties", "more than %d keys are counted while one that is known "+
			"by a pattern only must exist", anyOrderBits)
		return
	}
	e.g.Rule(nt, e.openObject, e.g.List(l), e.closeObject)
}
