package fleetbench

import (
	"time"

	"golang.org/x/sys/unix"
)

// started is this process's beginning: a reading of its clock, which costs no system call, and what
// the host's clock said then.
var started, hostStarted = time.Now(), hostClock()

// now is the host's monotonic clock, the same for all its processes.
func now() time.Duration { return hostStarted + time.Since(started) }

func hostClock() time.Duration {
	var t unix.Timespec
	// The clock exists wherever this program runs.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}
