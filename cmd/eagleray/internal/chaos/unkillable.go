package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tracing is the ability to hold a process.
var tracing = &need{how: "ranks in processes of the server's own (no Ray), and leave to trace " +
	"processes (ptrace)",
	met: func(o Options) bool {
		scope, _ := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
		level := strings.TrimSpace(string(scope))
		// A process that is not there is found missing only by those who may trace.
		const nobody = 1 << 30
		return !onRay(o) && level != "2" && level != "3" && seize(nobody, 0) == unix.ESRCH
	}}

// seize makes the calling thread the tracer of a process.
func seize(pid, options int) syscall.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0,
		uintptr(options), 0, 0)
	return errno
}

// unkillable stops a rank and holds it, as a frozen control group or a debugger does: it does not
// end when the server kills it. It is let go, and ends, when another one has taken its place.
func unkillable(v *victim) error {
	pid, err := v.one()
	if err != nil {
		return err
	}
	release, err := Freeze(pid)
	if err != nil {
		return err
	}
	v.s.expectExit(pid)
	err = v.s.calm(v.ctx, v.l)
	if err == nil && syscall.Kill(pid, 0) != nil {
		err = fmt.Errorf("process %d has ended although it was held", pid)
	}
	err = errors.Join(err, release())
	until := time.Now().Add(patience)
	for ; err == nil && syscall.Kill(pid, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			err = fmt.Errorf("process %d was killed, is held no more, and does not end", pid)
		}
	}
	return err
}

// Freeze stops a process and makes it one that cannot be killed, as in a frozen control group,
// until release is called or this process ends: a tracer keeps its first thread where a killed one
// ends. Then it ends if it was killed, and else is stopped.
func Freeze(pid int) (release func() error, err error) {
	if err := send(pid, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	for until := time.Now().Add(patience); !stopped(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return nil, errors.Join(fmt.Errorf("process %d does not stop", pid),
				send(pid, syscall.SIGCONT))
		}
	}
	held, let, done := make(chan syscall.Errno), make(chan struct{}), make(chan error)
	go func() {
		// What traces is a thread. It must not end: processes that it has started before would, too
		// (Pdeathsig).
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		errno := seize(pid, unix.PTRACE_O_TRACEEXIT)
		if held <- errno; errno == 0 {
			<-let
			done <- detach(pid)
		}
	}()
	if errno := <-held; errno != 0 {
		return nil, errors.Join(fmt.Errorf("trace process %d: %w", pid, errno),
			send(pid, syscall.SIGCONT))
	}
	return func() error { close(let); return <-done }, nil
}

// detach ends what seize began.
func detach(pid int) error {
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(time.Millisecond) {
		var now unix.WaitStatus
		// What stops the process is told once, and a kill may come in between.
		if n, err := unix.Wait4(pid, &now, unix.WALL|unix.WNOHANG, nil); err != nil ||
			n == pid && !now.Stopped() {
			return nil // it has ended
		}
		switch err := unix.PtraceDetach(pid); err {
		case nil:
			return nil
		case unix.ESRCH: // it is on its way to the next stop
		default:
			return fmt.Errorf("let process %d go: %w", pid, err)
		}
	}
	return fmt.Errorf("process %d cannot be let go", pid)
}

// stopped says that a process is, as proc(5) has it.
func stopped(pid int) bool {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return bytes.HasPrefix(raw[bytes.LastIndexByte(raw, ')')+1:], []byte(" T"))
}
