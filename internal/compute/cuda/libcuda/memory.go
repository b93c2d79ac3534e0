package libcuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// portableMapped are the flags of pinned memory: all contexts know it as such, and the device reads
// and writes it at its own address.
const portableMapped = 1 | 2

// span is a piece of pinned memory.
type span struct {
	address uintptr
	bytes   int
}

func spanOf(b []byte) span {
	return span{uintptr(unsafe.Pointer(unsafe.SliceData(b))), len(b)}
}

// MemInfo is how many bytes of the device's memory are free, and how many there are.
func (c *context) MemInfo() (free, total uint64, err error) {
	if err := c.ended(); err != nil {
		return 0, 0, err
	}
	code := c.library.call(cuMemGetInfo, uintptr(unsafe.Pointer(&free)),
		uintptr(unsafe.Pointer(&total)))
	return free, total, c.check(cuMemGetInfo, code, "")
}

// Alloc reserves memory of the device, whose content is undefined. The error says how much is free
// if that is too little.
func (c *context) Alloc(bytes uint64) (driver.Ptr, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	var p driver.Ptr
	code := c.library.call(cuMemAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes))
	if code != 0 {
		return 0, c.failed(cuMemAlloc, code, c.shortage(bytes))
	}
	c.memory.add(p)
	return p, nil
}

// shortage says how many bytes were asked for, and what there is.
func (c *context) shortage(bytes uint64) string {
	free, total, err := c.MemInfo()
	if err != nil {
		return fmt.Sprintf("%d bytes", bytes)
	}
	return fmt.Sprintf("%d bytes, and %d of the device's %d are free", bytes, free, total)
}

// Free releases memory of Alloc.
func (c *context) Free(p driver.Ptr) error {
	return release(c, &c.memory, p, cuMemFree, uintptr(p))
}

// Pin is memory of the host, no part of Go's heap, that the device copies from and to by itself,
// and that kernels reach at the address it has here. It is released by Unpin with this same slice,
// or by Close: who reads it afterwards crashes.
func (c *context) Pin(bytes int) ([]byte, error) {
	if err := c.ended(); err != nil {
		return nil, err
	}
	if bytes <= 0 {
		return nil, fmt.Errorf("pinned memory of %d bytes", bytes)
	}
	var p *byte // which C sets: an address that Go need not make a pointer of
	code := c.library.call(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes),
		portableMapped)
	if code != 0 {
		return nil, c.failed(cuMemHostAlloc, code, fmt.Sprintf("%d bytes of the host", bytes))
	}
	b := unsafe.Slice(p, bytes)
	c.pinned.add(spanOf(b))
	return b, nil
}

// Unpin releases memory of Pin, which has to be the slice that Pin returned and not a part of it.
func (c *context) Unpin(b []byte) error {
	s := spanOf(b)
	return release(c, &c.pinned, s, cuMemFreeHost, s.address)
}

// Upload enqueues a copy to the device; of no bytes it does nothing.
func (c *context) Upload(dst driver.Ptr, src []byte, s driver.Stream) error {
	if len(src) == 0 {
		return c.ended()
	}
	err := c.call(cuMemcpyHtoDAsync, uintptr(dst), spanOf(src).address, uintptr(len(src)),
		uintptr(s))
	runtime.KeepAlive(src)
	return err
}

// Download enqueues a copy from the device; of no bytes it does nothing.
func (c *context) Download(dst []byte, src driver.Ptr, s driver.Stream) error {
	if len(dst) == 0 {
		return c.ended()
	}
	err := c.call(cuMemcpyDtoHAsync, spanOf(dst).address, uintptr(src), uintptr(len(dst)),
		uintptr(s))
	runtime.KeepAlive(dst)
	return err
}

// Copy enqueues a copy within the device, of ranges that do not overlap; of no bytes it does
// nothing.
func (c *context) Copy(dst, src driver.Ptr, bytes uint64, s driver.Stream) error {
	if bytes == 0 {
		return c.ended()
	}
	return c.call(cuMemcpyDtoDAsync, uintptr(dst), uintptr(src), uintptr(bytes), uintptr(s))
}

// Fill enqueues the setting of bytes to a value; of no bytes it does nothing.
func (c *context) Fill(dst driver.Ptr, value byte, bytes uint64, s driver.Stream) error {
	if bytes == 0 {
		return c.ended()
	}
	return c.call(cuMemsetD8Async, uintptr(dst), uintptr(value), uintptr(bytes), uintptr(s))
}
