package schedule

import "slices"

// Suspend keeps the waiting requests with the given keys from running, and lets all others that it
// suspended before wait their turn again. It is for requests that may be what makes groups fail.
func (s *Scheduler) Suspend(keys []uint64) {
	for _, r := range s.suspended {
		r.suspended = false
		s.wait(r)
	}
	clear(s.suspended)
	s.suspended = s.suspended[:0]
	for _, key := range keys {
		if r := s.requests[key]; r != nil && !r.running && !r.suspended &&
			r.remote != fetching && r.remote != fetched {
			s.unwait(r)
			r.suspended = true
			s.suspended = append(s.suspended, r)
		}
	}
}

// unqueue takes out a request that waits.
func (s *Scheduler) unqueue(r *Request) {
	switch {
	case r.remote == fetching:
		return // its blocks are being written: see Fetched
	case r.remote == fetched:
		s.fetched = slices.DeleteFunc(s.fetched, func(h *Request) bool { return h == r })
		return
	case r.suspended:
		s.suspended = slices.DeleteFunc(s.suspended, func(h *Request) bool { return h == r })
		return
	}
	s.unwait(r)
}

// Computed appends to keys those of the unfinished requests that plans in flight compute, each
// once, in the order of the oldest plan that does; and then of those that fetch, or have fetched,
// keys and values, which ranks are busy with too.
func (s *Scheduler) Computed(keys []uint64) []uint64 {
	for i := range s.owed {
		for _, e := range s.flights[(s.first+i)%len(s.flights)].entries {
			if !e.request.done && !slices.Contains(keys, e.request.Key) {
				keys = append(keys, e.request.Key)
			}
		}
	}
	for _, r := range slices.Concat(s.fetching, s.fetched) {
		if !r.done && !slices.Contains(keys, r.Key) {
			keys = append(keys, r.Key)
		}
	}
	return keys
}
