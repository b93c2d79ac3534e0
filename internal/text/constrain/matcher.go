package constrain

import (
	"math"
	"slices"
)

// Compiled is a constraint made ready for a vocabulary. Its tables grow while its matchers are
// used: it and they are used by one goroutine at a time.
type Compiled struct {
	*parser
	b           *regexBuilder
	vocab       *Vocabulary
	limits      Limits
	scannerless bool
	scratch     []uint32 // a mask
	levels      []int32  // lexer states on the way down a trie
	threads     []thread
	ends        []int
	spare       [2][]thread
}

// Matcher is a place in a text that a constraint admits. The zero Matcher is not usable.
type Matcher struct {
	c       *Compiled
	root    *row
	threads []thread
	spent   bool
	// left is the operations that the rest of the answer may take, and rows the items on its way
	// here.
	left, rows int
	// steps and items are what is under way was given, taken is what it took, in operations.
	steps, items, taken int
}

// Matcher is the beginning of a text.
func (c *Compiled) Matcher() *Matcher {
	if c.memoFull() {
		c.fuel, c.crowded = c.limits.Items, false
		c.b.Refuel(c.limits.Steps)
		c.restart()
	}
	return &Matcher{c: c, root: c.root, threads: []thread{{row: c.root, lex: c.root.lex}},
		left: c.limits.Answer}
}

// Clone is another matcher at the same place.
func (m *Matcher) Clone() *Matcher {
	n := *m
	n.threads = slices.Clone(m.threads)
	return &n
}

// refuel begins what may take so many operations, and no more than are left to the answer.
func (m *Matcher) refuel(operations int) {
	c := m.c
	operations = max(min(operations, m.left, max(c.limits.Steps, c.limits.Items)), 0)
	m.steps = min(operations, c.limits.Steps)
	m.items = min(operations*itemsPerStep, c.limits.Items)
	c.b.Refuel(m.steps)
	c.fuel, c.crowded, c.lx.overfull = m.items, false, false
}

// settle counts what was taken, and says whether there was enough.
func (m *Matcher) settle() bool {
	c := m.c
	m.spent = c.parser.spent()
	m.taken = m.steps - c.b.Fuel() + (m.items-max(c.fuel, 0))/itemsPerStep
	m.left -= m.taken
	return !m.spent
}

// Exhausted says that the last Mask, Accept or Forced could not be answered within the limits:
// Mask then has no token, and Accept was false.
func (m *Matcher) Exhausted() bool { return m.spent }

// Taken is how many operations the last Try or TryAccept took.
func (m *Matcher) Taken() int { return m.taken }

// Held is the memory of the constraint's tables, in bytes as they are counted against Limits.Bytes.
func (c *Compiled) Held() int { return c.b.Held() }

// Full says that the tables have come to Limits.Bytes: nothing more can be found out with them, and
// what is not known is Exhausted.
func (c *Compiled) Full() bool { return c.b.Full() }

// Held is the memory of the places on the way of the answer, in bytes.
func (m *Matcher) Held() int { return m.rows * itemBytes }

// Mask sets row, of Words words, to the tokens that may come next: token i is bit i&31 of word
// i>>5. Tokens that end an answer are not among them: the answer may end when Accepting. A token is
// set exactly when Accept takes it. Words beyond those of the vocabulary are cleared.
func (m *Matcher) Mask(row []uint32) {
	m.Try(row, math.MaxInt)
}

// Try is Mask and Accepting with at most so many operations, and says whether they were enough.
// What it has found out is known to the next one.
func (m *Matcher) Try(row []uint32, operations int) (accepting, enough bool) {
	c := m.c
	m.refuel(operations)
	mask := row[:min(len(row), c.vocab.words)]
	clear(row)
	if len(mask) < c.vocab.words {
		return false, true
	}
	for i, t := range m.threads {
		c.mask(m.root, t, mask, i == 0)
	}
	c.vocab.setTwins(mask)
	accepting = m.accepting()
	if !m.settle() {
		clear(mask)
		return false, false
	}
	return accepting, true
}

