package regex

import "slices"

// literal says of the rest of a text that it leads from a state of an nfa to the end of that
// state's part of the pattern: twice the number of the state, and 1 more if it does not.
type literal int32

// formula is a positive formula over literals in disjunctive form: one of its terms holds, a term
// being sorted literals that all do. No term contains another, and terms are sorted: equal
// functions have equal formulas.
type formula [][]literal

// never and always are the constant formulas.
var (
	never  = formula{}
	always = formula{{}}
)

func constant(v bool) formula {
	if v {
		return always
	}
	return never
}

// isAlways says that f holds of every text.
func (f formula) isAlways() bool { return len(f) == 1 && len(f[0]) == 0 }

// isLookup says that every term of f is one literal: a set of states.
func (f formula) isLookup() bool {
	for _, t := range f {
		if len(t) != 1 {
			return false
		}
	}
	return true
}

func compareTerms(x, y []literal) int {
	if len(x) != len(y) {
		return len(x) - len(y)
	}
	return slices.Compare(x, y)
}

func (f formula) equal(g formula) bool {
	return slices.EqualFunc(f, g, func(x, y []literal) bool { return slices.Equal(x, y) })
}

// within says that every literal of the term x is in y; both are sorted.
func within(x, y []literal) bool {
	for _, v := range y {
		if len(x) > 0 && x[0] == v {
			x = x[1:]
		}
	}
	return len(x) == 0
}

// reduced is the formula of some terms.
func (b *Builder) reduced(terms formula) formula {
	if !b.spendN(1 + len(terms)/perUnit) {
		return never
	}
	slices.SortFunc(terms, compareTerms)
	terms = slices.CompactFunc(terms, func(x, y []literal) bool { return slices.Equal(x, y) })
	if terms.isLookup() {
		return terms
	}
	out := terms[:0]
	for _, t := range terms { // short ones first
		if !b.spendN(len(out) / perUnit) {
			return never
		}
		if !slices.ContainsFunc(out, func(u []literal) bool { return within(u, t) }) {
			out = append(out, t)
		}
	}
	return out
}

// either holds where one of the formulas does.
func (b *Builder) either(fs ...formula) formula {
	return b.reduced(slices.Concat(fs...))
}

// both holds where f and g do. A literal and its opposite are never true together.
func (b *Builder) both(f, g formula) formula {
	switch {
	case f.isAlways():
		return g
	case g.isAlways():
		return f
	}
	var terms formula
	for _, x := range f {
		if !b.spendN(1 + len(g)*len(x)/perUnit) {
			return never
		}
	next:
		for _, y := range g {
			t := slices.Concat(x, y)
			slices.Sort(t)
			t = slices.Compact(t)
			for i := 1; i < len(t); i++ {
				if t[i] == t[i-1]|1 && t[i-1]&1 == 0 {
					continue next
				}
			}
			terms = append(terms, t)
		}
	}
	return b.reduced(terms)
}

// opposite holds where f does not.
func (b *Builder) opposite(f formula) formula {
	out := always
	for _, t := range f {
		var any formula
		for _, l := range t {
			any = append(any, []literal{l ^ 1})
		}
		if out = b.both(out, b.reduced(any)); b.out {
			return never
		}
	}
	return out
}
