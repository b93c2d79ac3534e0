package verdict

import (
	"math"

	"github.com/eagleray/eagleray/internal/link/status"
)

// Place is a rank's progress: its step, the layer in it, and whether it waits there for others.
type Place struct {
	step  uint64
	layer uint64
}

// PlaceOf returns the place of a rank with this status.
func PlaceOf(s status.Snapshot) Place {
	p := Place{step: s.Started}
	switch {
	case s.Finished == s.Started:
		p.layer = math.MaxUint64
	case s.Phase == status.Forward:
		p.layer = 2 * uint64(s.Detail)
	case s.Phase == status.Collective:
		// A rank that waits in a layer is further than one that computes in it.
		p.layer = 2*uint64(s.Detail) + 1
	case s.Phase == status.Sample || s.Phase == status.Send:
		p.layer = math.MaxUint64 - 1
	}
	return p
}

// After says that p is further than q.
func (p Place) After(q Place) bool {
	return p.step > q.step || p.step == q.step && p.layer > q.layer
}

// Seen is what one rank was doing when an event happened.
type Seen struct {
	Status status.Snapshot
	// Held says, in words, what stops its process: SIGSTOP or a debugger, or a device that does not
	// answer; "" for nothing. Such a rank cannot report it itself.
	Held string
	// Busy says that its process had a processor for most of the time in which it has not moved. It
	// is false where that is not known.
	Busy bool
}

// slowest returns the rank that blocks the others: the first whose process is stopped, and by what,
// else the first of those that are furthest behind.
func slowest(ranks []Seen) (rank int, held string) {
	if len(ranks) == 0 {
		return -1, ""
	}
	for r, s := range ranks {
		if s.Held != "" {
			return r, s.Held
		}
		if PlaceOf(ranks[rank].Status).After(PlaceOf(s.Status)) {
			rank = r
		}
	}
	return rank, ""
}
