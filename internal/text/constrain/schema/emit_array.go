package schema

import (
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
		p, ok := e.c.distinct(a)
		switch {
		case !ok:
			e.c.unsupported("uniqueItems",
				"uniqueItems is enforced only on items of a few known values")
		case simple && len(a.contains) == 0:
			l := cfg.List{AnyOrder: true}
			for _, x := range p.choices[0] {
				l.Elems = append(l.Elems, cfg.Elem{Sym: e.symbol(x.node), Max: 1})
			}
			add(l)
		default:
			e.counted(nt, a, p)
		}
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
		e.counted(nt, a, nil)
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

// counted adds an array some of whose items are counted, or are distinct if p is not nil, as an
// automaton: a state is the place, how many items there are of each kind, and which of the values
// that may come again have been used.
func (e *emitter) counted(nt cfg.Sym, a *arrays, p *places) {
	c := e.c
	const kinds = 4
	if len(a.contains) > kinds {
		c.tooComplex("contains", "more than %d kinds of items are counted", kinds)
		return
	}
	type state struct {
		at     int
		counts [kinds]int
		used   uint64
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
			keyword := "contains"
			if p != nil {
				keyword = "uniqueItems"
			}
			c.tooComplex(keyword, "counting the items takes more than %d states", c.lim.States)
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
		choices, later := []choice{{node: a.item(s.at)}}, uint64(0)
		if p != nil {
			choices, _ = p.at(s.at)
			_, later = p.at(s.at + 1)
		}
		for _, x := range choices {
			if x.bit&s.used != 0 {
				continue
			}
			for kind := range 1 << len(a.contains) {
				next, item := s, x.node
				next.at = min(s.at+1, last)
				next.used = (s.used | x.bit) & later
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
}
