// Package parent ends a process with the one that started it, however that ended.
package parent

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Variable is the environment variable in which a parent that wants its child to end with it tells
// its process id.
const Variable = "EAGLERAY_PARENT_PID"

// Signal asks the kernel to send this process a signal when its parent ends, for which it takes the
// end of the thread that started the process.
func Signal(s unix.Signal) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(s), 0, 0, 0); err != nil {
		return fmt.Errorf("parent-death signal: %w", err)
	}
	return nil
}

// Watch has the kernel end this process with its parent, and fails when the parent ended before. It
// does nothing for a process whose parent did not ask for it.
func Watch() (asked bool, err error) {
	pid := os.Getenv(Variable)
	if pid == "" {
		return false, nil
	}
	if err := Signal(unix.SIGKILL); err != nil {
		return true, err
	}
	if strconv.Itoa(os.Getppid()) != pid {
		return true, fmt.Errorf("parent (pid %s) is gone", pid)
	}
	return true, nil
}

// Ended is closed when in, which the parent holds open, comes to its end.
func Ended(in io.Reader) <-chan struct{} {
	ended := make(chan struct{})
	// It lives as long as the process.
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(ended)
	}()
	return ended
}
