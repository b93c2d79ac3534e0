package libcuda

import (
	"time"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

const (
	// nonBlocking has a stream not wait for the null stream, which other libraries may use.
	nonBlocking = 1
	// blocking has those sleep that wait for an event, not spin.
	blocking = 1
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

// NewEvent makes a mark for streams, which has the time of its record, until Close.
func (c *context) NewEvent() (driver.Event, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	var e driver.Event
	code := c.library.call(cuEventCreate, uintptr(unsafe.Pointer(&e)), blocking)
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

// Elapsed is the time between the records of two events, both of which are there: less than nothing
// of an event that is not, of which the driver says so.
func (c *context) Elapsed(from, to driver.Event) (time.Duration, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	f := c.calls.acquire()
	defer c.calls.release(f)
	f.args[0], f.args[1] = uintptr(unsafe.Pointer(&f.elapsed)), uintptr(from)
	f.args[2] = uintptr(to)
	code := c.library.call(cuEventElapsedTime, f.args[:3]...)
	return time.Duration(float64(f.elapsed) * float64(time.Millisecond)),
		c.check(cuEventElapsedTime, code, "")
}
