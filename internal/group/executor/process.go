package executor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// processState returns the kernel's state of a rank's process: running, sleeping, stopped, …; ""
// for a rank of another host or PID namespace. A stopped rank cannot report it itself.
func (e *Executor) processState(rank int) string {
	pid := e.pid(rank)
	if pid == 0 {
		return ""
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "gone"
	}
	switch state := stateIn(raw); state {
	case 0:
		return ""
	case 'R':
		return "running"
	case 'S', 'I':
		return "sleeping"
	case 'D':
		return deviceState
	case 'T', 't':
		return stoppedState
	case 'Z', 'X':
		return "dead"
	default:
		return string(state)
	}
}

// stateIn is the letter of the state in the contents of a stat file of proc(5), 0 if there is none.
func stateIn(raw []byte) rune {
	// The name before the state is in parentheses and may hold anything.
	rest := bytes.TrimLeft(raw[bytes.LastIndexByte(raw, ')')+1:], " ")
	if len(rest) == 0 {
		return 0
	}
	return rune(rest[0])
}

// pid returns the process of a rank in this PID namespace, 0 for none.
func (e *Executor) pid(rank int) int {
	if rank >= len(e.pids) {
		return 0
	}
	return e.pids[rank]
}

// schedule is the processor time of a process so far.
type schedule struct {
	at time.Time
	// ran is how long its threads have run, waited how long they could have run and had no
	// processor.
	ran, waited time.Duration
	// ready is how many threads run or could; known how many there are, 0 where nothing is known.
	ready, known int
}

// scheduleOf reads the threads of a process (proc(5): schedstat).
func scheduleOf(pid int) (s schedule) {
	s.at = time.Now()
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range threads {
		raw, err := os.ReadFile(dir + "/schedstat")
		if err != nil {
			continue // it has ended, or the kernel keeps no such statistics
		}
		var ran, waited int64
		if n, _ := fmt.Sscan(string(raw), &ran, &waited); n != 2 {
			continue
		}
		s.known++
		s.ran += time.Duration(ran)
		s.waited += time.Duration(waited)
		if stat, err := os.ReadFile(dir + "/stat"); err == nil && stateIn(stat) == 'R' {
			s.ready++
		}
	}
	return s
}

// starved says that the process wanted a processor for most of the time that has passed since
// before, and had next to none. A thread's wait counts only once it is over.
func (s schedule) starved(before schedule, elapsed time.Duration) bool {
	if s.known == 0 || before.known == 0 {
		return false
	}
	ran, waited := s.ran-before.ran, s.waited-before.waited
	return ran < elapsed/10 && (waited > elapsed/2 || s.ready > 0)
}

// stoppedState is the state of a process that SIGSTOP or a debugger holds.
const stoppedState = "stopped"

// deviceState is the state of one that no signal reaches: it waits for a device or a file system,
// or its control group is frozen.
const deviceState = "waiting for a device"
