package regex

import (
	"encoding/binary"
	"maps"
	"slices"
)

// trim lets transitions into states from which no text is accepted lead nowhere.
func (d *dfa) trim() {
	into := make([][]int32, len(d.states))
	live := slices.Clone(d.accept)
	var todo []int32
	for s, next := range d.next {
		if live[s] {
			todo = append(todo, int32(s))
		}
		for _, t := range next {
			if t != dead {
				into[t] = append(into[t], int32(s))
			}
		}
	}
	for len(todo) > 0 {
		t := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, s := range into[t] {
			if !live[s] {
				live[s] = true
				todo = append(todo, s)
			}
		}
	}
	for _, next := range d.next {
		for k, t := range next {
			if t != dead && !live[t] {
				next[k] = dead
			}
		}
	}
	if d.start != dead && !live[d.start] {
		d.start = dead
	}
}

// merge makes one state of all that accept the same texts (Moore's refinement).
func (d *dfa) merge() {
	block, blocks := make([]int32, len(d.states)), 0
	for s, accept := range d.accept {
		if accept {
			block[s] = 1
		}
	}
	for {
		by := map[string]int32{}
		fresh := make([]int32, len(d.states))
		for s, next := range d.next {
			if !d.n.b.spendN(1 + len(next)/perUnit) {
				return
			}
			key := binary.AppendVarint(nil, int64(block[s]))
			for _, t := range next {
				to := int64(dead)
				if t != dead {
					to = int64(block[t])
				}
				key = binary.AppendVarint(key, to)
			}
			b, known := by[string(key)]
			if !known {
				b = int32(len(by))
				by[string(key)] = b
			}
			fresh[s] = b
		}
		block = fresh
		if len(by) == blocks {
			break
		}
		blocks = len(by)
	}
	next, accept := make([][]int32, blocks), make([]bool, blocks)
	for s, b := range block {
		if next[b] != nil {
			continue
		}
		next[b], accept[b] = slices.Clone(d.next[s]), d.accept[s]
		for k, t := range next[b] {
			if t != dead {
				next[b][k] = block[t]
			}
		}
	}
	if d.start != dead {
		d.start = block[d.start]
	}
	d.next, d.accept = next, accept
}

// express makes the expressions of all states, and is that of the first.
func (d *dfa) express(c *compiler) Ex {
	if d.start == dead || c.b.out {
		return Empty
	}
	least, infinite := d.bounds()
	whole := inText
	if c.json {
		whole |= inJSON
	}
	xs := make([]Ex, len(d.next))
	for s, next := range d.next {
		if d.accept[s] && !slices.ContainsFunc(next, func(t int32) bool { return t != int32(s) }) {
			xs[s] = c.text
			continue
		}
		n := node{kind: kState, a: Ex(len(c.b.defs)), nullable: d.accept[s], plain: true,
			min: least[s]}
		if infinite[s] {
			n.max = 1
		}
		c.b.defs = append(c.b.defs, Empty)
		c.b.Hold(argBytes)
		xs[s] = c.b.mark(c.b.intern(n, nil), whole)
	}
	for s, next := range d.next {
		if xs[s] == c.text {
			continue
		}
		to := map[int32][]rune{}
		for k, t := range next {
			if t != dead {
				to[t] = append(to[t], d.n.classes[k]...)
			}
		}
		var alts []Ex
		if d.accept[s] {
			alts = append(alts, Eps)
		}
		for _, t := range slices.Sorted(maps.Keys(to)) {
			one := c.plain(&term{kind: tClass, ranges: normal(to[t])})
			alts = append(alts, c.b.Cat(one, xs[t]))
		}
		c.b.defs[c.b.nodes[xs[s]].a] = c.b.Or(alts...)
	}
	return xs[d.start]
}

// bounds are, for each state, the least number of characters of a text that it accepts, and whether
// it accepts infinitely many.
func (d *dfa) bounds() (least []int32, infinite []bool) {
	least, infinite = make([]int32, len(d.next)), make([]bool, len(d.next))
	for s := range least {
		if infinite[s] = true; !d.accept[s] {
			least[s] = most
		}
	}
	for changed := true; changed; {
		changed = false
		for s := len(d.next) - 1; s >= 0; s-- {
			l, more := least[s], false
			for _, t := range d.next[s] {
				if t != dead {
					l, more = min(l, least[t]+1), more || infinite[t]
				}
			}
			if l != least[s] || more != infinite[s] {
				least[s], infinite[s], changed = l, more, true
			}
		}
	}
	return least, infinite
}
