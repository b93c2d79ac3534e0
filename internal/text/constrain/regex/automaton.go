package regex

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"
)

// maxStates bounds the states of an automaton of a pattern with assertions, and maxPlaces those of
// the pattern with its counts written out.
const (
	maxStates = 4096
	maxPlaces = 4 * maxStates
)

// Kinds of states of an nfa. All but nChar and nTrue are passed without a character.
const (
	nTrue  = uint8(iota) // the end of a part of the pattern
	nChar                // a character of one of the classes
	nSplit               // to any of next
	nBegin
	nEnd
	nWord   // one of the characters on both sides is of a set; or both or none are (negated)
	nLook   // the rest leads from sub to nTrue; or it does not
	nBehind // what has been read leads from the start of a behind to its end; or it does not
)

// nstate is a state of an nfa.
type nstate struct {
	kind    uint8
	negated bool
	next    []int32
	classes []bool // of nChar
	sub     int32  // of nLook; of nBehind and nWord an index into nfa.behinds, nfa.sets
}

// nfa is a pattern as states, over classes of characters that no part of it tells apart.
type nfa struct {
	b       *Builder
	states  []nstate
	classes [][]rune // ranges of characters
	// sets has, by set of characters in the pattern, whether a class is of it, and bySet the
	// number of a set by its ranges.
	sets  [][]bool
	bySet map[string]int
	// alike has for each class the first one that is of the same words, where \b asks for them.
	alike   []int32
	behinds []behind // those within others come before them
	full    bool
}

// behind is what a look-behind asks for: it may begin anywhere.
type behind struct{ start, end int32 }

// automaton makes the texts in which t matches by following all ways to read them at once: what
// has been read is states of the look-behinds and the last character, what is still to come is a
// formula over states. Those that no text tells apart become one kState.
func (c *compiler) automaton(t *term, in span) Ex {
	n := &nfa{b: c.b, bySet: map[string]int{}}
	n.divide(t)
	end := n.add(nstate{kind: nTrue})
	if !in.open {
		end = n.add(nstate{kind: nEnd, next: []int32{end}})
	}
	start := n.build(t, end)
	if !in.anchored {
		start = n.anywhere(start)
	}
	d := &dfa{n: n, ids: map[string]int32{}, full: n.full}
	d.explore(start)
	switch {
	case c.b.out:
		return Empty
	case d.full:
		c.err = &SyntaxError{Offset: t.at, Unsupported: true,
			Reason: fmt.Sprintf("assertions that take more than %d states are not supported",
				maxStates)}
		return Empty
	}
	d.trim()
	d.merge()
	return d.express(c)
}

