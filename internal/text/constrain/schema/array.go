package schema

import (
	"slices"

	"github.com/eagleray/eagleray/internal/text/constrain/regex"
)

// contains asks for a number of items, from a position on, that are of a schema.
type contains struct {
	from        int
	node        id
	least, most int // most may be regex.Inf
}

// arrays is a set of arrays.
type arrays struct {
	prefix []id
	rest   id
	// least and most bound the number of items; most may be regex.Inf.
	least, most int
	contains    []contains
	unique      bool
	// seen is how many items an unevaluatedItems beside the schema does not look at, and seenIf
	// are schemas whose items it does not look at either.
	seen   int
	seenIf []id
}

func anyArray() *arrays { return &arrays{rest: top, most: regex.Inf} }

func (a *arrays) item(i int) id {
	if i < len(a.prefix) {
		return a.prefix[i]
	}
	return a.rest
}

// fewer is the smaller of two upper ends.
func fewer(x, y int) int {
	if x == regex.Inf || y != regex.Inf && y < x {
		return y
	}
	return x
}

// andArrays intersects two sets; nil says that the result is surely empty.
func (c *compiler) andArrays(x, y *arrays) *arrays {
	r := &arrays{least: max(x.least, y.least), most: fewer(x.most, y.most),
		unique: x.unique || y.unique, contains: slices.Concat(x.contains, y.contains),
		rest: c.and(x.rest, y.rest), seen: max(x.seen, y.seen),
		seenIf: slices.Concat(x.seenIf, y.seenIf)}
	n := max(len(x.prefix), len(y.prefix))
	c.spend(n + len(r.contains) + len(r.seenIf))
	for i := range n {
		r.prefix = append(r.prefix, c.and(x.item(i), y.item(i)))
	}
	if !c.trimArray(r) {
		return nil
	}
	return r
}

// trimArray takes out what cannot be, and says whether anything can.
func (c *compiler) trimArray(a *arrays) bool {
	if a.most != regex.Inf && len(a.prefix) > a.most {
		a.prefix = a.prefix[:a.most]
	}
	for i, n := range a.prefix {
		if n == bottom || n != top && c.empty(n) {
			a.prefix, a.most = a.prefix[:i], i
			a.rest = bottom
			break
		}
	}
	if a.rest != top && (a.rest == bottom || c.empty(a.rest)) {
		a.rest, a.most = bottom, fewer(a.most, len(a.prefix))
	}
	if a.most != regex.Inf && a.most <= len(a.prefix) {
		a.rest = bottom
	}
	for _, x := range a.contains {
		if x.least > 0 && (x.node == bottom || c.empty(x.node)) {
			return false
		}
	}
	a.contains = slices.DeleteFunc(slices.Clone(a.contains), func(x contains) bool {
		if x.node != top {
			return x.least == 0 && x.most == regex.Inf
		}
		if x.least > 0 {
			a.least = max(a.least, x.from+x.least)
		}
		if x.most != regex.Inf {
			a.most = fewer(a.most, x.from+x.most)
		}
		return true
	})
	for _, x := range a.contains {
		if x.most != regex.Inf && x.most < x.least {
			return false
		}
		if x.least > 0 {
			a.least = max(a.least, x.from+x.least)
		}
	}
	if a.most == 0 || a.most == 1 {
		a.unique = false
	}
	return a.most == regex.Inf || a.least <= a.most
}

// disjointArrays says that no array is in both sets, where that is easily seen.
func (c *compiler) disjointArrays(x, y *arrays) bool {
	least := max(x.least, y.least)
	if most := fewer(x.most, y.most); most != regex.Inf && most < least {
		return true
	}
	least = min(least, max(len(x.prefix), len(y.prefix))+1)
	c.spend(least)
	for i := range least {
		if n := c.and(x.item(i), y.item(i)); n != top && c.empty(n) {
			return true
		}
	}
	return false
}

// notArrays lists sets whose union is what a leaves out.
func (c *compiler) notArrays(a *arrays) []*arrays {
	var out []*arrays
	add := func(change func(r *arrays)) {
		r := anyArray()
		change(r)
		out = append(out, r)
	}
	if a.least > 0 {
		add(func(r *arrays) { r.most = a.least - 1 })
	}
	if a.most != regex.Inf {
		add(func(r *arrays) { r.least = a.most + 1 })
	}
	for i, n := range a.prefix {
		if n == top {
			continue
		}
		c.spend(i / 4)
		add(func(r *arrays) {
			r.prefix = append(make([]id, i, i+1), c.not(n)) // top before it
			r.least = i + 1
		})
	}
	if a.rest != top && (a.most == regex.Inf || a.most > len(a.prefix)) {
		add(func(r *arrays) {
			r.contains = []contains{{len(a.prefix), c.not(a.rest), 1, regex.Inf}}
		})
	}
	for _, x := range a.contains {
		if x.least > 0 {
			add(func(r *arrays) { r.contains = []contains{{x.from, x.node, 0, x.least - 1}} })
		}
		if x.most != regex.Inf {
			add(func(r *arrays) {
				r.contains = []contains{{x.from, x.node, x.most + 1, regex.Inf}}
			})
		}
	}
	if a.unique {
		c.unsupported("uniqueItems", "the complement of uniqueItems cannot be enforced")
	}
	return out
}
