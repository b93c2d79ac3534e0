package kvcache

import (
	"crypto/sha256"
	"encoding/binary"
)

// digest names the contents of a full block together with everything before it: SHA-256 over the
// digest of the block before (or of the salt, for the first block) and the block's token ids.
// Prompts come from clients, so a hash that can be made to collide would let one user be served
// another's context (CVE-2025-25183 in vLLM); with a cryptographic hash equal digests mean equal
// tokens.
type digest [sha256.Size]byte

// saltTag keeps the digest of a salt apart from that of a block: a block's input begins with a
// digest.
const saltTag = "kvcache salt\x00"

func (m *Manager) initHash() {
	m.hasher = sha256.New()
	m.scratch = make([]byte, 0, sha256.Size+4*m.size)
}

// sum hashes scratch into d.
func (m *Manager) sum(d *digest) {
	m.hasher.Reset()
	m.hasher.Write(m.scratch)
	m.hasher.Sum(d[:0])
}

// extend computes the digests of the first n blocks of s that are not known yet.
func (m *Manager) extend(s *Sequence, tokens []int32, n int) {
	if n > len(s.digests) && len(s.digests) == 0 {
		m.scratch = append(append(m.scratch[:0], saltTag...), s.salt...)
		m.sum(&s.root)
	}
	for i := len(s.digests); i < n; i++ {
		parent := &s.root
		if i > 0 {
			parent = &s.digests[i-1]
		}
		m.scratch = append(m.scratch[:0], parent[:]...)
		for _, t := range tokens[i*m.size : (i+1)*m.size] {
			m.scratch = binary.LittleEndian.AppendUint32(m.scratch, uint32(t))
		}
		s.digests = append(s.digests, digest{})
		m.sum(&s.digests[i])
	}
}

// Digest names the contents of the first n blocks of a sequence, which the tokens fill, and its
// salt: engines whose blocks have one size agree on it.
func (m *Manager) Digest(s *Sequence, tokens []int32, n int) [sha256.Size]byte {
	m.extend(s, tokens, n)
	if n == 0 {
		return s.root
	}
	return s.digests[n-1]
}

func (m *Manager) bucket(d *digest) uint64 { return binary.LittleEndian.Uint64(d[:]) & m.mask }

// lookup finds an entry by digest. Among equal ones it prefers a block that is in use, which costs
// no free block.
func (m *Manager) lookup(d *digest) int32 {
	found := int32(none)
	for i := m.buckets[m.bucket(d)]; i != none; i = m.blocks[i].chain {
		b := &m.blocks[i]
		if b.hash != *d {
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
func (m *Manager) remember(i int32, d *digest) {
	b := &m.blocks[i]
	head := &m.buckets[m.bucket(d)]
	b.hash, b.plan, b.entry, b.chain = *d, m.plan, true, *head
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
