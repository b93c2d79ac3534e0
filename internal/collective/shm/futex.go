package shm

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2), without FUTEX_PRIVATE_FLAG: the word is shared between processes.
const (
	futexWait = 0
	futexWake = 1
)

// parkWhile sleeps while the word has the value, for at most the duration. Early returns are normal: the
// caller looks again. timeout is scratch that is not on the stack.
func parkWhile(word *atomic.Uint32, value uint32, d time.Duration, timeout *unix.Timespec) error {
	*timeout = unix.NsecToTimespec(int64(d))
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value),
		uintptr(unsafe.Pointer(timeout)), 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR, unix.ETIMEDOUT:
		return nil
	}
	return errno
}

// wakeAll wakes everyone who sleeps on the word.
func wakeAll(word *atomic.Uint32) {
	// RawSyscall: waking never blocks, so the scheduler need not know. It fails only for a bad address.
	_, _, _ = unix.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, math.MaxInt32)
}
