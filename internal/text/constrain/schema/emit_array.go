package schema

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

func (e *emitter) array(nt cfg.Sym, a *arrays) {
	add := func(l cfg.List) {
		l.Sep, l.Min, l.Max = e.comma, a.least, a.most
		e.g.Rule(nt, e.openArray, e.g.List(l), e.endArray)
	}
	simple := len(a.prefix) == 0
	switch {
	case a.unique:
		if values, ok := e.domain(a); ok && simple && len(a.contains) == 0 {
			add(cfg.List{Elems: values, AnyOrder: true})
			return
		}
		e.c.unsupported("uniqueItems",
			"uniqueItems is enforced only on items of a few known values")
	case len(a.contains) == 1 && simple && a.contains[0].from == 0 &&
		max(a.contains[0].least, a.contains[0].most) < 1000:
		x := a.contains[0]
		l := cfg.List{AnyOrder: true, Elems: []cfg.Elem{
			{Sym: e.symbol(e.c.and(a.rest, x.node)), Min: x.least, Max: x.most}}}
		other := a.rest
		if x.most != regex.Inf {
			other = e.c.and(other, e.c.not(x.node))
		}
		if other != bottom && !e.c.empty(other) {
			l.Elems = append(l.Elems, cfg.Elem{Sym: e.symbol(other), Max: cfg.Inf})
		}
		add(l)
	case len(a.contains) > 0:
		e.counted(nt, a)
	default:
		l := cfg.List{Prefix: true}
		for _, n := range a.prefix {
			l.Elems = append(l.Elems, cfg.Elem{Sym: e.symbol(n), Min: 1, Max: 1})
		}
		if a.rest != bottom {
			l.Elems = append(l.Elems, cfg.Elem{Sym: e.symbol(a.rest), Max: cfg.Inf})
		}
		add(l)
	}
}

// domain lists the values of an array's items, if they are few.
func (e *emitter) domain(a *arrays) ([]cfg.Elem, bool) {
	s := e.c.resolve(a.rest)
	if s == nil || len(s.arrays)+len(s.objects) > 0 {
		return nil, false
	}
	var out []cfg.Elem
	add := func(x cfg.Sym) { out = append(out, cfg.Elem{Sym: x, Max: 1}) }
	if s.null {
		add(e.null)
	}
	if s.yes {
		add(e.yes)
	}
	if s.no {
		add(e.no)
	}
	if s.strings != nil {
		if !s.strings.listed || len(s.strings.among) > anyOrderBits {
			return nil, false
		}
		for _, x := range s.strings.among {
			add(e.quoted(e.c.text.list(x)))
		}
	}
	var seen []decimal
	for _, n := range s.numbers {
		if !n.listed || len(n.among) > anyOrderBits {
			return nil, false
		}
		for _, l := range n.among {
			if !slices.ContainsFunc(seen, func(d decimal) bool { return d.cmp(l.at) == 0 }) {
				seen = append(seen, l.at)
				one := numberSet{listed: true, among: []literal{l}}
				add(e.g.Lexeme(e.numbers.text(&one)))
			}
		}
	}
	return out, len(out) <= anyOrderBits
}

// counted adds an array some of whose items are counted, as an automaton: a state is the place and
// how many items there are of each kind.
func (e *emitter) counted(nt cfg.Sym, a *arrays) {
	c := e.c
	const kinds = 4
	if len(a.contains) > kinds {
		c.tooComplex("contains", "more than %d kinds of items are counted", kinds)
		return
	}
	type state struct {
		at     int
		counts [kinds]int
	}
	// From last on, the place makes no difference. The first item is without a comma.
	last := max(len(a.prefix), a.least, 1)
	if a.most != regex.Inf {
		last = max(last, a.most)
	}
	for _, x := range a.contains {
		last = max(last, x.from)
	}
	states := map[state]cfg.Sym{}
	var todo []state
	sym := func(s state) cfg.Sym {
		if y, ok := states[s]; ok {
			return y
		}
		y := e.g.Nonterminal("")
		states[s] = y
		todo = append(todo, s)
		return y
	}
	e.g.Rule(nt, e.openArray, sym(state{}), e.endArray)
	for len(todo) > 0 && !c.bad() {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if len(states) > c.lim.States {
			c.tooComplex("contains", "counting the items takes more than %d states", c.lim.States)
			return
		}
		done := s.at >= a.least
		for i, x := range a.contains {
			done = done && s.counts[i] >= x.least
		}
		if done {
			e.g.Rule(states[s])
		}
		if a.most != regex.Inf && s.at >= a.most {
			continue
		}
		for kind := range 1 << len(a.contains) {
			next, item := s, a.item(s.at)
			next.at = min(s.at+1, last)
			possible := true
			for i, x := range a.contains {
				in := kind>>i&1 == 1
				switch {
				case s.at < x.from:
					possible = possible && !in
					continue
				case !in:
					item = c.and(item, c.not(x.node))
					continue
				}
				item = c.and(item, x.node)
				cap := x.least
				if x.most != regex.Inf {
					cap = x.most + 1
					possible = possible && s.counts[i] < x.most
				}
				next.counts[i] = min(s.counts[i]+1, cap)
			}
			if !possible || item == bottom || c.empty(item) {
				continue
			}
			if s.at == 0 {
				e.g.Rule(states[s], e.symbol(item), sym(next))
			} else {
				e.g.Rule(states[s], e.comma, e.symbol(item), sym(next))
			}
		}
	}
}
