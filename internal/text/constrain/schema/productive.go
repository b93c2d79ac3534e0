package schema

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/cfg"
)

// productive says whether a symbol derives any text. It looks at what the symbol reaches alone: a
// grammar may hold the schemas of hundreds of tools.
func productive(g *cfg.Grammar, start cfg.Sym) bool {
	reached, at := []cfg.Sym{start}, map[cfg.Sym]int{start: 0}
	uses := [][]int{nil} // of each that is reached, the places of those that have it
	for i := 0; i < len(reached); i++ {
		use := func(s cfg.Sym) {
			j, known := at[s]
			if !known {
				j = len(reached)
				reached, at[s], uses = append(reached, s), j, append(uses, nil)
			}
			uses[j] = append(uses[j], i)
		}
		x := g.At(reached[i])
		for _, r := range x.Rules {
			for _, s := range r {
				use(s)
			}
		}
		if x.List != nil {
			for _, e := range x.List.Elems {
				use(e.Sym)
			}
		}
	}
	yes := make([]bool, len(reached))
	can := func(s cfg.Sym) bool { return yes[at[s]] }
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
	todo := make([]int, len(reached))
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !yes[i] && check(reached[i]) {
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
