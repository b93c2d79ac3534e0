package schedule

import "slices"

// Hold keeps the waiting requests with the given keys from running, and lets all others that it
// has kept wait their turn again. It is for requests under suspicion that others must run without.
func (s *Scheduler) Hold(keys []uint64) {
	for _, r := range s.held {
		r.held = false
		s.wait(r)
	}
	clear(s.held)
	s.held = s.held[:0]
	for _, key := range keys {
		if r := s.requests[key]; r != nil && !r.running && !r.held &&
			r.remote != receiving && r.remote != received {
			s.unwait(r)
			r.held = true
			s.held = append(s.held, r)
		}
	}
}

// unqueue takes out a request that waits.
func (s *Scheduler) unqueue(r *Request) {
	switch {
	case r.remote == receiving:
		return // its blocks are being written: see Received
	case r.remote == received:
		s.received = slices.DeleteFunc(s.received, func(h *Request) bool { return h == r })
		return
	case r.held:
		s.held = slices.DeleteFunc(s.held, func(h *Request) bool { return h == r })
		return
	}
	s.unwait(r)
}

// Computed appends to keys those of the unfinished requests that plans in flight compute, each
// once, in the order of the oldest plan that does.
func (s *Scheduler) Computed(keys []uint64) []uint64 {
	for i := range s.owed {
		for _, e := range s.flights[(s.first+i)%len(s.flights)].entries {
			if !e.request.done && !slices.Contains(keys, e.request.Key) {
				keys = append(keys, e.request.Key)
			}
		}
	}
	return keys
}
