package pool

import (
	"time"

	"github.com/eagleray/eagleray/internal/sys/spin"
)

const (
	pauses     = 2  // PAUSE instructions between two looks at shared memory, some 20 to 45 ns each
	clockBatch = 32 // looks between two readings of the clock

	awaitSpin = 50 * time.Microsecond // the caller's, for the last chunks
)

// idleLimits are those of a helper's wait for the next task. A helper has a processor of its own,
// so it always spins a little. It may spin longer than a wait between processes: parking costs the
// caller of Run a system call, and the gaps between the tasks of a decoding step, filled by the
// caller alone, reach some tens of microseconds. And it attempts it sooner again, for a step has
// only a few hundred tasks. Work that comes once a millisecond then costs 0.7 % of a core, and no
// work none.
var idleLimits = spin.Limits{
	Least: 4 * time.Microsecond,
	Most:  100 * time.Microsecond,
	Skip:  30,
}

// idle is a helper's time between two tasks.
type idle struct {
	policy spin.Policy
	epoch  time.Time     // for reading the monotonic clock without wall time
	began  time.Duration // when the wait began
	looks  int           // of this wait so far
	budget time.Duration
}

func newIdle(threads int) idle {
	return idle{policy: spin.NewPolicy(threads, idleLimits), epoch: time.Now()}
}

// spin pauses for a moment, after which the helper looks for work again, or reports false when the
// helper should park instead.
func (i *idle) spin() bool {
	if i.looks == 0 {
		if i.budget = i.policy.Budget(); i.budget == 0 {
			return false
		}
		i.began = time.Since(i.epoch)
	}
	spin.Pause(pauses)
	i.looks++
	if i.looks%clockBatch != 0 || time.Since(i.epoch)-i.began < i.budget {
		return true
	}
	i.looks = 0
	i.policy.Failed()
	return false
}

// end ends the wait, because there is work.
func (i *idle) end() {
	switch {
	case i.looks == 0: // it did not spin, or parked
	case i.looks < clockBatch: // shorter than one reading of the clock
		i.policy.Paid(0)
	default:
		i.policy.Paid(time.Since(i.epoch) - i.began)
	}
	i.looks = 0
}
