package engine

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/link/status"
)

// health is what stands in the way of a request at the moment: a recovery under way, or a rank that
// is stalled.
type health struct {
	// computing says that plans are in flight, flagged that there is something in the fields below:
	// the step loop pays for no more than two loads.
	computing, flagged atomic.Bool

	mu         sync.Mutex
	recovering error
	// phase is what the recovery is at, "" where that is not known.
	phase string
	// stalled are the ranks that do not move, in the order in which that was said.
	stalled []status.RankStalled
}

// listen takes note of stalls, and of what a recovery is at.
func (h *health) listen(e status.Event) {
	switch e := e.(type) {
	case status.RankStalled:
		h.set(func() { h.stalled = append(h.without(e.Rank), e) })
	case status.RankMoves:
		h.set(func() { h.stalled = h.without(e.Rank) })
	case status.Progress:
		if e.Rank < 0 && h.flagged.Load() {
			h.set(func() { h.phase = e.Phase })
		}
	}
}

// without is the list of stalled ranks without one of them.
func (h *health) without(rank int) []status.RankStalled {
	return slices.DeleteFunc(h.stalled, func(s status.RankStalled) bool { return s.Rank == rank })
}

// busy takes note that plans are in flight.
func (h *health) busy() {
	if !h.computing.Load() {
		h.computing.Store(true)
	}
}

// answered takes note that the ranks have answered a plan, or have none to answer, and whether
// others are in flight.
func (h *health) answered(computing bool) {
	if h.computing.Load() != computing {
		h.computing.Store(computing)
	}
	if h.flagged.Load() {
		h.set(func() { h.recovering, h.stalled = nil, nil })
	}
}

// recover takes note that a group is being replaced, for a cause. It counts until the new group has
// answered a plan: before that the requests that were held are computed again.
func (h *health) recover(cause error) {
	h.computing.Store(false)
	h.set(func() { h.recovering, h.phase, h.stalled = cause, "", nil })
}

func (h *health) set(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
	h.flagged.Store(h.recovering != nil || len(h.stalled) > 0)
}

// err is why a request would wait, nil if it would not.
func (h *health) err() error {
	if !h.flagged.Load() {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.recovering != nil && h.phase != "":
		return fmt.Errorf("%w (%s): %w", ErrRecovering, h.phase, h.recovering)
	case h.recovering != nil:
		return fmt.Errorf("%w: %w", ErrRecovering, h.recovering)
	case len(h.stalled) > 0 && h.computing.Load():
		s := h.stalled[0]
		return fmt.Errorf("%w: rank %d on %s (pid %d), %s", ErrStalled, s.Rank, s.Node, s.PID,
			s.Phase)
	}
	return nil
}
