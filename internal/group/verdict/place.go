package verdict

import (
	"math"

	"github.com/eagleray/eagleray/internal/link/status"
)

// Place is a rank's progress: its step and, within it, how far it has come.
type Place struct {
	step uint64
	// at is the layer, in how many exchanges of it the rank has taken part, and whether it waits in
	// the next one, from the highest bits down.
	at uint64
}

// PlaceOf returns the place of a rank with this status.
func PlaceOf(s status.Snapshot) Place {
	p := Place{step: s.Started}
	switch {
	case s.Finished == s.Started:
		p.at = math.MaxUint64
	case s.Phase == status.Forward, s.Phase == status.Collective:
		w := s.Within()
		if w.Awaits == status.Tokens {
			break // before the first layer
		}
		p.at = uint64(w.Layer+1)<<9 | uint64(w.Done)<<1
		if s.Phase == status.Collective {
			p.at++ // it is further than one that computes what it will bring
		}
	case s.Phase == status.Sample || s.Phase == status.Send:
		p.at = math.MaxUint64 - 1
	}
	return p
}

// After says that p is further than q.
func (p Place) After(q Place) bool {
	return p.step > q.step || p.step == q.step && p.at > q.at
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
