package libcuda

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// scheduleBlockingSync has a thread that waits for the device sleep (CU_CTX_SCHED_BLOCKING_SYNC).
const scheduleBlockingSync = 4

// context is the primary context of a device, which libraries of NVIDIA's in the same process use
// as well. It is what driver.Context says; beside that:
//
// The calls of a step (Upload, Download, Copy, Fill, Launch, Record, Query, Replay, Synchronize)
// allocate nothing.
//
// After an error that is sticky no call reaches the driver any more: each returns that first error.
// Close still releases what it can.
type context struct {
	library *Library
	device  int32
	handle  uintptr
	calls   frames
	// over is why no call is made any more: closed, or lost.
	over atomic.Pointer[ending]

	memory handles[driver.Ptr]
	// imported is memory of other processes.
	imported handles[driver.Ptr]
	pinned   handles[span]
	modules  handles[driver.Module]
	streams  handles[driver.Stream]
	events   handles[driver.Event]
	graphs   handles[driver.Graph]
	kernels  kernels
}

// ending is why a context is over.
type ending struct{ err error }

// Open makes the primary context of a device, current in the calling thread, whose waits sleep
// instead of spinning, unless another library of the process has made the context already.
func (l *Library) Open(ordinal int) (driver.Context, error) {
	device, err := l.device(ordinal)
	if err != nil {
		return nil, err
	}
	code := l.call(cuDevicePrimaryCtxSetFlags, uintptr(device), scheduleBlockingSync)
	if code != 0 && code != primaryContextActive {
		return nil, l.failure(cuDevicePrimaryCtxSetFlags, code, "")
	}
	c := &context{library: l, device: device}
	code = l.call(cuDevicePrimaryCtxRetain, uintptr(unsafe.Pointer(&c.handle)), uintptr(device))
	if code != 0 {
		return nil, l.failure(cuDevicePrimaryCtxRetain, code, fmt.Sprintf("device %d", ordinal))
	}
	if err := c.begin(); err != nil {
		l.call(cuDevicePrimaryCtxRelease, uintptr(device))
		return nil, err
	}
	return c, nil
}

// begin makes a new context current.
func (c *context) begin() error {
	if err := c.Enter(); err != nil {
		return err
	}
	return c.library.repair()
}

// Enter makes the context current in the calling thread.
func (c *context) Enter() error { return c.call(cuCtxSetCurrent, c.handle) }

// Close waits for the device, and releases all that is left and the context itself. The first error
// is returned, and does not end it: of a lost context it is what it was lost by. A second Close
// does nothing.
func (c *context) Close() error {
	x := closing{library: c.library}
	if former := c.over.Swap(&ending{errClosed}); former != nil {
		if errors.Is(former.err, errClosed) {
			return nil
		}
		x.first = former.err
	}
	x.call(cuCtxSetCurrent, c.handle)
	x.call(cuCtxSynchronize)
	// Before what they use: graphs have kernels of modules, and copies of memory.
	closeAll(&x, &c.graphs, cuGraphExecDestroy)
	closeAll(&x, &c.events, cuEventDestroy)
	closeAll(&x, &c.streams, cuStreamDestroy)
	closeAll(&x, &c.modules, cuModuleUnload)
	closeAll(&x, &c.imported, cuIpcCloseMemHandle)
	for _, p := range c.pinned.clear() {
		x.call(cuMemFreeHost, p.address)
	}
	closeAll(&x, &c.memory, cuMemFree)
	x.call(cuCtxSetCurrent, 0)
	x.call(cuDevicePrimaryCtxRelease, uintptr(c.device))
	return x.first
}

// closing is the calls that close a context, and their first error.
type closing struct {
	library *Library
	first   error
}

func (x *closing) call(e export, args ...uintptr) {
	if code := x.library.call(e, args...); code != 0 && x.first == nil {
		x.first = x.library.failure(e, code, "")
	}
}

// closeAll ends all handles of a kind.
func closeAll[H ~uint64 | ~uintptr](x *closing, list *handles[H], e export) {
	for _, h := range list.clear() {
		x.call(e, uintptr(h))
	}
}

// ended is the error of a call that is not made any more, nil while the context is in use.
func (c *context) ended() error {
	if e := c.over.Load(); e != nil {
		return e.err
	}
	return nil
}

// failed is the error of a code. The first that is sticky is that of all later calls.
func (c *context) failed(e export, code int32, known string) error {
	err := c.library.failure(e, code, known)
	if err.Sticky() && !c.over.CompareAndSwap(nil, &ending{err}) {
		return c.ended()
	}
	return err
}

// check is nil for the code of a success.
func (c *context) check(e export, code int32, known string) error {
	if code == 0 {
		return nil
	}
	return c.failed(e, code, known)
}

// release calls an export that releases a handle, which has to be one of the context's.
func release[H comparable](c *context, own *handles[H], x H, e export, arg uintptr) error {
	if err := c.ended(); err != nil {
		return err
	}
	if !own.remove(x) {
		return fmt.Errorf("%v: %#x is none of this context, or was released before", e, arg)
	}
	if err := c.check(e, c.library.call(e, arg), ""); err != nil {
		own.add(x)
		return err
	}
	return nil
}
