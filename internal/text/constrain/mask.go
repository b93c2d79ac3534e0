package constrain

import "math/bits"

// crossing is a node of a trie at which lexemes may end inside a token: what comes after it is the
// parser's to say. refeed says that the byte of the node itself comes after it.
type crossing struct {
	trie   int8
	refeed bool
	ends   int32
	node   int32
}

// lexMask is what a lexer state alone says about tokens: those that stay inside its lexemes, and
// where they may leave them.
type lexMask struct {
	dense []uint32 // shared by states with equal ones; nil: list
	list  []uint32
	cross []crossing
}

// crossingBytes is the size of a crossing.
const crossingBytes = 12

// shortList is how many tokens at most are kept as a list.
const shortList = 600

// lexMask is the mask of a lexer state, made when it is first asked for. nil: the fuel is out.
func (c *Compiled) lexMask(s int32) *lexMask {
	if m := c.lx.states[s].mask; m != nil {
		return m
	}
	canonical := c.lx.canonical(s, c.vocab.longest)
	m := c.lx.states[canonical].mask
	if m == nil {
		if m = c.buildMask(canonical); m == nil {
			return nil
		}
		c.lx.states[canonical].mask = m
	}
	c.lx.states[s].mask = m
	return m
}

func (c *Compiled) buildMask(s int32) *lexMask {
	v := c.vocab
	m := &lexMask{}
	which := 0
	mask := c.scratch
	clear(mask)
	for i := range v.slices {
		if c.holds(s, v.slices[i].runes) {
			copy(mask, v.slices[i].mask)
			which = i + 1
			break
		}
	}
	c.walkLexer(int8(which), s, m, mask)
	c.b.Hold(stateBytes + cap(m.cross)*crossingBytes)
	if c.lx.spent() {
		return nil
	}
	if n, _ := count(mask); n <= shortList {
		m.list = make([]uint32, 0, n)
		for i, w := range mask {
			for ; w != 0; w &= w - 1 {
				m.list = append(m.list, uint32(i*32+bits.TrailingZeros32(w)))
			}
		}
		c.b.Hold(4 * n)
		return m
	}
	m.dense = c.lx.shared(mask)
	return m
}

// shared is a copy of a mask, the same for equal ones.
func (l *lexer) shared(mask []uint32) []uint32 {
	h := uint64(0)
	for _, w := range mask {
		h = (h ^ uint64(w)) * 0x9E3779B97F4A7C15
		h ^= h >> 29
	}
search:
	for _, old := range l.dense[h] {
		for i, w := range old {
			if mask[i] != w {
				continue search
			}
		}
		return old
	}
	own := append([]uint32(nil), mask...)
	l.dense[h] = append(l.dense[h], own)
	l.b.Hold(stateBytes + 4*len(own))
	return own
}

// holds says that a state can take every safe text of so many characters.
func (c *Compiled) holds(s int32, runes int) bool {
	for _, e := range c.lx.states[s].live {
		if c.b.Holds(e.rest, c.lx.safe, runes) {
			return true
		}
	}
	return false
}

// nodesPerUnit is how many nodes of a trie are walked in the time of an operation, where all that
// is asked is known.
const nodesPerUnit = 128

// walkLexer walks a trie with a lexer state.
func (c *Compiled) walkLexer(which int8, start int32, m *lexMask, mask []uint32) {
	t, lx := c.vocab.tries[which], c.lx
	stack := c.levels
	stack[0] = start
	level, walked := 0, 0
	defer func() { c.b.Spend(walked / nodesPerUnit) }()
	for p := 1; p < len(t); walked++ {
		n := t[p]
		s := stack[level]
		next := int32(unknown)
		if st := &lx.states[s]; st.next != nil {
			next = st.next[lx.class[n.byte()]]
		}
		if next == unknown {
			if next = lx.step(s, n.byte()); lx.spent() {
				return
			}
		}
		if next == deadState {
			if ends := lx.states[s].ends; ends != 0 && !c.scannerless {
				m.cross = append(m.cross, crossing{which, true, ends, int32(p)})
			}
			p += n.size()
			level -= n.pops() - 1
			continue
		}
		if tok := n.token(); tok != noToken {
			mask[tok>>5] |= 1 << (tok & 31)
		}
		to := &lx.states[next]
		if n.size() > 1 && (to.final || c.scannerless && to.ends != 0) {
			m.cross = append(m.cross, crossing{which, false, to.ends, int32(p)})
		}
		if to.final {
			p += n.size()
			level -= n.pops() - 1
			continue
		}
		level++
		stack[level] = next
		if n.size() == 1 {
			level -= n.pops()
		}
		p++
	}
}

