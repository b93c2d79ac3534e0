package kvcache

// snapshot is a place for the state of a sequence after a block that is an entry, with which it
// goes.
type snapshot struct {
	block int32  // none when it is free
	plan  uint64 // that keeps the state
	used  uint64 // the last plan that kept it, or went on from it
}

// Snapshot reserves a place for the state of a sequence after its first n positions, which end a
// block that is an entry: the plan at hand keeps it there once it has computed them, and later
// plans find it. The one that was used the longest ago makes room. It returns -1 where such a state
// is kept already, or none can be.
func (m *Manager) Snapshot(s *Sequence, n int) int {
	if len(m.snapshots) == 0 || n < m.size || s.entries < n/m.size {
		return none
	}
	if i := m.lookupState(&s.digests[n/m.size-1]); i != none {
		m.snapshots[i].used = m.plan
		return none
	}
	oldest := int32(0)
	for i := range m.snapshots {
		x := &m.snapshots[i]
		if x.block == none {
			oldest = int32(i)
			break
		}
		if x.used < m.snapshots[oldest].used {
			oldest = int32(i)
		}
	}
	if m.snapshots[oldest].block != none {
		m.discard(oldest)
	}
	block := int32(s.blocks[n/m.size-1])
	m.blocks[block].snapshot = oldest
	m.snapshots[oldest] = snapshot{block: block, plan: m.plan, used: m.plan}
	return int(oldest)
}

// State returns where the state is that a sequence goes on from which starts with hit tokens, a
// result of Match with nothing in between; -1 for a hit of 0, and without Snapshots.
func (m *Manager) State(s *Sequence, hit int) int {
	if len(m.snapshots) == 0 || hit == 0 {
		return none
	}
	i := m.lookupState(&s.digests[hit/m.size-1])
	m.snapshots[i].used = m.plan
	return int(i)
}

// matchState is Match over n blocks where sequences go on from a state: the longest prefix of
// entries with one that an earlier plan has kept.
func (m *Manager) matchState(s *Sequence, tokens []int32, n int) (hit int) {
	for i := range n {
		m.extend(s, tokens, i+1)
		if m.lookup(s.digests[i]) == none {
			break
		}
		if at := m.lookupState(&s.digests[i]); at != none && m.snapshots[at].plan < m.plan {
			hit = (i + 1) * m.size
		}
	}
	return hit
}

// lookupState finds the state after a block by the digest of that.
func (m *Manager) lookupState(d *digest) int32 {
	for i := m.buckets[m.bucket(d)]; i != none; i = m.blocks[i].chain {
		if b := &m.blocks[i]; b.hash == *d && b.snapshot != none {
			return b.snapshot
		}
	}
	return none
}

// discard frees a place for a state.
func (m *Manager) discard(i int32) {
	m.blocks[m.snapshots[i].block].snapshot = none
	m.snapshots[i] = snapshot{block: none}
}
