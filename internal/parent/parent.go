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

// Watch asks the kernel to end this process with its parent, and fails when the parent ended before.
// It does nothing for a process whose parent did not ask for it. The kernel takes the end of the
// thread that started the process for that of the parent.
func Watch() (asked bool, err error) {
	pid := os.Getenv(Variable)
	if pid == "" {
		return false, nil
	}
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return true, fmt.Errorf("parent-death signal: %w", err)
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