// mask adds the tokens that may come after a thread.
func (c *Compiled) mask(root *row, at thread, mask []uint32, first bool) {
	if at.lex != deadState {
		m := c.lexMask(at.lex)
		if m == nil {
			return
		}
		switch {
		case m.dense == nil:
			for _, t := range m.list {
				mask[t>>5] |= 1 << (t & 31)
			}
		case first:
			copy(mask, m.dense)
		default:
			for i, w := range m.dense {
				mask[i] |= w
			}
		}
		c.cross(root, at.row, m.cross, mask)
	}
	for _, set := range c.tokensAt(root, at) {
		c.addTokens(&c.tokens[set], mask)
	}
}

// tokensAt are the sets of special tokens that may come after a thread.
func (c *Compiled) tokensAt(root *row, at thread) []int32 {
	if !at.inside {
		return at.row.tokens
	}
	if ends := c.lx.states[at.lex].ends; ends != 0 && !c.scannerless {
		return c.scan(root, at.row, ends).tokens
	}
	return nil
}

func (c *Compiled) addTokens(set *tokenSet, mask []uint32) {
	ids := set.ids
	if set.except {
		ids = c.vocab.texts
	}
	for _, id := range ids {
		if c.allows(set, id) {
			mask[id>>5] |= 1 << (id & 31)
		}
	}
}

func (c *Compiled) cross(root, r *row, crossings []crossing, mask []uint32) {
	var last int32
	var next *row
	for _, x := range crossings {
		if x.ends != last {
			last = x.ends
			if next = c.scan(root, r, x.ends); c.spent() {
				return
			}
		}
		if next.lex == deadState {
			continue
		}
		t := c.vocab.tries[x.trie]
		from, to := int(x.node)+1, int(x.node)+t[x.node].size()
		at := thread{row: next, lex: next.lex}
		switch {
		case c.scannerless:
			c.walkThreads(root, t, from, to, at, mask)
			continue
		case x.refeed:
			n := t[x.node]
			var ok bool
			if at, ok = c.advance(root, at, n.byte()); !ok {
				continue
			}
			if tok := n.token(); tok != noToken {
				mask[tok>>5] |= 1 << (tok & 31)
			}
		}
		c.walk(root, t, from, to, at, mask)
	}
}

// walk walks the nodes of a subtree, from to to, with the parser.
func (c *Compiled) walk(root *row, t trie, from, to int, start thread, mask []uint32) {
	base := len(c.threads)
	c.threads = append(c.threads, start)
	walked := 0
	for p := from; p < to; walked++ {
		n := t[p]
		at, ok := c.advance(root, c.threads[len(c.threads)-1], n.byte())
		if c.spent() {
			break
		}
		if !ok {
			p += n.size()
			c.pop(base, n.pops()-1)
			continue
		}
		if tok := n.token(); tok != noToken {
			mask[tok>>5] |= 1 << (tok & 31)
		}
		c.threads = append(c.threads, at)
		if n.size() == 1 {
			c.pop(base, n.pops())
		}
		p++
	}
	c.threads = c.threads[:base]
	c.fuel -= walked / itemsPerUnit
}

// pop goes up by levels, but not above the beginning of the walk: the last node goes to where its
// subtree's own root goes.
func (c *Compiled) pop(base, levels int) {
	if to := len(c.threads) - levels; to > base {
		c.threads = c.threads[:to]
	} else {
		c.threads = c.threads[:base+1]
	}
}

// advance goes on by a byte where texts are read greedily.
func (c *Compiled) advance(root *row, at thread, b byte) (next thread, ok bool) {
	for range 2 {
		if s := c.lx.step(at.lex, b); s != deadState {
			if to := &c.lx.states[s]; to.final {
				r := c.scan(root, at.row, to.ends)
				return thread{row: r, lex: r.lex}, true
			}
			return thread{row: at.row, lex: s, inside: true}, true
		}
		ends := c.lx.states[at.lex].ends
		if ends == 0 || c.spent() {
			break
		}
		r := c.scan(root, at.row, ends)
		at = thread{row: r, lex: r.lex}
	}
	return thread{}, false
}
