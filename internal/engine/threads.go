package engine

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/sys/machine"
)

// haveThreads wants this machine to let as many threads be started as the driver and its ranks will need, and
// starts those that the driver will need when there may be none left: Go's runtime ends a process that it cannot
// give another one.
func (b *opening) haveThreads() error {
	ranks, threads := 0, machine.Cores()
	if b.backend() != "ray" {
		ranks = b.ranksHere()
		threads = max(threads, ranks*b.cfg.Parallel.CPUThreads)
	}
	wanted := machine.ThreadsWanted(ranks, threads, b.backend() == "mp")
	if left, known := machine.ThreadsLeft(); known {
		switch {
		case left.Left < wanted*3/4:
			return fmt.Errorf("only %d more threads can be started (%s), and about %d are needed with %d ranks: raise "+
				"that limit, or start fewer ranks", left.Left, left.Limit, wanted, ranks)
		case left.Left < wanted*3/2:
			b.opt.Log.Warn("few more threads can be started: a rank that dies may not be replaced", "left", left.Left,
				"limit", left.Limit, "wanted", wanted)
		}
	}
	machine.ReserveThreads(machine.ReservedThreads)
	return nil
}
