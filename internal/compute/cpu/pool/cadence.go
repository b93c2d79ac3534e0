package pool

import "time"

const (
	pauseBatch = 2  // PAUSE instructions between two looks at shared memory, some 20 to 45 ns each
	clockBatch = 32 // looks between two readings of the clock

	minSpin   = 4 * time.Microsecond   // always worth less than parking and being woken
	maxSpin   = 100 * time.Microsecond // longest idle time a helper ever burns
	awaitSpin = 50 * time.Microsecond  // the caller's, for the last chunks
)

// cadence decides how long an idle helper spins before it parks. While tasks follow each other
// closely it spins for a few times the usual gap; when they do not, or no longer, it spins for
// minSpin only. So periodic work once a millisecond costs 0.4 % of a core, and no work costs none.
type cadence struct {
	epoch  time.Time     // for reading the monotonic clock without wall time
	began  time.Duration // when the helper became idle
	looks  int
	budget time.Duration
	gap    time.Duration // moving average of the gaps that spinning could bridge
	misses int           // gaps in a row that it could not
}

func newCadence() cadence { return cadence{epoch: time.Now(), budget: minSpin} }

// start begins an idle period.
func (c *cadence) start() {
	c.began = time.Since(c.epoch)
	c.looks = 0
}

// spin pauses for a moment and reports false when the helper should park instead.
func (c *cadence) spin() bool {
	pause(pauseBatch)
	c.looks++
	return c.looks%clockBatch != 0 || time.Since(c.epoch)-c.began < c.budget
}

// stop ends an idle period because there is work, and learns from its length.
func (c *cadence) stop() {
	if c.looks < clockBatch && c.budget > minSpin {
		c.learn(0) // shorter than one reading of the clock
		return
	}
	c.learn(time.Since(c.epoch) - c.began)
}

func (c *cadence) learn(gap time.Duration) {
	if gap > maxSpin {
		// One long gap is the pause between two bursts, for instance between decoding steps; from
		// the second on the bursts have ended.
		c.misses++
		if c.misses > 1 {
			c.gap, c.budget = 0, minSpin
		}
		return
	}
	c.misses = 0
	c.gap += (gap - c.gap) / 8
	c.budget = min(max(4*c.gap, 4*gap, minSpin), maxSpin)
}
