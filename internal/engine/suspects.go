package engine

import "slices"

// suspects finds the request that makes groups of ranks fail, by trying ever fewer of those that
// were computed when the last ones did: a step that fails twice is bisected. It is a pure state
// machine: failures and progress in, requests to hold back and to condemn out.
//
// After the first failure all requests go on. When the next group fails too before they have got
// any further, those that both groups computed are the suspects, and only half of them go on. Who
// gets a token further is cleared. A suspect that fails alone is condemned.
type suspects struct {
	// last are the requests computed when the last group failed that have not got further since;
	// held are those of them that wait until the others are cleared.
	last, held []uint64
	// alone counts the failures while there was one suspect, and nothing else could have caused
	// them.
	alone int
}

// aloneKilled is how often a request must fail alone before it is condemned when a process was
// killed from outside, which may not be its doing; an error that a rank reported counts at once.
const aloneKilled = 3

// failed takes note that a group failed while it computed the requests, in the order in which they
// run. It returns the one that is condemned, if any.
func (s *suspects) failed(computed []uint64, killed bool) (condemned uint64, found bool) {
	both := intersect(s.last, computed)
	if len(both) == 0 {
		s.last, s.held, s.alone = slices.Clone(computed), nil, 0
		return 0, false
	}
	s.last, s.held = both, nil
	if len(both) > 1 {
		s.held = slices.Clone(both[len(both)/2:])
		return 0, false
	}
	s.alone++
	if killed && s.alone < aloneKilled {
		return 0, false
	}
	condemned = both[0]
	s.remove(condemned)
	return condemned, true
}

// further takes note that a request got a token, or ended. It returns true when those that are held
// have changed.
func (s *suspects) further(key uint64) bool {
	if !slices.Contains(s.last, key) {
		return false
	}
	s.remove(key)
	if len(s.held) == 0 || len(s.last) > len(s.held) {
		return false
	}
	// The half that was tried is cleared: the other one is tried in halves.
	s.held = s.held[(len(s.held)+1)/2:]
	return true
}

func (s *suspects) remove(key uint64) {
	is := func(k uint64) bool { return k == key }
	s.last, s.held = slices.DeleteFunc(s.last, is), slices.DeleteFunc(s.held, is)
	if len(s.last) == 0 {
		s.alone = 0
	}
}

// intersect returns the elements of a that are in b, in the order of a.
func intersect(a, b []uint64) []uint64 {
	var both []uint64
	for _, x := range a {
		if slices.Contains(b, x) {
			both = append(both, x)
		}
	}
	return both
}
