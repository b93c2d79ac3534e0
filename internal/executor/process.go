package executor

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// processState is what the kernel says of a rank's process: running, sleeping, stopped, …; "" when
// the rank is no process that is seen from here. A rank that was stopped cannot say so itself.
func (e *Executor) processState(rank int) string {
	if rank >= len(e.pids) || e.pids[rank] == 0 {
		return ""
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", e.pids[rank]))
	if err != nil {
		return "gone"
	}
	// The name before the state is in parentheses and may hold anything.
	_, rest, ok := strings.Cut(string(raw[bytes.LastIndexByte(raw, ')')+1:]), " ")
	if !ok || rest == "" {
		return ""
	}
	switch rest[0] {
	case 'R':
		return "running"
	case 'S', 'I':
		return "sleeping"
	case 'D':
		return "waiting for a device"
	case 'T', 't':
		return stoppedState
	case 'Z', 'X':
		return "dead"
	}
	return rest[:1]
}

// stoppedState is the state of a process that SIGSTOP or a debugger holds.
const stoppedState = "stopped"
