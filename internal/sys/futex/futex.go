// Package futex sleeps on words of memory, futex(2): words that several processes share, and words
// of this process alone, for which the kernel finds the sleepers faster.
package futex

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	opWait  = 0
	opWake  = 1
	private = 128 // FUTEX_PRIVATE_FLAG
)

// Wait sleeps while the word, which may be shared between processes, has the value: for at most d,
// or without a limit if d is 0. Early returns are normal: the caller looks again. timeout is
// scratch that is not on the stack. An error is one of the word's address.
//
// The kernel compares word and value under the lock that Wake takes too, so a Wake that follows a
// change of the word is never missed. The Go scheduler sees a system call: the goroutine's thread
// sleeps, and its processor is free for others.
func Wait(word *atomic.Uint32, value uint32, d time.Duration, timeout *unix.Timespec) error {
	limit := uintptr(0)
	if d > 0 {
		*timeout = unix.NsecToTimespec(int64(d))
		limit = uintptr(unsafe.Pointer(timeout))
	}
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWait,
		uintptr(value), limit, 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR, unix.ETIMEDOUT:
		return nil
	}
	return errno
}

// Wake wakes all that sleep on the word by Wait.
func Wake(word *atomic.Uint32) { wake(word, opWake, math.MaxInt32) }

// WaitPrivate is Wait without a limit, for a word that only this process uses.
func WaitPrivate(word *atomic.Uint32, value uint32) {
	// It fails only for a bad address.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), opWait|private,
		uintptr(value), 0, 0, 0)
}

// WakePrivate wakes up to n threads that sleep on the word by WaitPrivate.
func WakePrivate(word *atomic.Uint32, n int) { wake(word, opWake|private, min(n, math.MaxInt32)) }

// RawSyscall: waking never blocks, so the Go scheduler need not know. It fails only for a bad
// address.
func wake(word *atomic.Uint32, op uintptr, n int) {
	_, _, _ = unix.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), op, uintptr(n))
}
