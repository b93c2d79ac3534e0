package schema

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
)

// productive says whether a symbol derives any text. It looks at what the symbol reaches alone: a
// grammar may hold the schemas of hundreds of tools.
func productive(g *cfg.Grammar, start cfg.Sym) bool {
	at := make([]int, g.Len()+1) // of each symbol, one more than its place among those reached
	at[start] = 1
	todo, uses := []cfg.Sym{start}, [][]cfg.Sym{nil}
	var parts []cfg.Sym
	for i := 0; i < len(todo); i++ {
		x := g.At(todo[i])
		parts = parts[:0]
		for _, r := range x.Rules {
			parts = append(parts, r...)
		}
		if x.List != nil {
			for _, y := range x.List.Elems {
				parts = append(parts, y.Sym)
			}
		}
		for _, y := range parts {
			if at[y] == 0 {
				todo, uses = append(todo, y), append(uses, nil)
				at[y] = len(todo)
			}
			uses[at[y]-1] = append(uses[at[y]-1], todo[i])
		}
	}
	yes := make([]bool, len(uses))
	can := func(s cfg.Sym) bool { return yes[at[s]-1] }
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
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if i := at[s] - 1; !yes[i] && check(s) {
			yes[i] = true
			todo = append(todo, uses[i]...)
		}
	}
	return yes[0]
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
