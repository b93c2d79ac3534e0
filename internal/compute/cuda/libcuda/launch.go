package libcuda

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// frame is the arguments of a call. It lies on the heap, for C reads it, and is used again and
// again: a call with arguments of its own would allocate them.
type frame struct {
	args [12]uintptr
	// tensor is what a tensor map is made of.
	tensor tensor
	// elapsed is what the time between events is written to, in milliseconds.
	elapsed float32
	// params is the array of the addresses of a kernel's parameters.
	params [1]unsafe.Pointer
}

// launchArgs is how many arguments a launch has.
const launchArgs = 11

// frames are those that no call uses now: there are as many as calls were under way at once.
type frames struct {
	mu   sync.Mutex
	idle []*frame
}

func (s *frames) acquire() *frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.idle) - 1
	if last < 0 {
		return &frame{}
	}
	f := s.idle[last]
	s.idle = s.idle[:last]
	return f
}

func (s *frames) release(f *frame) {
	f.params[0] = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, f)
}

// code calls an export in a frame and returns its CUresult. The arguments are values, handles and
// addresses of memory that is not Go's.
func (c *context) code(e export, args ...uintptr) int32 {
	f := c.calls.acquire()
	n := copy(f.args[:], args)
	code := c.library.call(e, f.args[:n]...)
	c.calls.release(f)
	return code
}

// call is code with an error, while the context is in use.
func (c *context) call(e export, args ...uintptr) error {
	if err := c.ended(); err != nil {
		return err
	}
	return c.check(e, c.code(e, args...), "")
}

// Launch enqueues a kernel. A kernel without a parameter has no Params. The error of a launch names
// the kernel and what it was launched with.
func (c *context) Launch(l *driver.Launch, s driver.Stream) error {
	if err := c.ended(); err != nil {
		return err
	}
	f := c.calls.acquire()
	f.args = [len(f.args)]uintptr{
		uintptr(l.Function),
		uintptr(l.Grid[0]), uintptr(l.Grid[1]), uintptr(l.Grid[2]),
		uintptr(l.Block[0]), uintptr(l.Block[1]), uintptr(l.Block[2]),
		uintptr(l.Shared), uintptr(s), 0, 0,
	}
	if l.Params != nil {
		// The frame has the struct stay alive, and both lie on the heap.
		f.params[0] = l.Params
		f.args[9] = uintptr(unsafe.Pointer(&f.params))
	}
	code := c.library.call(cuLaunchKernel, f.args[:launchArgs]...)
	c.calls.release(f)
	if code != 0 {
		return c.failed(cuLaunchKernel, code, c.described(l, code))
	}
	return nil
}

// described is a launch in words. By a code that is sticky an earlier kernel may have failed.
func (c *context) described(l *driver.Launch, code int32) string {
	when := ""
	if (&driver.Error{Code: int(code)}).Sticky() {
		when = "at or before the launch of "
	}
	return when + fmt.Sprintf("%s, grid %d×%d×%d, block %d×%d×%d, %d bytes of shared memory",
		c.kernels.name(l.Function), l.Grid[0], l.Grid[1], l.Grid[2], l.Block[0], l.Block[1],
		l.Block[2], l.Shared)
}
