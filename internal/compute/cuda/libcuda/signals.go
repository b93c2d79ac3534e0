package libcuda

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct sigaction of amd64 and arm64, which is not the C library's: the
// mask comes last and has 8 bytes, and the kernel reads and writes just these 32 bytes.
//
//	offset 0   handler    address of the function, or 0 (default) or 1 (ignored)
//	       8   flags      SA_ONSTACK, SA_SIGINFO, SA_RESTART, …
//	      16   restorer   where the handler returns to (SA_RESTORER)
//	      24   mask       signals that wait while it runs
type sigaction struct {
	handler, flags, restorer, mask uint64
}

const (
	signals        = 64 // of the kernel, from 1
	maskBytes      = 8
	onStack        = 0x08000000
	defaultHandler = 0
	ignoreHandler  = 1
)

// Repair is a handler of a signal that ran on the stack of the interrupted thread, and that now
// runs on the thread's own stack for signals.
type Repair struct {
	Signal unix.Signal
	// File is the library that the handler is in, "" if that is not known.
	File string
}

// String says what was done, for a log.
func (r Repair) String() string {
	name := unix.SignalName(r.Signal)
	if name == "" {
		name = fmt.Sprintf("signal %d", int(r.Signal))
	}
	file := r.File
	if file == "" {
		file = "an unknown library"
	}
	return fmt.Sprintf("%s: its handler, of %s, had no SA_ONSTACK: added", name, file)
}

// RepairSignals adds SA_ONSTACK to all handlers of signals that lack it, and lists them. Go has
// installed its own with it; a library that puts its handler in their place without, and calls the
// former one in it, ends the process at the next signal: a goroutine's stack is too small, and Go
// refuses to run there. Call it after each call that initialises a library. Open and the opening of
// a device do so.
func RepairSignals() ([]Repair, error) {
	var repaired []Repair
	for s := unix.Signal(1); s <= signals; s++ {
		if s == unix.SIGKILL || s == unix.SIGSTOP {
			continue // they have no handlers
		}
		var a sigaction
		if err := exchange(s, nil, &a); err != nil {
			return repaired, err
		}
		if a.handler == defaultHandler || a.handler == ignoreHandler || a.flags&onStack != 0 {
			continue
		}
		a.flags |= onStack
		if err := exchange(s, &a, nil); err != nil {
			return repaired, err
		}
		repaired = append(repaired, Repair{Signal: s, File: FileAt(uintptr(a.handler))})
	}
	return repaired, nil
}

// exchange sets the handler of a signal, and reads the one before; nil for neither.
func exchange(s unix.Signal, set, former *sigaction) error {
	_, _, err := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(former)), maskBytes, 0, 0)
	if err != 0 {
		return fmt.Errorf("the handler of signal %d: %w", int(s), err)
	}
	return nil
}
