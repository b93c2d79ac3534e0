package libcuda

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

const (
	// nonBlocking has a stream not wait for the null stream, which other libraries may use.
	nonBlocking = 1
	// withoutTiming, and sleeping instead of spinning for those that wait.
	blockingWithoutTiming = 1 | 2
)

// NewStream makes a queue of the device, until Close.
func (c *context) NewStream() (driver.Stream, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	var s driver.Stream
	code := c.library.call(cuStreamCreate, uintptr(unsafe.Pointer(&s)), nonBlocking)
	if code != 0 {
		return 0, c.failed(cuStreamCreate, code, "")
	}
	c.streams.add(s)
	return s, nil
}

// Synchronize waits until the stream has done all that was enqueued. The thread sleeps.
func (c *context) Synchronize(s driver.Stream) error {
	return c.call(cuStreamSynchronize, uintptr(s))
}

// NewEvent makes a mark for streams, without a time, until Close.
func (c *context) NewEvent() (driver.Event, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	var e driver.Event
	code := c.library.call(cuEventCreate, uintptr(unsafe.Pointer(&e)), blockingWithoutTiming)
	if code != 0 {
		return 0, c.failed(cuEventCreate, code, "")
	}
	c.events.add(e)
	return e, nil
}

// Record enqueues the event.
func (c *context) Record(e driver.Event, s driver.Stream) error {
	return c.call(cuEventRecord, uintptr(e), uintptr(s))
}

// Query says whether all before the event's latest record is done; of one that was never recorded
// it is.
func (c *context) Query(e driver.Event) (bool, error) {
	if err := c.ended(); err != nil {
		return false, err
	}
	switch code := c.code(cuEventQuery, uintptr(e)); code {
	case 0:
		return true, nil
	case driver.NotReady:
		return false, nil
	default:
		return false, c.failed(cuEventQuery, code, "")
	}
}
