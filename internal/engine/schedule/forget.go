package schedule

import (
	"maps"
	"slices"
)

// Forget puts every running request back to wait with its tokens so far, and empties the prefix
// cache: what ranks have computed is of no use any more, because their weights or their cache are
// others now. No plan is in flight. Unlike after PreemptAll the ranks know the slots, and are told
// to free them. What is kept for others is let go, what comes from them is of no use either.
func (s *Scheduler) Forget() {
	for _, r := range s.running {
		s.freed = append(s.freed, r.slot)
		s.requeue(r)
	}
	clear(s.running)
	s.running = s.running[:0]
	for _, r := range s.received {
		s.settle(r)
	}
	clear(s.received)
	s.received = s.received[:0]
	for _, r := range s.receiving {
		r.lapsed = true
	}
	for _, key := range slices.Sorted(maps.Keys(s.kept)) {
		s.Release(key)
	}
	s.cache.Reset()
}
