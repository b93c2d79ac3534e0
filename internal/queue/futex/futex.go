// Package futex waits on words of memory that several processes share.
package futex

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2), without FUTEX_PRIVATE_FLAG: the word is shared between processes.
const (
	opWait = 0
	opWake = 1
)

// Wait sleeps while the word has the value, for at most the duration, which is positive, or without a limit
// if it is 0. Early returns are normal: the caller looks again. timeout is scratch that is not on the stack.
//
// The kernel compares word and value under the lock that Wake takes too. The Go scheduler sees a system call:
// the goroutine's thread sleeps, and its processor is free for others.
func Wait(word *atomic.Uint32, value uint32, d time.Duration, timeout *unix.Timespec) error {
	limit := uintptr(0)
	if d > 0 {
		*timeout = unix.NsecToTimespec(int64(d))
		limit = uintptr(unsafe.Pointer(timeout))
	}
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWait, uintptr(value), limit, 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR, unix.ETIMEDOUT:
		return nil
	}
	return errno
}

// Wake wakes everyone who sleeps on the word.
func Wake(word *atomic.Uint32) {
	// RawSyscall: waking never blocks, so the scheduler need not know. It fails only for a bad address.
	_, _, _ = unix.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWake, math.MaxInt32)
}
