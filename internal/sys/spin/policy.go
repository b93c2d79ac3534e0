// Package spin is busy waiting: the policy that decides how long a wait looks for its end before it
// sleeps in the kernel, and the processor's hint for the time between two looks.
package spin

import (
	"runtime"
	"time"
)

// shortest is the least time that an attempt spins.
const shortest = 2 * time.Microsecond

// Limits are what the users of the policy differ in.
type Limits struct {
	// Least is what every wait spins, also between two attempts. It is worth less than a sleep and
	// a wake-up, so a waiter with a processor of its own has one. Between processes it is 0: there
	// two may be held to one processor, where spinning only delays.
	Least time.Duration
	// Most bounds what one wait spins: about what a sleep and a wake-up cost both sides together.
	Most time.Duration
	// Skip is the greatest number of waits between two attempts while they fail: how soon it is
	// noticed that waits have become short, against what the attempts cost while they are long. It
	// is even, and so is every number on the way to it: of alternating short and long waits the
	// short ones are found.
	Skip int
}

// Shared are the limits of a wait for another process in shared memory: while waits are long, an
// attempt of 40 µs every 255 waits.
var Shared = Limits{Most: 40 * time.Microsecond, Skip: 254}

// Policy decides how long each wait of one waiter spins before it sleeps, from whether spinning has
// paid lately. While waits end within it, it goes on, for four times their usual length; when they
// do not, it is attempted more and more rarely.
//
// It learns nothing from the length of a wait that slept. That includes the time to wake up; and
// two processes on one processor are quick for each other only as long as neither spins.
//
// A Policy belongs to one goroutine. It reads no clock: the waiter does, and says by one call of
// Paid or Failed for every positive Budget what came of it.
type Policy struct {
	limits  Limits
	never   bool
	attempt bool          // the wait under way spins for more than Least
	short   time.Duration // average of the waits that ended while they spun
	skip    int           // waits between two attempts after the next failure
	left    int           // waits until the next attempt
}

// NewPolicy returns the policy of one waiter among parties that may all run at once. It never spins
// if they are more than the processors: a waiter that spins would keep the party it waits for from
// running.
func NewPolicy(parties int, l Limits) Policy {
	return Policy{limits: l, never: runtime.NumCPU() < parties, short: l.Most / 4}
}

// Budget returns how long to spin in the wait that begins, 0 for not at all.
func (p *Policy) Budget() time.Duration {
	if p.never {
		return 0
	}
	if p.attempt = p.left == 0; !p.attempt {
		p.left--
		return p.limits.Least
	}
	return min(max(4*p.short, shortest, p.limits.Least), p.limits.Most)
}

// Paid learns from a wait that ended while it spun, after the given time.
func (p *Policy) Paid(waited time.Duration) {
	p.skip, p.left = 0, 0
	p.short += (min(waited, p.limits.Most) - p.short) / 8
}

// Failed learns from a wait that used up its budget.
func (p *Policy) Failed() {
	if !p.attempt {
		return
	}
	p.left = p.skip
	p.skip = min(2*p.skip+2, p.limits.Skip)
	// The next attempt is to find waits that have become longer, too.
	p.short = max(p.short, p.limits.Most/4)
}
