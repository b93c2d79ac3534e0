package pool

import (
	"math"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// event is an event count on a futex: wait returns once signal has been called after observe.
// Signals are remembered for whoever observed before them, and wake sleeping threads.
type event struct {
	count atomic.Uint32
}

// Operations of futex(2), private to this process.
const (
	futexWait = 0 | 128
	futexWake = 1 | 128
)

func (e *event) init() {}

// observe returns the count to pass to wait.
func (e *event) observe() uint32 { return e.count.Load() }

// wait blocks while the count is still seen. It may return early. The kernel compares the count and
// queues the thread under one lock, so a signal between observe and wait is never missed.
func (e *event) wait(seen uint32) {
	if e.count.Load() != seen {
		return
	}
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&e.count)), futexWait, uintptr(seen), 0, 0, 0)
}

// signal advances the count and wakes up to n sleeping threads.
func (e *event) signal(n int) {
	e.count.Add(1)
	n = min(n, math.MaxInt32)
	// RawSyscall: waking does not block, so the Go scheduler need not be told.
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&e.count)), futexWake, uintptr(n), 0, 0, 0)
}
