package schema_test

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// recogniser says of a whole text whether a grammar derives it. It is slow and simple: every symbol
// is asked at every place for all the places where it may end.
type recogniser struct {
	g    *cfg.Grammar
	text string
	memo map[at][]int
}

type at struct {
	sym cfg.Sym
	pos int
}

func recognises(g *cfg.Grammar, start cfg.Sym, text string) bool {
	r := &recogniser{g: g, text: text, memo: map[at][]int{}}
	return slices.Contains(r.ends(start, 0), len(text))
}

func (r *recogniser) ends(s cfg.Sym, pos int) []int {
	if l, ok := r.memo[at{s, pos}]; ok {
		return l
	}
	r.memo[at{s, pos}] = nil // left recursion finds nothing
	var out []int
	add := func(ends ...int) {
		for _, e := range ends {
			if !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	switch x := r.g.At(s); x.Kind {
	case cfg.KindLexeme:
		ex := x.Ex
		for i := pos; ; i++ {
			if r.g.B.Nullable(ex) {
				add(i)
			}
			if i == len(r.text) || ex == regex.Empty {
				break
			}
			ex = r.g.B.Derivative(ex, r.text[i])
		}
	case cfg.KindRules:
		for _, rule := range x.Rules {
			from := []int{pos}
			for _, y := range rule {
				var next []int
				for _, p := range from {
					for _, q := range r.ends(y, p) {
						if !slices.Contains(next, q) {
							next = append(next, q)
						}
					}
				}
				from = next
				if len(from) == 0 {
					break
				}
			}
			add(from...)
		}
	case cfg.KindList:
		add(r.list(x.List, pos)...)
	}
	r.memo[at{s, pos}] = out
	return out
}

// place is a state within a list.
type place struct {
	pos, elem, total, count int
	counts                  string // of any order
}

func (r *recogniser) list(l *cfg.List, pos int) []int {
	var out []int
	seen := map[place]bool{}
	var visit func(p place)
	step := func(p place, i int) []int {
		from := []int{p.pos}
		if p.total > 0 && l.Sep != cfg.None {
			from = r.ends(l.Sep, p.pos)
		}
		var next []int
		for _, q := range from {
			next = append(next, r.ends(l.Elems[i].Sym, q)...)
		}
		return next
	}
	visit = func(p place) {
		if seen[p] {
			return
		}
		seen[p] = true
		count := func(i int) int {
			switch {
			case l.AnyOrder:
				return int(p.counts[2*i])<<8 | int(p.counts[2*i+1])
			case i == p.elem:
				return p.count
			case i < p.elem:
				return 1 << 30
			}
			return 0
		}
		done := p.total >= l.Min
		for i, x := range l.Elems {
			if l.Prefix && i > p.elem || l.Prefix && i == p.elem && p.count == 0 {
				continue
			}
			if l.AnyOrder || i >= p.elem {
				done = done && count(i) >= x.Min
			}
		}
		if done {
			out = append(out, p.pos)
		}
		if l.Max != cfg.Inf && p.total >= l.Max {
			return
		}
		for i, x := range l.Elems {
			n := count(i)
			if !l.AnyOrder && i < p.elem || x.Max != cfg.Inf && n >= x.Max {
				continue
			}
			if !l.AnyOrder { // none between may be missing
				ok := true
				for j := p.elem; j < i; j++ {
					need := l.Elems[j].Min
					ok = ok && count(j) >= need
				}
				if !ok {
					break
				}
			}
			for _, q := range step(p, i) {
				next := place{pos: q, total: p.total + 1}
				if l.AnyOrder {
					c := []byte(p.counts)
					c[2*i], c[2*i+1] = byte((n+1)>>8), byte(n+1)
					next.counts = string(c)
				} else {
					next.elem, next.count = i, n+1
				}
				if l.Min <= 0 && l.Max == cfg.Inf {
					next.total = 1
				}
				if !l.AnyOrder && x.Max == cfg.Inf && next.count > x.Min {
					next.count = max(x.Min, 1)
				}
				visit(next)
			}
		}
	}
	start := place{pos: pos}
	if l.AnyOrder {
		start.counts = string(make([]byte, 2*len(l.Elems)))
	}
	visit(start)
	slices.Sort(out)
	return slices.Compact(out)
}
