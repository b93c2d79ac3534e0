package regex

import (
	"cmp"
	"slices"
)

// counted is an alternative that begins with a repetition, or with one of what others repeat.
type counted struct {
	x, of, rest Ex
	lo, hi      int32
}

// head divides x into a repetition of something and what comes after it: what is not repeated is
// repeated once.
func (b *Builder) head(x Ex) counted {
	c := counted{x: x, of: x, rest: Eps, lo: 1, hi: 1}
	if n := &b.nodes[x]; n.kind == kCat {
		c.of, c.rest = n.a, n.b
	}
	if n := &b.nodes[c.of]; n.kind == kRep {
		c.of, c.lo, c.hi = n.a, n.min, n.max
	}
	return c
}

// absorb leaves out the alternatives that others contain as far as their counts say so: of
// x{0,5}y and x{2,3}y the second, and of (x{0,5}y){0,3} and (x{0,4}y){0,2}, too. Without it the
// derivatives of nested counts are alternatives for every pair of counts.
func (b *Builder) absorb(l []Ex) []Ex {
	reps := 0
	for _, x := range l {
		if n := &b.nodes[x]; n.kind == kRep || n.kind == kCat && b.nodes[n.a].kind == kRep {
			reps++
		}
	}
	if reps == 0 || len(l) == 1 {
		return l
	}
	cs := make([]counted, len(l))
	for i, x := range l {
		cs[i] = b.head(x)
	}
	// What may contain another comes before it: of counts with one lower bound the widest is first.
	slices.SortFunc(cs, func(x, y counted) int {
		return cmp.Or(cmp.Compare(x.of, y.of), cmp.Compare(x.lo, y.lo),
			-cmp.Compare(uint32(x.hi), uint32(y.hi)), cmp.Compare(x.rest, y.rest))
	})
	l = l[:0]
	var last Ex
	for i, c := range cs {
		if i > 0 && b.contains(last, c.x) {
			continue
		}
		if i > 0 && cs[i-1].of == c.of && b.contains(c.x, last) {
			l = l[:len(l)-1]
		}
		l = append(l, c.x)
		last = c.x
	}
	return l
}

// contains says that x matches what y matches, if the counts in them say so.
func (b *Builder) contains(x, y Ex) bool {
	for range 8 {
		if x == y {
			return true
		}
		if x == Eps || y == Eps || b.nodes[x].kind == kOr {
			return false
		}
		c, d := b.head(x), b.head(y)
		switch {
		case c.of == d.of && c.lo <= d.lo && (c.hi < 0 || d.hi >= 0 && c.hi >= d.hi):
			x, y = c.rest, d.rest
		case c.lo == 0:
			x = c.rest
		default:
			return false
		}
	}
	return false
}
