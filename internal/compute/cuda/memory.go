package cuda

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// memory is float32 values on the device, and copies of them: in 16 bits, which products read, and
// on the host. Each copy is made when it is asked for first after the values were written.
type memory struct {
	d *Device
	*buffers
	floats int // in use
	// halved and hosted say that the copies are those of the values: that on the host was when
	// replays steps had been done again, each of which may have written any values.
	halved, hosted bool
	replays        uint64
}

// buffers are what a memory has of the driver. They outlive it until the device has time to free
// them: a finalizer must not call the driver.
type buffers struct {
	values   driver.Ptr
	halves   driver.Ptr
	host     []byte
	capacity int // of values and halves, in floats
}

// reclaimed are buffers that nothing refers to any more. What tells of them is kept for as long as
// there may be more: it does not lead to the device, which could refer to one of them.
type reclaimed struct {
	mu   sync.Mutex
	list []*buffers
}

func (r *reclaimed) add(b *buffers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, b)
}

// reclaim frees what nothing refers to. It is called where no launch is being put together: its
// parameters are addresses, which refer to nothing.
func (d *Device) reclaim() {
	d.reclaimed.mu.Lock()
	list := d.reclaimed.list
	d.reclaimed.list = nil
	d.reclaimed.mu.Unlock()
	if len(list) == 0 {
		return
	}
	d.wait()
	for _, b := range list {
		d.release(b)
	}
}

// release frees buffers that the device does not use any more.
func (d *Device) release(b *buffers) {
	for _, p := range []driver.Ptr{b.values, b.halves} {
		d.free(p)
	}
	if b.host != nil && d.err == nil {
		d.check(d.ctx.Unpin(b.host))
	}
	*b = buffers{}
}

func (d *Device) free(p driver.Ptr) {
	if p != 0 && d.err == nil {
		d.check(d.ctx.Free(p))
	}
}

// alloc is memory of the device, 0 after an error.
func (d *Device) alloc(bytes int, what string) driver.Ptr {
	if d.err != nil {
		return 0
	}
	d.graphs.generation++
	p, err := d.ctx.Alloc(uint64(max(bytes, 1)))
	if err != nil {
		d.check(fmt.Errorf("%d bytes of device memory for %s: %w", bytes, what, err))
	}
	return p
}

// newMemory is an empty memory.
func (d *Device) newMemory() *memory {
	m := &memory{d: d, buffers: new(buffers)}
	runtime.AddCleanup(m, d.reclaimed.add, m.buffers)
	return m
}

// resize gives the memory room for so many values, which are undefined.
func (m *memory) resize(floats int) {
	if floats > m.capacity {
		if m.capacity > 0 || m.halves != 0 {
			m.d.wait()
			m.d.release(m.buffers)
		}
		m.capacity = floats + floats/4
		m.values = m.d.alloc(4*m.capacity, "activations")
	}
	m.floats = floats
	m.written()
}

// written says that the values changed.
func (m *memory) written() { m.halved, m.hosted = false, false }

// half is where the values are in the type that models run in; made says that the caller writes
// them, in 16 bits.
func (m *memory) half(made bool) driver.Ptr {
	if m.d.dtype == compute.Float32 {
		return m.values
	}
	if m.halves == 0 {
		m.halves = m.d.alloc(2*m.capacity, "activations")
	}
	if !made && !m.halved {
		m.d.halve(m)
	}
	m.halved = true
	return m.halves
}

// Host implements compute.Memory: it waits for the device, and copies from it.
func (m *memory) Host() []float32 {
	d := m.d
	d.flush()
	if len(m.host) < 4*m.floats {
		if m.host != nil {
			d.wait()
			d.check(d.ctx.Unpin(m.host))
		}
		var err error
		if m.host, err = d.ctx.Pin(4 * max(m.capacity, m.floats)); err != nil {
			d.check(fmt.Errorf("%d bytes of pinned memory: %w", 4*m.capacity, err))
			m.host = make([]byte, 4*max(m.capacity, m.floats))
		}
		m.hosted = false
	}
	if !(m.hosted && m.replays == d.graphs.replays) && m.floats > 0 && d.err == nil {
		d.check(d.ctx.Download(m.host[:4*m.floats], m.values, d.stream))
		d.wait()
	}
	m.hosted, m.replays = true, d.graphs.replays
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(m.host))), m.floats)
}

// Filled implements compute.Memory: the device has what was written on the host.
func (m *memory) Filled() {
	m.written()
	m.d.flush()
	if len(m.host) >= 4*m.floats && m.floats > 0 && m.d.err == nil {
		m.d.check(m.d.ctx.Upload(m.values, m.host[:4*m.floats], m.d.stream))
	}
	m.d.wait() // the host may change it again
	m.hosted, m.replays = true, m.d.graphs.replays
}

// of is a memory of this device, nil for nil.
func of(m compute.Memory) *memory {
	if m == nil {
		return nil
	}
	return m.(*memory)
}

// at is where a memory's values are, 0 for nil.
func at(m compute.Memory) driver.Ptr { return of(m).at() }

func (m *memory) at() driver.Ptr {
	if m == nil {
		return 0
	}
	return m.values
}

// first is where the first value of a view is.
func first(v compute.View) driver.Ptr { return at(v.Memory) + driver.Ptr(4*v.From) }

// Resize gives t a shape; what it held is not kept.
func (d *Device) Resize(t *compute.Tensor, rows, width int) {
	m, _ := t.Memory.(*memory)
	if m == nil {
		m = d.newMemory()
		t.Memory = m
	}
	m.resize(rows * width)
	t.Rows, t.Width = rows, width
}

// Extend adds rows to t, to be filled; those it has are kept.
func (d *Device) Extend(t *compute.Tensor, rows int) {
	old := of(t.Memory)
	d.flush()
	if need := (t.Rows + rows) * t.Width; need > old.capacity {
		was, held := *old.buffers, old.floats
		*old.buffers = buffers{}
		old.resize(need)
		if d.err == nil {
			d.check(d.ctx.Copy(old.values, was.values, uint64(4*held), d.stream))
		}
		d.wait()
		d.release(&was)
	}
	t.Rows += rows
	old.floats = t.Rows * t.Width
	old.written()
}

// Vector is a copy of v in the device's memory.
func (d *Device) Vector(v []float32) compute.Memory {
	m := d.newMemory()
	m.resize(len(v))
	copy(m.Host(), v)
	m.Filled()
	return m
}

// scratch is memory of the device that grows.
type scratch struct {
	p     driver.Ptr
	bytes int
}

// grow returns memory of so many bytes, the contents of which are undefined.
func (s *scratch) grow(d *Device, bytes int) driver.Ptr {
	if bytes > s.bytes {
		d.wait()
		d.free(s.p)
		s.bytes = bytes + bytes/4
		s.p = d.alloc(s.bytes, "what is computed in")
	}
	return s.p
}
