package schedule

// Invalidate puts every running request back to wait with its tokens so far, and empties the prefix
// cache: what ranks have computed is of no use any more, because their weights or their cache are
// others now. No plan is in flight. Unlike after PreemptAll the ranks know the slots, and are told
// to free them. Fetches under way are stale, and what was to be stored is not. Pinned blocks stay
// until Release, since ranks hand them out until then.
func (s *Scheduler) Invalidate() {
	for _, r := range s.running {
		s.freed = append(s.freed, r.slot)
		s.requeue(r)
	}
	clear(s.running)
	s.running = s.running[:0]
	for _, r := range s.fetched {
		s.computeHere(r)
	}
	clear(s.fetched)
	s.fetched = s.fetched[:0]
	for _, r := range s.fetching {
		r.stale = true
	}
	s.dropStores()
	s.invalidated++
	s.cache.Reset()
}
