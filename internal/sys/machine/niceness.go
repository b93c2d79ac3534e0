package machine

import "golang.org/x/sys/unix"

// Niceness is that of this process; 0 where it cannot be read.
func Niceness() int {
	// The system call returns 20 minus the niceness.
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return 20 - n
}
