package shm

import (
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/collective"
	"github.com/eagleray/eagleray/internal/futex"
	"github.com/eagleray/eagleray/internal/spin"
)

// pauses between two looks at the counter: a fraction of a microsecond.
const pauses = 8

func reached(word, target uint32) bool { return int32(word-target) >= 0 }

// await returns when the peer's counter has reached the target.
func (g *Group) await(peer int, target uint32) error {
	if reached(g.peers[peer].word.Load(), target) {
		return nil
	}
	return g.awaitSlow(peer, target)
}

func (g *Group) awaitSlow(peer int, target uint32) error {
	c := g.peers[peer]
	start := time.Now()
	if budget := g.policy.Budget(); budget > 0 {
		for time.Since(start) < budget {
			spin.Pause(pauses)
			if w := c.word.Load(); reached(w, target) {
				g.policy.Paid(time.Since(start))
				return nil
			} else if w&(flagAborted|flagLeft) != 0 {
				break
			}
		}
		g.policy.Failed()
	}
	c.sleepers.Add(1)
	defer c.sleepers.Add(^uint32(0))
	for {
		w := c.word.Load()
		if reached(w, target) {
			return nil
		}
		if w&flagAborted != 0 {
			return g.abortCause()
		}
		if w&flagLeft != 0 {
			return &collective.WaitError{Missing: []int{peer}, Err: collective.ErrLeft}
		}
		left := g.timeout - time.Since(start)
		if left <= 0 {
			err := fmt.Errorf("%w after %v", collective.ErrTimeout, g.timeout)
			return &collective.WaitError{Missing: g.behind(target), Err: err}
		}
		if err := futex.Wait(&c.word, w, left, &g.timespec); err != nil {
			return fmt.Errorf("futex wait: %w", err)
		}
	}
}

// behind lists the ranks whose counters have not reached the target.
func (g *Group) behind(target uint32) []int {
	var missing []int
	for p, c := range g.peers {
		if p != g.rank && !reached(c.word.Load(), target) {
			missing = append(missing, p)
		}
	}
	return missing
}

// abortCause says why the group was aborted: the error given here, or the text another rank left.
func (g *Group) abortCause() error {
	if cause := g.cause.Load(); cause != nil {
		return fmt.Errorf("%w: %w", collective.ErrAborted, *cause)
	}
	if rank, text, ok := g.seg.aborted(); ok {
		return fmt.Errorf("%w by rank %d: %w", collective.ErrAborted, rank, errors.New(text))
	}
	return collective.ErrAborted
}
