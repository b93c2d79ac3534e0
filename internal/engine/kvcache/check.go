package kvcache

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/link/step"
)

// Check verifies the invariants of the manager against all sequences that hold blocks and, in
// parallel, their tokens. It is slow and meant for tests: reference counts equal holders, the free
// list is exactly the unreferenced blocks, the hash table is exactly the entries, no sequence holds
// a block twice, and the entries a sequence holds are named by the digests of its own tokens, so
// that two holders of a block have equal tokens up to its end.
func (m *Manager) Check(seqs []*Sequence, tokens [][]int32) error {
	refs := make([]int32, len(m.blocks))
	for i, s := range seqs {
		if err := m.checkSequence(s, tokens[i], refs); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
	}
	unheld, entries := 0, 0
	for i := range m.blocks {
		b := &m.blocks[i]
		if b.refs != refs[i] {
			return fmt.Errorf("block %d has %d references, %d sequences hold it", i, b.refs,
				refs[i])
		}
		if b.refs == 0 {
			unheld++
		}
		if b.entry {
			entries++
		}
	}
	for i := range m.blocks {
		b := &m.blocks[i]
		if b.snapshot != none && (!b.entry || m.snapshots[b.snapshot].block != int32(i)) {
			return fmt.Errorf("block %d, an entry: %v, has snapshot %d, which is of block %d", i,
				b.entry, b.snapshot, m.snapshots[b.snapshot].block)
		}
	}
	for i := range m.snapshots {
		if at := m.snapshots[i].block; at != none && m.blocks[at].snapshot != int32(i) {
			return fmt.Errorf("snapshot %d is of block %d, which has %d", i, at,
				m.blocks[at].snapshot)
		}
	}
	if err := m.checkFree(unheld); err != nil {
		return err
	}
	return m.checkTable(entries)
}

func (m *Manager) checkSequence(s *Sequence, tokens []int32, refs []int32) error {
	fresh := Sequence{salt: s.salt}
	if len(s.digests) > len(tokens)/m.size {
		return fmt.Errorf("%d digests for %d tokens", len(s.digests), len(tokens))
	}
	m.extend(&fresh, tokens, len(s.digests))
	for i, d := range s.digests {
		if d != fresh.digests[i] {
			return fmt.Errorf("digest %d is not that of its tokens", i)
		}
	}
	groups := m.Groups.Count()
	if len(s.blocks)%groups > 0 || s.entries*groups > len(s.blocks) {
		return fmt.Errorf("%d entries in a table of %d blocks", s.entries, len(s.blocks))
	}
	if s.gone*groups > len(s.blocks) || m.Window == 0 && s.gone > 0 {
		return fmt.Errorf("%d parts of a table of %d blocks were given up", s.gone, len(s.blocks))
	}
	held := make(map[uint32]bool, len(s.blocks))
	for i, b := range s.blocks {
		part, group := i/groups, i%groups
		if group >= m.whole() && part < s.gone {
			if b != step.NoBlock {
				return fmt.Errorf("still names block %d at index %d", b, i)
			}
			continue
		}
		if int(b) >= len(m.blocks) {
			return fmt.Errorf("holds block %d of %d", b, len(m.blocks))
		}
		if held[b] {
			return fmt.Errorf("holds block %d twice", b)
		}
		held[b] = true
		refs[b]++
		e := &m.blocks[b]
		if part >= s.entries {
			if e.entry || e.refs > 1 {
				return fmt.Errorf("block %d at index %d is a cache entry, or one of %d sequences, "+
					"before it is full", b, i, e.refs)
			}
			continue
		}
		if e.entry && e.hash != s.digests[part].of(group) {
			return fmt.Errorf("block %d at index %d is an entry for other tokens", b, i)
		}
	}
	return nil
}

func (m *Manager) checkFree(unheld int) error {
	n, prev := 0, int32(none)
	for i := m.freeHead; i != none; i = m.blocks[i].next {
		if m.blocks[i].prev != prev {
			return fmt.Errorf("free list: block %d points back to %d, not %d", i, m.blocks[i].prev,
				prev)
		}
		if m.blocks[i].refs != 0 {
			return fmt.Errorf("free list: block %d has %d references", i, m.blocks[i].refs)
		}
		prev = i
		if n++; n > len(m.blocks) {
			return fmt.Errorf("free list has a cycle")
		}
	}
	if prev != m.freeTail {
		return fmt.Errorf("free list ends at %d, not at its tail %d", prev, m.freeTail)
	}
	if n != m.free || n != unheld {
		return fmt.Errorf("free list has %d blocks, counter says %d, %d are unreferenced",
			n, m.free, unheld)
	}
	return nil
}

func (m *Manager) checkTable(entries int) error {
	n := 0
	for at, head := range m.buckets {
		for i := head; i != none; i = m.blocks[i].chain {
			b := &m.blocks[i]
			if !b.entry {
				return fmt.Errorf("bucket %d: block %d is no entry", at, i)
			}
			if m.bucket(&b.hash) != uint64(at) {
				return fmt.Errorf("bucket %d: block %d belongs elsewhere", at, i)
			}
			if n++; n > len(m.blocks) {
				return fmt.Errorf("bucket %d has a cycle", at)
			}
		}
	}
	if n != entries || n != m.entries {
		return fmt.Errorf("hash table has %d entries, counter says %d, %d blocks are entries",
			n, m.entries, entries)
	}
	return nil
}
