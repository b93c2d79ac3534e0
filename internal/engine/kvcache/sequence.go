package kvcache

import (
	"slices"

	"github.com/eagleray/eagleray/internal/link/step"
)

// Sequence is the cache state of one request: its block table and the digests of its full parts.
// The digests outlive Release, because the tokens of a preempted request do not change.
type Sequence struct {
	salt    string
	noRead  bool
	counted bool
	blocks  []uint32
	root    digest
	digests []digest
	// entries is how many leading parts have blocks that were made, or were found as, cache
	// entries; or were given up.
	entries int
	// gone is of how many leading parts blocks of windows were given up, or never had: NoBlock in
	// the table.
	gone int
}

// NewSequence returns a sequence without blocks. Only sequences of equal salt share blocks. With
// noRead the sequence finds nothing in the prefix cache but still adds to it.
func NewSequence(salt string, noRead bool) Sequence { return Sequence{salt: salt, noRead: noRead} }

// Blocks returns the block table, part by part a block of each group, with step.NoBlock where the
// sequence has none any more. It belongs to the sequence and changes with Start, Grow, Slide and
// Release.
func (s *Sequence) Blocks() []uint32 { return s.blocks }

// Disown makes the sequence one without blocks: what it held belongs to a copy of it.
func (s *Sequence) Disown() { s.blocks, s.digests, s.entries, s.gone = nil, nil, 0, 0 }

// Entries is how many leading parts are cache entries, or were given up after they were.
func (s *Sequence) Entries() int { return s.entries }

// Pin returns another sequence with the first n parts of one, all of them entries: their blocks
// keep their contents until it is released, whatever becomes of the first.
func (m *Manager) Pin(s *Sequence, n int) Sequence {
	h := Sequence{salt: s.salt, noRead: s.noRead, root: s.root, entries: n, gone: min(s.gone, n),
		blocks:  slices.Clone(s.blocks[:n*m.Groups.Count()]),
		digests: slices.Clone(s.digests[:n])}
	for _, b := range h.blocks {
		if b != step.NoBlock {
			m.share(int32(b))
		}
	}
	return h
}

// Reserve makes room for a table of n entries, so that growing up to it does not allocate.
func (m *Manager) Reserve(s *Sequence, n int) {
	s.blocks = slices.Grow(s.blocks, max(0, n-len(s.blocks)))
	if m.PrefixCaching {
		s.digests = slices.Grow(s.digests, max(0, n/m.Groups.Count()-len(s.digests)))
	}
}

// Match returns how many leading tokens of a sequence that holds no blocks are in the prefix cache,
// as far as those after them read them: a multiple of the block size, and fewer than len(tokens),
// because the last token must be computed for its logits. It changes nothing but the memory of
// digests.
func (m *Manager) Match(s *Sequence, tokens []int32) int {
	if !m.PrefixCaching || s.noRead {
		return 0
	}
	n := (len(tokens) - 1) / m.size
	if m.Snapshots > 0 {
		return m.matchState(s, tokens, n)
	}
	if m.whole() == 0 {
		m.extend(s, tokens, n)
	}
	return m.Prefix(n, func(i, group int) bool {
		m.extend(s, tokens, i+1)
		return m.lookup(s.digests[i].of(group)) != none
	}) * m.size
}

// Prefix returns how many of the first n parts of a sequence are a prefix that others go on from:
// all blocks that the position after it reads are there, as has tells of each by its group. Of
// windows the longest is looked for from its end.
func (c *Config) Prefix(n int, has func(i, group int) bool) int {
	whole, groups := c.whole(), c.Groups.Count()
	all := func(i, from, to int) bool {
		for from < to && has(i, from) {
			from++
		}
		return from == to
	}
	if whole > 0 {
		i := 0
		for i < n && all(i, 0, whole) {
			i++
		}
		n = i
	}
	if whole == groups {
		return n
	}
	for n > 0 {
		first, i := c.First(n*c.BlockSize), n-1
		for i >= first && all(i, whole, groups) {
			i--
		}
		if i < first {
			return n
		}
		n = i
	}
	return 0
}

// Missing is the first entry of the table of a sequence whose block comes from elsewhere, where its
// first hit tokens are found, and positions from next on read the others.
func (c *Config) Missing(hit, next int) int {
	n := hit / c.BlockSize
	if c.whole() == 0 {
		n = max(n, c.First(next))
	}
	return n * c.Groups.Count()
}

// Trim makes the blocks of a table NoBlock that no position from pos on reads, and tells whether
// all others are there.
func (c *Config) Trim(blocks []uint32, pos int) bool {
	whole, groups, first := c.whole(), c.Groups.Count(), c.First(pos)
	for i, b := range blocks {
		if i%groups >= whole && i/groups < first {
			blocks[i] = step.NoBlock
		} else if b == step.NoBlock {
			return false
		}
	}
	return true
}

