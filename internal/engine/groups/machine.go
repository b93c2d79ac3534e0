package groups

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/eagleray/eagleray/internal/sys/machine"
)

// HaveThreads wants this machine to let as many threads be started as the driver and its ranks will
// need, and starts those that the driver will need when there may be none left: Go's runtime ends a
// process that it cannot give another one.
func (b *Launch) HaveThreads() error {
	ranks, threads := 0, machine.Cores()
	if b.Backend() != "ray" {
		ranks = b.RanksHere()
		threads = max(threads, ranks*b.Config.Parallel.CPUThreads)
	}
	wanted := machine.ThreadsWanted(ranks, threads, b.Backend() == "mp")
	if left, known := machine.ThreadsLeft(); known {
		switch {
		case left.Left < wanted*3/4:
			return fmt.Errorf("only %d more threads can be started (%s), and about %d are needed "+
				"with %d ranks: raise that limit, or start fewer ranks", left.Left, left.Limit,
				wanted, ranks)
		case left.Left < wanted*3/2:
			b.Log.Warn("few more threads can be started: a rank that dies may not be replaced",
				"left", left.Left, "limit", left.Limit, "wanted", wanted)
		}
	}
	machine.ReserveThreads(machine.ReservedThreads)
	return nil
}

// LimitHeap has the collector of this process, in which ranks compute, keep what lies on the heap
// within what the plan has for it, unless the user has set a limit (GOMEMLIMIT, GOGC). No limit is
// set to that: requests beyond what is planned for them would have it collect all the time.
func (b *Launch) LimitHeap() {
	if b.Backend() != "uni" || b.Planned == nil || len(b.Planned.Hosts) == 0 {
		return
	}
	h := &b.Planned.Hosts[0]
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(h.GarbagePercent())
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		debug.SetMemoryLimit(b.Planned.HeapRoom(h) + int64(m.Sys))
	}
}

// WarnOfCores warns when the ranks of this machine cannot all compute at the same time.
func (b *Launch) WarnOfCores() {
	ranks, cores := b.RanksHere(), machine.Cores()
	if b.Backend() == "ray" || ranks <= cores {
		return
	}
	shape := b.Config.Parallel.Layout().String()
	if n := b.Engines(); n > 1 {
		shape += fmt.Sprintf(" × DP %d", n)
	}
	b.Log.Warn("there are more ranks than cores: they wait for each other", "ranks", ranks,
		"cores", cores, "layout", shape)
}
