package shm

import (
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/link/collective"
	"github.com/eagleray/eagleray/internal/sys/futex"
	"github.com/eagleray/eagleray/internal/sys/spin"
)

// pauses between two looks at the counter: a fraction of a microsecond.
const pauses = 8

func reached(word, target uint32) bool { return int32(word-target) >= 0 }

// await returns when a rank's mark has reached the target.
func (g *Group) await(m *mark, rank int, target uint32, policy *spin.Policy) error {
	if reached(m.word.Load(), target) {
		return nil
	}
	return g.awaitSlow(m, rank, target, policy)
}

func (g *Group) awaitSlow(m *mark, rank int, target uint32, policy *spin.Policy) error {
	start := time.Now()
	if budget := policy.Budget(); budget > 0 {
		for time.Since(start) < budget {
			spin.Pause(pauses)
			if w := m.word.Load(); reached(w, target) {
				policy.Paid(time.Since(start))
				return nil
			} else if w&(flagAborted|flagLeft) != 0 {
				break
			}
		}
		policy.Failed()
	}
	m.sleepers.Add(1)
	defer m.sleepers.Add(^uint32(0))
	for called := g.onWait == nil; ; {
		w := m.word.Load()
		if reached(w, target) {
			return nil
		}
		if w&flagAborted != 0 {
			return g.abortCause()
		}
		if w&flagLeft != 0 {
			return &collective.WaitError{Missing: []int{rank}, Err: collective.ErrLeft}
		}
		left := g.timeout - time.Since(start)
		if left <= 0 {
			err := fmt.Errorf("%w after %v", collective.ErrTimeout, g.timeout)
			late := &collective.WaitError{Missing: []int{rank}, Err: err}
			if m == g.peers[rank] {
				late.Missing = g.behind(target)
			}
			return late
		}
		if !called {
			if called = time.Since(start) >= patience; called {
				g.onWait()
			}
			left = min(left, patience)
		}
		if err := futex.Wait(&m.word, w, left, &g.timespec); err != nil {
			return fmt.Errorf("futex wait: %w", err)
		}
	}
}

// behind lists the ranks whose own marks have not reached the target.
func (g *Group) behind(target uint32) []int {
	var missing []int
	for p, m := range g.peers {
		if p != g.rank && !reached(m.word.Load(), target) {
			missing = append(missing, p)
		}
	}
	return missing
}

// abortCause says why the group was aborted: the error given here, or the text another rank left.
func (g *Group) abortCause() error {
	if cause := g.cause.Load(); cause != nil {
		if errors.Is(*cause, collective.ErrAborted) {
			return *cause
		}
		return fmt.Errorf("%w: %w", collective.ErrAborted, *cause)
	}
	if rank, text, ok := g.seg.aborted(); ok {
		return fmt.Errorf("%w by rank %d: %w", collective.ErrAborted, g.names.Of(rank),
			errors.New(text))
	}
	return collective.ErrAborted
}
