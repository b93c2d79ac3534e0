package worker

import (
	"errors"
	"io"
	"runtime"

	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Serve joins the driver that each invitation leads to, and serves it until it asks for shutdown.
// When a driver ends, or another rank's failure ends the group, the rank keeps its loaded model and
// reads the next invitation: next waits for it, and returns io.EOF when none will come. An error
// received from cancel, which may be nil, ends this rank, which sends it to the driver first. gpus
// makes the devices of ranks on GPUs, and is nil in a program that has none.
func Serve(next func() (join.Invitation, error), cancel <-chan error, gpus GPUs) error {
	// The futex waits of a ring are cheapest on a thread of one's own, and a GPU is that of one
	// until it is closed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	h := Host{gpus: gpus}
	defer h.Close()
	inv, err := next()
	if err != nil {
		return err
	}
	for {
		again, err := h.join(inv, cancel)
		if !again {
			return err
		}
		if inv, err = next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// memory bounds that of the rank's GPU, as it was before the rank took any, if the invitation asks
// for it, else that of the host.
func (h *Host) memory(inv *join.Invitation) memory.Bounds {
	if h.gpus == nil || !inv.Measure {
		return machine.Memory()
	}
	if h.bounds == nil {
		h.bounds = h.gpus.Memory(inv.Ordinal)
	}
	return h.bounds
}

// join serves one group. It reports whether the rank may join another one.
func (h *Host) join(inv join.Invitation, cancel <-chan error) (again bool, err error) {
	r, err := join.Dial(inv, h.memory(&inv), cancel)
	if err != nil {
		// The group of a reused rank may have failed meanwhile.
		return h.rank != nil || errors.Is(err, join.ErrApart), err
	}
	defer r.Close()
	err = h.Run(r.Port(), Options{Rank: inv.Rank, Groups: r.Groups, Ended: r.Ended(),
		Threads: inv.Threads, Place: inv.Place, Ordinal: inv.Ordinal, DriversClock: r.Local(),
		Host:   r.Host(),
		Beside: r.Beside, Alone: true})
	switch {
	case r.Cancelled():
		return false, nil
	case err == nil || blameless(err):
		return err != nil, err
	case r.DriverGone():
		return false, nil // what failed is not reported to anyone
	}
	return false, err
}