// Accept goes on by a token, and returns false, going nowhere, when the constraint does not admit
// it.
func (m *Matcher) Accept(token int32) bool { return m.TryAccept(token, math.MaxInt) }

// TryAccept is Accept with at most so many operations: when they are not enough it is false, and
// the Matcher Exhausted. What it has found out is known to the next one.
func (m *Matcher) TryAccept(token int32, operations int) bool {
	c := m.c
	m.refuel(operations)
	if token < 0 {
		return false
	}
	var next []thread
	if int(token) < len(c.vocab.tokens) && c.vocab.ordinary(token) {
		next = c.text(m.root, m.threads, c.vocab.tokens[token])
	} else {
		next = c.special(m.root, m.threads, token)
	}
	if !m.settle() || len(next) == 0 {
		return false
	}
	for _, t := range next {
		if !slices.ContainsFunc(m.threads, func(u thread) bool { return u.row == t.row }) {
			m.rows += len(t.row.items)
		}
	}
	if m.spent = m.rows > c.limits.AnswerItems; m.spent {
		return false
	}
	m.left += c.limits.Token
	if c.memoFull() { // what is left behind forgets what it remembers
		for _, t := range m.threads {
			t.row.kids, t.row.merged = nil, nil
		}
	}
	m.threads = append(m.threads[:0], next...)
	return true
}

// text is what becomes of threads after some bytes.
func (c *Compiled) text(root *row, at []thread, text []byte) []thread {
	if !c.scannerless {
		t, ok := at[0], true
		for _, b := range text {
			if t, ok = c.advance(root, t, b); !ok || c.parser.spent() {
				return nil
			}
		}
		c.spare[0] = append(c.spare[0][:0], t)
		return c.spare[0]
	}
	now, next := append(c.spare[0][:0], at...), c.spare[1][:0]
	for _, b := range text {
		next = c.advanceAll(root, now, b, next[:0])
		now, next = next, now
		if len(now) == 0 || c.parser.spent() {
			return nil
		}
	}
	c.spare = [2][]thread{now, next}
	return now
}

// special is what becomes of threads after a special token.
func (c *Compiled) special(root *row, at []thread, token int32) []thread {
	var endings []ending
	for _, t := range at {
		r := t.row
		if t.inside {
			ends := c.lx.states[t.lex].ends
			if ends == 0 || c.scannerless {
				continue
			}
			r = c.scan(root, r, ends)
		}
		var sets []int32
		for _, set := range r.tokens {
			if c.allows(&c.tokens[set], token) {
				sets = append(sets, set)
			}
		}
		if len(sets) > 0 {
			endings = append(endings, ending{r, -c.lx.set(sets)})
		}
	}
	if len(endings) == 0 {
		return nil
	}
	r := c.scanAll(root, endings)
	return append(c.spare[0][:0], thread{row: r, lex: r.lex})
}

// allows says whether a set has a token.
func (c *Compiled) allows(set *tokenSet, token int32) bool {
	if _, stops := slices.BinarySearch(c.vocab.stop, token); stops {
		return false
	}
	_, listed := slices.BinarySearch(set.ids, token)
	_, known := slices.BinarySearch(c.vocab.texts, token)
	return known && listed != set.except
}

// Accepting says whether the text so far is one that the constraint matches: the answer may end.
func (m *Matcher) Accepting() bool {
	m.refuel(math.MaxInt)
	is := m.accepting()
	return m.settle() && is
}

func (m *Matcher) accepting() bool {
	for _, t := range m.threads {
		if !t.inside && t.row.accept {
			return true
		}
		if ends := m.c.lx.states[t.lex].ends; t.inside && ends != 0 &&
			m.c.scan(m.root, t.row, ends).accept {
			return true
		}
	}
	return false
}
