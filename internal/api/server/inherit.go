package server

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// firstInherited is the first descriptor of those that a parent hands over.
const firstInherited = 3

// Inherited returns the listening sockets that this process was started with, as systemd's socket
// activation hands them over (LISTEN_PID, LISTEN_FDS: sd_listen_fds(3)), as one listener; nil when
// there are none. A server that is replaced by another version in this way refuses no connection:
// the socket stays open, and clients wait in its queue. Children do not inherit them again.
func Inherited() (net.Listener, error) {
	pid, count := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	if pid != strconv.Itoa(os.Getpid()) || count == "" {
		return nil, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("LISTEN_FDS %q is not a number of sockets", count)
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	var list []net.Listener
	for fd := firstInherited; fd < firstInherited+n; fd++ {
		syscall.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "LISTEN_FD_"+strconv.Itoa(fd))
		l, err := net.FileListener(f) // a duplicate
		f.Close()
		if err != nil {
			for _, l := range list {
				l.Close()
			}
			return nil, fmt.Errorf("descriptor %d of LISTEN_FDS: %w", fd, err)
		}
		list = append(list, l)
	}
	switch len(list) {
	case 0:
		return nil, nil
	case 1:
		return list[0], nil
	}
	return join(list...), nil
}
