package schema

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
)

// productive says whether a symbol derives any text.
func productive(g *cfg.Grammar, start cfg.Sym) bool {
	yes := make([]bool, g.Len()+1)
	uses := make([][]cfg.Sym, g.Len()+1)
	for s := cfg.Sym(1); int(s) <= g.Len(); s++ {
		x := g.At(s)
		for _, r := range x.Rules {
			for _, y := range r {
				uses[y] = append(uses[y], s)
			}
		}
		if x.List != nil {
			for _, y := range x.List.Elems {
				uses[y.Sym] = append(uses[y.Sym], s)
			}
		}
	}
	can := func(s cfg.Sym) bool { return yes[s] }
	check := func(s cfg.Sym) bool {
		switch x := g.At(s); x.Kind {
		case cfg.KindLexeme:
			return !g.B.Dead(x.Ex)
		case cfg.KindRules:
			return slices.ContainsFunc(x.Rules, func(r []cfg.Sym) bool { return all(r, can) })
		case cfg.KindList:
			return canList(x.List, can)
		}
		return true
	}
	var todo []cfg.Sym
	for s := cfg.Sym(1); int(s) <= g.Len(); s++ {
		todo = append(todo, s)
	}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !yes[s] && check(s) {
			yes[s] = true
			todo = append(todo, uses[s]...)
		}
	}
	return yes[start]
}

// canList says whether a list can be long enough when only some of its elements can be.
func canList(l *cfg.List, can func(cfg.Sym) bool) bool {
	most := 0
	for _, x := range l.Elems {
		switch {
		case can(x.Sym) && x.Max == cfg.Inf:
			return l.Prefix || needed(l, can)
		case can(x.Sym):
			most += x.Max
		case l.Prefix:
			return most >= l.Min
		case x.Min > 0:
			return false
		}
	}
	return most >= l.Min
}

// needed says whether every element that a list needs can be.
func needed(l *cfg.List, can func(cfg.Sym) bool) bool {
	return all(l.Elems, func(x cfg.Elem) bool { return x.Min == 0 || can(x.Sym) })
}
