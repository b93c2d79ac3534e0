// Package executable knows the file that this process was started from, also where the process has
// become another program since.
package executable

import (
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// variable tells the next program of a process the descriptor of the file that the process was
// started from: "PID FD", for the children inherit the variable, too.
const variable = "EAGLERAY_EXECUTABLE"

// Own is this program's file, also after it was replaced.
const Own = "/proc/self/exe"

// Open opens the file that this process was started from.
func Open() (*os.File, error) {
	path := Own
	if fd, ok := inherited(); ok {
		path = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("own binary: %w", err)
	}
	return f, nil
}

// inherited is the descriptor that the program before this one has left open.
func inherited() (fd int, ok bool) {
	var pid int
	n, err := fmt.Sscanf(os.Getenv(variable), "%d %d", &pid, &fd)
	return fd, err == nil && n == 2 && pid == os.Getpid()
}

// CloseOnExec has the descriptor of the file, which the program before this one left open, not go
// to programs that this process starts.
func CloseOnExec() {
	if fd, ok := inherited(); ok {
		unix.CloseOnExec(fd)
	}
}

// Become makes this process another program, which has its arguments, and the environment and
// descriptors of this one: Open gives the same file there. It returns only after an error.
//
// The parent-death signal of a process is one of its first thread, and stays if that thread calls
// this.
func Become(program *os.File, args []string) error {
	f, err := Open()
	if err != nil {
		return err
	}
	defer f.Close()
	// Nothing else of this process starts programs.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	env := []string{fmt.Sprintf("%s=%d %d", variable, os.Getpid(), f.Fd())}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, variable+"=") {
			env = append(env, v)
		}
	}
	err = syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", program.Fd()), args, env)
	return os.NewSyscallError("execve", err)
}