// Start gives a sequence that holds no blocks those of its first hit tokens (a result of Match with
// nothing in between) that positions from next on read: next is hit, or more where what is between
// comes from elsewhere. It refuses, and changes nothing, when the other blocks that all of tokens
// need at a time would not be free now: a prompt that is let in half would soon push out others or
// itself.
func (m *Manager) Start(s *Sequence, tokens []int32, hit, next int) bool {
	n, first := hit/m.size, m.First(next)
	parts, whole, groups := m.parts(len(tokens)), m.whole(), m.Groups.Count()
	need := whole*(parts-n) +
		(groups-whole)*min(parts-max(n, first), m.span()-max(0, n-first))
	for i := range n {
		for g := range groups {
			if g < whole || i >= first {
				if m.blocks[m.lookup(s.digests[i].of(g))].refs == 0 {
					need++
				}
			}
		}
	}
	if need > m.free {
		return false
	}
	for i := range max(n, first) {
		for g := range groups {
			b := uint32(step.NoBlock)
			switch {
			case g >= whole && i < first:
			case i < n:
				shared := m.lookup(s.digests[i].of(g))
				m.share(shared)
				b = uint32(shared)
			default:
				b = m.allocate()
			}
			s.blocks = append(s.blocks, b)
		}
	}
	s.entries, s.gone = n, first
	if m.PrefixCaching && !s.noRead && !s.counted {
		s.counted = true
		m.queries += uint64(len(tokens))
		m.hits += uint64(hit)
	}
	return true
}

// Grow extends the block table to n positions, and makes the blocks that known tokens fill cache
// entries at once (see Cache): the caller computes the positions in the step it is planning, ranks
// execute plans in order, and write all keys and values of a step before they read any, so even
// another sequence of the same step may share the blocks. Positions beyond tokens are of tokens
// that are not known yet. Grow refuses, and changes nothing, when there are not enough free blocks.
func (m *Manager) Grow(s *Sequence, tokens []int32, n int) bool {
	if !m.Allocate(s, n) {
		return false
	}
	m.Cache(s, tokens, min(n, len(tokens)))
	return true
}

// Allocate extends the block table to n positions with reserved blocks: no other sequence
// has them, or finds them. It refuses, and changes nothing, when there are not enough free blocks.
func (m *Manager) Allocate(s *Sequence, n int) bool {
	need := m.BlocksFor(n) - len(s.blocks)
	if need > m.free {
		return false
	}
	for range need {
		s.blocks = append(s.blocks, m.allocate())
	}
	return true
}

// Shrink gives back the blocks behind the first n positions, none of which are entries: what they
// were reserved for does not come.
func (m *Manager) Shrink(s *Sequence, n int) {
	for len(s.blocks) > m.BlocksFor(n) {
		last := len(s.blocks) - 1
		m.drop(s.blocks[last])
		s.blocks = s.blocks[:last]
	}
}

// Slide gives up the blocks of windows that no position from pos on reads, and tells whether there
// were any. No plan from the next one on computes an earlier position; what plans so far read is
// unharmed, because ranks execute plans in order.
func (m *Manager) Slide(s *Sequence, pos int) bool {
	first := m.First(pos)
	if first <= s.gone {
		return false
	}
	groups := m.Groups.Count()
	for i := s.gone; i < first; i++ {
		for g := m.whole(); g < groups; g++ {
			m.drop(s.blocks[i*groups+g])
			s.blocks[i*groups+g] = step.NoBlock
		}
	}
	s.gone = first
	return true
}

// Cache makes the blocks that the first n positions fill cache entries: they are computed. Their
// tokens are known, and plans made so far compute them, or they have come from elsewhere.
func (m *Manager) Cache(s *Sequence, tokens []int32, n int) {
	full := n / m.size
	if !m.PrefixCaching || full <= s.entries {
		return
	}
	m.extend(s, tokens, full)
	groups := m.Groups.Count()
	for i := s.entries; i < full; i++ {
		for g := range groups {
			if b := s.blocks[i*groups+g]; b != step.NoBlock {
				m.remember(int32(b), s.digests[i].of(g))
			}
		}
	}
	s.entries = full
}

// Release gives all blocks back, the last first, so that of a cached prefix the end is evicted
// before the beginning, without which it would be of no use.
func (m *Manager) Release(s *Sequence) {
	for i := len(s.blocks) - 1; i >= 0; i-- {
		m.drop(s.blocks[i])
	}
	s.blocks = s.blocks[:0]
	s.entries, s.gone = 0, 0
}
