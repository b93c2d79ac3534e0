package ring

import (
	"runtime"
	"time"
)

const (
	// maxSpin bounds busy waiting, to about what a sleep and a wake-up cost.
	maxSpin = 40 * time.Microsecond
	minSpin = 2 * time.Microsecond
	// maxSkip is how many waits go by before spinning is tried again when it has not paid for long. It is even,
	// as are all values before it, so that of alternating short and long waits the short ones are found.
	maxSkip = 254
	// pauses between two looks: a fraction of a microsecond.
	pauses = 8
)

// cadence decides how long to spin before sleeping, from whether spinning has paid lately: while waits end
// within it, it goes on, for a few times their length; when they do not, it is tried more and more rarely. How
// long a wait is that sleeps says nothing: two processes on one processor are quick for each other as long
// as neither spins.
type cadence struct {
	// never is set when there are more parties than processors: who spins then keeps off whom it waits for.
	never bool
	short time.Duration // average of the waits that spinning bridged
	skip  int           // waits between two attempts after the next failure
	left  int           // waits until the next attempt
}

// newCadence is for waits among a number of processes that may all run at once.
func newCadence(parties int) cadence {
	return cadence{never: runtime.NumCPU() < parties, short: maxSpin / 4}
}

// budget returns how long to spin in the wait that begins, 0 for not at all.
func (c *cadence) budget() time.Duration {
	if c.never {
		return 0
	}
	if c.left > 0 {
		c.left--
		return 0
	}
	return min(max(4*c.short, minSpin), maxSpin)
}

// paid learns from a wait that ended while it was spinning.
func (c *cadence) paid(waited time.Duration) {
	c.skip = 0
	c.short += (min(waited, maxSpin) - c.short) / 8
}

// failed learns from a wait that did not.
func (c *cadence) failed() {
	c.left = c.skip
	c.skip = min(2*c.skip+2, maxSkip)
	// The next attempt is to notice waits that have become longer, too.
	c.short = max(c.short, maxSpin/4)
}
