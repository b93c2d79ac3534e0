package shm

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/eagleray/eagleray/internal/collective"
	"github.com/eagleray/eagleray/internal/queue/futex"
)

const (
	// maxSpin bounds busy waiting, to about what a sleep and a wake-up cost.
	maxSpin = 40 * time.Microsecond
	minSpin = 2 * time.Microsecond
	// Spinning pays while at least one wait in eight is short. The share is kept in units of 1/1024: a short
	// wait takes it a quarter of the way up, a long one an eighth of the way down.
	fullShare = 1024
	paysFrom  = fullShare / 8
	// probeEvery is how often a wait spins although it would not pay, to notice when the ranks have become
	// quick again: the time a sleeper takes to wake up hides it.
	probeEvery = 64
	// pauses between two looks at the counter: a fraction of a microsecond.
	pauses = 8
)

// cadence decides how long to spin from how waits have ended lately. It goes by the share of short waits and
// their length, not by the mean of all: now and then a peer is held up for a long time, by its own work or by
// the kernel, and that says nothing of the next wait.
type cadence struct {
	// never is set when there are more ranks than processors: who spins then keeps off whom it waits for.
	never bool
	share int           // of waits shorter than maxSpin
	short time.Duration // their average
	waits uint32
}

func newCadence(ranks int) cadence {
	return cadence{never: runtime.NumCPU() < ranks, share: fullShare / 2, short: minSpin}
}

func (c *cadence) budget() time.Duration {
	c.waits++
	switch {
	case c.never:
		return 0
	case c.share >= paysFrom:
		return min(max(4*c.short, minSpin), maxSpin)
	case c.waits%probeEvery == 0:
		return maxSpin
	default:
		return 0
	}
}

func (c *cadence) observe(waited time.Duration) {
	if waited > maxSpin {
		c.share -= c.share / 8
		return
	}
	c.share += (fullShare - c.share) / 4
	c.short += (waited - c.short) / 8
}

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
	if budget := g.cadence.budget(); budget > 0 {
		for time.Since(start) < budget {
			futex.Pause(pauses)
			if w := c.word.Load(); reached(w, target) {
				g.cadence.observe(time.Since(start))
				return nil
			} else if w&(flagAborted|flagLeft) != 0 {
				break
			}
		}
	}
	c.sleepers.Add(1)
	defer c.sleepers.Add(^uint32(0))
	for {
		w := c.word.Load()
		if reached(w, target) {
			g.cadence.observe(time.Since(start))
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
			return &collective.WaitError{Missing: g.behind(target), Err: fmt.Errorf("%w after %v", collective.ErrTimeout, g.timeout)}
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
