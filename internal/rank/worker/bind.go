package worker

import (
	"cmp"
	"fmt"
	"runtime"

	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// bind returns the rank's share of its machine's processors, and binds to them what computes for
// it: the process, where the rank has one, so that the memory of its weights comes from their node;
// else the calling goroutine's thread, which then ends with the goroutine. The other threads of a
// pool are bound as they start.
func (h *Host) bind(init *queue.Init, opt *Options) (machine.Share, error) {
	if opt.Place.Of == 0 {
		return machine.Share{Threads: cmp.Or(init.Threads, opt.Threads, machine.Cores()),
			Why: "what else runs on the processors is not known"}, nil
	}
	if h.topology.Processors == nil {
		h.topology = machine.ReadTopology()
	}
	// An engine that is added has a number beyond those that there were.
	ranks := max(opt.Place.Of, opt.Place.Index+1)
	shares, err := h.topology.Plan(machine.Demand{Ranks: ranks, Threads: init.Threads,
		Bind: init.Bind})
	if err != nil {
		return machine.Share{}, fmt.Errorf("--cpu-bind %q: %w", init.Bind, err)
	}
	share := shares[opt.Place.Index]
	switch {
	case opt.Alone && share.Processors != nil:
		err = machine.BindProcess(share.Processors)
		h.bound = err == nil
	case opt.Alone && h.bound: // by an earlier group
		err = machine.BindProcess(h.topology.Numbers())
		h.bound = false
	case share.Processors != nil:
		runtime.LockOSThread() // never unlocked: the thread's mask is no other goroutine's
		err = machine.BindThread(share.Processors)
	}
	if err != nil {
		// A sandbox may refuse the call: the kernel then chooses.
		share.Processors, share.Why = nil, "refused: "+err.Error()
		if init.Bind != "" && init.Bind != machine.BindAuto {
			return share, fmt.Errorf("--cpu-bind %q: %w", init.Bind, err)
		}
	}
	return share, nil
}