// divide finds the classes of characters of t.
func (n *nfa) divide(t *term) {
	var sets [][]rune
	words := map[int]bool{}
	var visit func(t *term)
	visit = func(t *term) {
		if t.kind == tClass || t.kind == tWord {
			i, known := n.bySet[string(t.ranges)]
			if !known {
				i = len(sets)
				n.bySet[string(t.ranges)] = i
				sets = append(sets, normal(t.ranges))
			}
			words[i] = words[i] || t.kind == tWord
		}
		for _, s := range t.subs {
			visit(s)
		}
	}
	visit(t)
	const surrogates, beyond = 0xD800, 0xE000
	cuts := []rune{0, surrogates, beyond, utf8.MaxRune + 1}
	for _, s := range sets {
		for i := 0; i+1 < len(s); i += 2 {
			cuts = append(cuts, s[i], s[i+1]+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	n.sets = make([][]bool, len(sets))
	at := make([]int, len(sets)) // the first range of each set that does not end before the cut
	byKey := map[string]int{}
	alike := map[string]int32{}
	for i := 0; i+1 < len(cuts) && n.b.spendN(1+len(sets)/perUnit); i++ {
		if cuts[i] >= surrogates && cuts[i] < beyond {
			continue // they are no characters
		}
		key, word := make([]byte, len(sets)), make([]byte, len(sets))
		for j, s := range sets {
			for at[j] < len(s) && s[at[j]+1] < cuts[i] {
				at[j] += 2
			}
			if at[j] < len(s) && s[at[j]] <= cuts[i] {
				key[j] = 1
				if words[j] {
					word[j] = 1
				}
			}
		}
		k, known := byKey[string(key)]
		if !known {
			k = len(n.classes)
			byKey[string(key)] = k
			n.classes = append(n.classes, nil)
			for j := range sets {
				n.sets[j] = append(n.sets[j], key[j] == 1)
			}
			if _, known := alike[string(word)]; !known {
				alike[string(word)] = int32(k)
			}
			n.alike = append(n.alike, alike[string(word)])
		}
		n.classes[k] = append(n.classes[k], cuts[i], cuts[i+1]-1)
	}
}

func (n *nfa) add(s nstate) int32 {
	n.b.spend()
	n.states = append(n.states, s)
	n.full = n.full || len(n.states) > maxPlaces
	return int32(len(n.states) - 1)
}

// anywhere is a state from which any text leads to start.
func (n *nfa) anywhere(start int32) int32 {
	all := make([]bool, len(n.classes))
	for i := range all {
		all[i] = true
	}
	char := n.add(nstate{kind: nChar, classes: all})
	loop := n.add(nstate{kind: nSplit, next: []int32{char, start}})
	n.states[char].next = []int32{loop}
	return loop
}

// build adds the states of t, the last of which lead to next, and is the first.
func (n *nfa) build(t *term, next int32) int32 {
	if n.b.out || n.full {
		return next
	}
	switch t.kind {
	case tClass:
		return n.add(nstate{kind: nChar, next: []int32{next},
			classes: n.sets[n.bySet[string(t.ranges)]]})
	case tCat:
		for i := len(t.subs) - 1; i >= 0; i-- {
			next = n.build(t.subs[i], next)
		}
		return next
	case tAlt:
		split := nstate{kind: nSplit}
		for _, s := range t.subs {
			split.next = append(split.next, n.build(s, next))
		}
		return n.add(split)
	case tRep:
		return n.repeated(t, next)
	case tBegin:
		return n.add(nstate{kind: nBegin, next: []int32{next}})
	case tEnd:
		return n.add(nstate{kind: nEnd, next: []int32{next}})
	case tWord:
		return n.add(nstate{kind: nWord, negated: t.negated, next: []int32{next},
			sub: int32(n.bySet[string(t.ranges)])})
	case tLook:
		sub := n.build(t.subs[0], n.add(nstate{kind: nTrue}))
		return n.add(nstate{kind: nLook, negated: t.negated, next: []int32{next}, sub: sub})
	}
	end := n.add(nstate{kind: nTrue}) // tBehind
	start := n.build(t.subs[0], end)
	n.behinds = append(n.behinds, behind{n.anywhere(start), end})
	return n.add(nstate{kind: nBehind, negated: t.negated, next: []int32{next},
		sub: int32(len(n.behinds) - 1)})
}

// repeated writes a count out: what is counted may ask for what is around it each time.
func (n *nfa) repeated(t *term, next int32) int32 {
	if t.max < 0 {
		loop := n.add(nstate{kind: nSplit})
		first := n.build(t.subs[0], loop)
		n.states[loop].next = []int32{first, next}
		next = loop
	}
	after := next
	for i := max(t.max, t.min); i > 0 && !n.b.out && !n.full; i-- {
		next = n.build(t.subs[0], next)
		if i > t.min {
			next = n.add(nstate{kind: nSplit, next: []int32{next, after}})
		}
	}
	return next
}

// Classes of characters that are none: where the text ends, where it begins, and that of a last
// character that no assertion asks for.
const (
	end     = -1
	begin   = -2
	unasked = -3
)

// dstate is a state of a dfa: what has been read, and what is still to come.
type dstate struct {
	last   int32     // the class of the last character
	behind []reached // by look-behind
	rest   formula
}

// reached has, for each state of an nfa that a look-behind has come to, what the rest of the text
// must be for that.
type reached map[int32]formula

// dfa is an automaton that is made state by state.
type dfa struct {
	n      *nfa
	states []dstate
	ids    map[string]int32
	start  int32
	next   [][]int32 // by state and class; dead where nothing follows
	accept []bool
	full   bool
	// Of the step that is made: the classes of the last character and the next one, and what of
	// the rest after it is asked by states and look-behinds.
	last, class int32
	values      map[int32]formula
	truths      []formula
}

// dead is the state that no text follows.
const dead = -1

func (d *dfa) explore(start int32) {
	first := dstate{last: begin, rest: formula{{literal(start) << 1}}}
	for _, x := range d.n.behinds {
		first.behind = append(first.behind, reached{x.start: always})
	}
	d.start = d.id(first)
	for i := 0; i < len(d.states) && !d.full && !d.n.b.out; i++ {
		s := d.states[i]
		next := make([]int32, len(d.n.classes))
		for k := range next {
			next[k] = d.id(d.step(s, int32(k)))
		}
		d.next = append(d.next, next)
		d.accept = append(d.accept, d.step(s, end).rest.isAlways())
	}
}

// id is the number of a state.
func (d *dfa) id(s dstate) int32 {
	if len(s.rest) == 0 || d.full || d.n.b.out {
		return dead
	}
	if s.rest.isAlways() { // whatever has been read
		s = dstate{last: unasked, rest: always}
	}
	var key []byte
	put := func(v int) { key = binary.AppendVarint(key, int64(v)) }
	write := func(f formula) {
		put(len(f))
		for _, t := range f {
			put(len(t))
			for _, l := range t {
				put(int(l))
			}
		}
	}
	put(int(s.last))
	write(s.rest)
	for _, r := range s.behind {
		put(len(r))
		for _, q := range slices.Sorted(maps.Keys(r)) {
			put(int(q))
			write(r[q])
		}
	}
	d.n.b.spendN(len(key) / perUnit)
	if id, known := d.ids[string(key)]; known {
		return id
	}
	if len(d.states) == maxStates {
		d.full = true
		return dead
	}
	id := int32(len(d.states))
	d.ids[string(key)] = id
	d.states = append(d.states, s)
	return id
}

// step is the state after one more character of a class, or at the end, where its formula is a
// constant.
func (d *dfa) step(s dstate, class int32) dstate {
	d.n.b.spendN(4)
	d.values, d.truths, d.last, d.class = map[int32]formula{}, nil, s.last, class
	next := dstate{last: unasked}
	if class != end {
		next.last = d.n.alike[class]
	}
	for i, r := range s.behind {
		at := d.closure(r)
		d.truths = append(d.truths, at[d.n.behinds[i].end])
		went := reached{}
		for _, q := range slices.Sorted(maps.Keys(at)) {
			if n := &d.n.states[q]; n.kind == nChar && class != end && n.classes[class] {
				went[n.next[0]] = d.n.b.either(went[n.next[0]], at[q])
			}
		}
		next.behind = append(next.behind, went)
	}
	next.rest = d.advance(s.rest)
	return next
}

// advance is what f says of the rest after the next character.
func (d *dfa) advance(f formula) formula {
	var all []formula
	for _, t := range f {
		x := always
		for _, l := range t {
			v := d.value(int32(l >> 1))
			if l&1 == 1 {
				v = d.n.b.opposite(v)
			}
			if x = d.n.b.both(x, v); len(x) == 0 {
				break
			}
		}
		all = append(all, x)
	}
	return d.n.b.either(all...)
}

// value is what the rest after the next character must be for the rest before it to lead from q to
// an end. States that are passed without a character may be in circles: what is found for them
// grows until nothing changes.
func (d *dfa) value(q int32) formula {
	if v, known := d.values[q]; known {
		return v
	}
	var order []int32 // of those on the way, the farthest first
	var visit func(q int32)
	visit = func(q int32) {
		if _, known := d.values[q]; known {
			return
		}
		d.values[q] = never
		if n := &d.n.states[q]; n.kind != nChar && n.kind != nTrue {
			for _, x := range n.next {
				visit(x)
			}
		}
		order = append(order, q)
	}
	visit(q)
	for changed := true; changed && !d.n.b.out; {
		changed = false
		for _, q := range order {
			if v := d.once(q); !v.equal(d.values[q]) {
				d.values[q], changed = v, true
			}
		}
	}
	return d.values[q]
}

// once is the value of q by the values of the states that it leads to.
func (d *dfa) once(q int32) formula {
	n := &d.n.states[q]
	switch n.kind {
	case nTrue:
		return always
	case nChar:
		if d.class == end || !n.classes[d.class] {
			return never
		}
		return formula{{literal(n.next[0]) << 1}}
	case nSplit:
		all := make([]formula, len(n.next))
		for i, x := range n.next {
			all[i] = d.values[x]
		}
		return d.n.b.either(all...)
	}
	return d.n.b.both(d.condition(n), d.values[n.next[0]])
}

// condition is what an assertion asks of the rest after the next character.
func (d *dfa) condition(n *nstate) formula {
	f := never
	switch n.kind {
	case nBegin:
		return constant(d.last == begin)
	case nEnd:
		return constant(d.class == end)
	case nWord:
		in := func(class int32) bool { return class >= 0 && d.n.sets[n.sub][class] }
		return constant((in(d.last) != in(d.class)) != n.negated)
	case nLook:
		f = d.value(n.sub)
	case nBehind:
		f = d.truths[n.sub]
	}
	if n.negated {
		return d.n.b.opposite(f)
	}
	return f
}

// closure is where a look-behind is before the next character, and what the rest after it must be
// for that.
func (d *dfa) closure(r reached) reached {
	at := reached{}
	var todo []int32
	arrive := func(q int32, f formula) {
		if v := d.n.b.either(at[q], f); !v.equal(at[q]) {
			at[q] = v
			todo = append(todo, q)
		}
	}
	for _, q := range slices.Sorted(maps.Keys(r)) {
		arrive(q, d.advance(r[q]))
	}
	for len(todo) > 0 && !d.n.b.out {
		q := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		n := &d.n.states[q]
		f := at[q]
		switch n.kind {
		case nTrue, nChar:
			continue
		case nSplit:
		default:
			f = d.n.b.both(d.condition(n), f)
		}
		for _, x := range n.next {
			arrive(x, f)
		}
	}
	return at
}
