package worker

import (
	"runtime"

	"github.com/eagleray/eagleray/internal/join"
)

// Join connects to the driver and serves it until it asks for shutdown or goes away. What comes
// over cancel, which may be nil, is why this rank must end: the driver is notified before it does.
func Join(inv join.Invitation, cancel <-chan error) error {
	r, err := join.Dial(inv, cancel)
	if err != nil {
		return err
	}
	defer r.Close()
	// The futex waits of a ring are cheapest on a thread of one's own.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = Run(r.Port(), Options{Rank: inv.Rank, Groups: r.Groups, Threads: inv.Threads,
		DriversClock: r.Local()})
	if r.DriverGone() {
		return nil // whatever failed then is not reported to anyone
	}
	return err
}
