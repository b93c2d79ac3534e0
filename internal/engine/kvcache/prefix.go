package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// digest names the contents of a full block together with everything before it: SHA-256 over the
// digest of the block before (or of the salt, for the first block) and the block's token ids.
// Prompts come from clients, so a hash that can be made to collide would let one user be served
// another's context (CVE-2025-25183 in vLLM); with a cryptographic hash equal digests mean equal
// tokens.
type digest [sha256.Size]byte

// of names the block of a group, of those that a part of a sequence has: a sum that differs in a
// byte is as hard to find as any other.
func (d digest) of(group int) digest {
	d[len(d)-1] ^= byte(group)
	return d
}

// saltTag keeps the digest of a salt apart from that of a block: a block's input begins with a
// digest.
const saltTag = "kvcache salt\x00"

// hasher makes digests.
type hasher struct {
	hash.Hash
	scratch []byte
}

func newHasher(size int) hasher {
	return hasher{sha256.New(), make([]byte, 0, sha256.Size+4*size)}
}

// sum hashes scratch into d.
func (h *hasher) sum(d *digest) {
	h.Reset()
	h.Write(h.scratch)
	h.Sum(d[:0])
}

// root names what is before the first block of a sequence.
func (h *hasher) root(d *digest, salt string) {
	h.scratch = append(append(h.scratch[:0], saltTag...), salt...)
	h.sum(d)
}

// next names the block that tokens fill after the one of a digest. Both digests may be one.
func (h *hasher) next(d, parent *digest, tokens []int32) {
	h.scratch = append(h.scratch[:0], parent[:]...)
	for _, t := range tokens {
		h.scratch = binary.LittleEndian.AppendUint32(h.scratch, uint32(t))
	}
	h.sum(d)
}

// Chain names the parts of a sequence one after the other, as every Manager does.
type Chain struct {
	hasher hasher
	last   digest
}

// NewChain begins with the first part of a sequence of a salt (NewSequence).
func NewChain(salt string) *Chain {
	c := &Chain{hasher: newHasher(0)}
	c.hasher.root(&c.last, salt)
	return c
}

// Next names the next part, which the tokens fill: its block of the first group.
func (c *Chain) Next(tokens []int32) [sha256.Size]byte {
	c.hasher.next(&c.last, &c.last, tokens)
	return c.last
}

// NameOf names the block of a group, of a part that has a name.
func NameOf(part [sha256.Size]byte, group int) [sha256.Size]byte { return digest(part).of(group) }

// extend computes the digests of the first n parts of s that are not known yet.
func (m *Manager) extend(s *Sequence, tokens []int32, n int) {
	if n > len(s.digests) && len(s.digests) == 0 {
		m.hasher.root(&s.root, s.salt)
	}
	for i := len(s.digests); i < n; i++ {
		parent := &s.root
		if i > 0 {
			parent = &s.digests[i-1]
		}
		s.digests = append(s.digests, digest{})
		m.hasher.next(&s.digests[i], parent, tokens[i*m.size:(i+1)*m.size])
	}
}

// Digest names the contents of the first n parts of a sequence, which the tokens fill, and its
// salt: engines whose blocks have one size agree on it.
func (m *Manager) Digest(s *Sequence, tokens []int32, n int) [sha256.Size]byte {
	m.extend(s, tokens, n)
	if n == 0 {
		return s.root
	}
	return s.digests[n-1]
}

// Digests names the blocks of a table from one entry to before another, which tokens fill.
func (m *Manager) Digests(s *Sequence, tokens []int32, from, to int) [][sha256.Size]byte {
	groups := m.Groups.Count()
	m.extend(s, tokens, (to+groups-1)/groups)
	names := make([][sha256.Size]byte, 0, to-from)
	for i := from; i < to; i++ {
		names = append(names, s.digests[i/groups].of(i%groups))
	}
	return names
}

func (m *Manager) bucket(d *digest) uint64 { return binary.LittleEndian.Uint64(d[:]) & m.mask }

// lookup finds an entry by digest. Among equal ones it prefers a block that is in use, which costs
// no free block.
func (m *Manager) lookup(d digest) int32 {
	found := int32(none)
	for i := m.buckets[m.bucket(&d)]; i != none; i = m.blocks[i].chain {
		b := &m.blocks[i]
		if b.hash != d {
			continue
		}
		if b.refs > 0 {
			return i
		}
		if found == none {
			found = i
		}
	}
	return found
}

// remember makes block i an entry.
func (m *Manager) remember(i int32, d digest) {
	b := &m.blocks[i]
	head := &m.buckets[m.bucket(&d)]
	b.hash, b.plan, b.entry, b.chain = d, m.plan, true, *head
	*head = i
	m.entries++
}

// evict removes block i from the entries.
func (m *Manager) evict(i int32) {
	b := &m.blocks[i]
	at := &m.buckets[m.bucket(&b.hash)]
	for *at != i {
		at = &m.blocks[*at].chain
	}
	*at = b.chain
	if b.snapshot != none {
		m.discard(b.snapshot)
	}
	b.entry = false
	m.entries--
}
