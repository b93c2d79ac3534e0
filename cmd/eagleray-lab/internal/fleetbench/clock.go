package fleetbench

import (
	"time"

	"golang.org/x/sys/unix"
)

// now is the host's monotonic clock, the same for all its processes. It costs a system call:
// time.Now costs none, but counts from a moment of this process, and whatever the process pauses
// between the two readings that relate that moment to the host's clock shifts all that follows.
func now() time.Duration {
	var t unix.Timespec
	// The clock exists wherever this program runs.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}
