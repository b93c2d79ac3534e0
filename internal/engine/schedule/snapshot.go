package schedule

import "github.com/eagleray/eagleray/internal/link/step"

// border is where the state is kept of a request that starts with so many tokens: after the last
// full block before the last of them; 0 for nowhere.
func (s *Scheduler) border(tokens int) int {
	c := &s.config
	if c.Snapshots == 0 || !c.PrefixCaching || !c.ChunkedPrefill {
		return 0
	}
	return (tokens - 1) / c.BlockSize * c.BlockSize
}

// toBorder cuts n tokens that are computed from one on, of a request that starts with so many, to
// those before its border.
func (s *Scheduler) toBorder(tokens, from, n int) int {
	if border := s.border(tokens); from < border {
		return min(n, border-from)
	}
	return n
}

// snapshot names a place where the state of a running request is, or will be, kept.
func (s *Scheduler) snapshot(r *Request, state int) step.Snapshot {
	return step.Snapshot{Slot: r.slot, State: uint32(s.config.MaxSeqs + state)}
}

// awaitsState tells whether a running request is about to compute what a waiting one begins with,
// up to where its state is kept: choices of one answer do so. The other goes on from there, and
// does not compute the same beside it.
func (s *Scheduler) awaitsState(r *Request) bool {
	if s.border(len(r.tokens)) == 0 || r.computesAll() {
		return false
	}
	hit := -1
	for _, o := range s.running {
		border := s.border(o.sent)
		if border == 0 || o.computed > border || border >= len(r.tokens) ||
			o.Background && !r.Background {
			continue
		}
		blocks := border / s.config.BlockSize
		if s.cache.Digest(&o.seq, o.tokens, blocks) != s.cache.Digest(&r.seq, r.tokens, blocks) {
			continue
		}
		if hit < 0 {
			hit = s.cache.Match(&r.seq, r.tokens)
		}
		if hit < border {
			return true
		}
	}
	return false
}
