package libcuda

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// captureThreadLocal has only calls of the capturing thread end a capture that they cannot be part
// of: other threads may allocate meanwhile.
const captureThreadLocal = 1

// BeginCapture has the stream's calls recorded instead of enqueued, until EndCapture in the same
// thread.
func (c *context) BeginCapture(s driver.Stream) error {
	return c.call(cuStreamBeginCapture, uintptr(s), captureThreadLocal)
}

// EndCapture makes a graph of the calls since BeginCapture. The stream is usable again, also after
// an error: of a call that could not be captured the error comes here.
func (c *context) EndCapture(s driver.Stream) (driver.Graph, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	var recorded uintptr
	code := c.library.call(cuStreamEndCapture, uintptr(s), uintptr(unsafe.Pointer(&recorded)))
	if code != 0 {
		return 0, c.failed(cuStreamEndCapture, code, "")
	}
	var g driver.Graph
	e, code := c.library.instantiate(&g, recorded)
	if code != 0 {
		// What the first error was matters, not that of this.
		c.library.call(cuGraphDestroy, recorded)
		return 0, c.failed(e, code, "")
	}
	c.graphs.add(g)
	if err := c.call(cuGraphDestroy, recorded); err != nil {
		return 0, err // the graph is Close's
	}
	return g, nil
}

// instantiate makes a recorded graph executable, by the export that the driver has.
func (l *Library) instantiate(to *driver.Graph, recorded uintptr) (export, int32) {
	if l.addresses[cuGraphInstantiateWithFlags] != 0 {
		return cuGraphInstantiateWithFlags, l.call(cuGraphInstantiateWithFlags,
			uintptr(unsafe.Pointer(to)), recorded, 0)
	}
	// A node that fails, and a log, would be written to the last three.
	return cuGraphInstantiate, l.call(cuGraphInstantiate, uintptr(unsafe.Pointer(to)), recorded, 0,
		0, 0)
}

// Replay enqueues all that a graph has.
func (c *context) Replay(g driver.Graph, s driver.Stream) error {
	return c.call(cuGraphLaunch, uintptr(g), uintptr(s))
}

// Destroy ends a graph; what of it is enqueued is still done.
func (c *context) Destroy(g driver.Graph) error {
	return release(c, &c.graphs, g, cuGraphExecDestroy, uintptr(g))
}
