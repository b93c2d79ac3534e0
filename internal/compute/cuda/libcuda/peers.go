package libcuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// lazyPeerAccess has memory of another device reached from this one
// (CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS).
const lazyPeerAccess = 1

// Reaches says whether kernels of a device may use the memory of another one.
func (l *Library) Reaches(ordinal, other int) (bool, error) {
	a, err := l.device(ordinal)
	if err != nil {
		return false, err
	}
	b, err := l.device(other)
	if err != nil {
		return false, err
	}
	var can int32
	code := l.call(cuDeviceCanAccessPeer, uintptr(unsafe.Pointer(&can)), uintptr(a), uintptr(b))
	if code != 0 {
		return false, l.failure(cuDeviceCanAccessPeer, code, fmt.Sprintf("devices %d and %d",
			ordinal, other))
	}
	return can != 0, nil
}

// Export is what another process opens memory of Alloc by.
func (c *context) Export(p driver.Ptr) (h driver.Handle, err error) {
	if err := c.ended(); err != nil {
		return h, err
	}
	code := c.library.call(cuIpcGetMemHandle, uintptr(unsafe.Pointer(&h)), uintptr(p))
	return h, c.check(cuIpcGetMemHandle, code, "")
}

// Import opens memory that another process exported: this one cannot open its own.
func (c *context) Import(h driver.Handle) (driver.Ptr, error) {
	if err := c.ended(); err != nil {
		return 0, err
	}
	var p driver.Ptr
	if code := c.library.openHandle(&p, &h); code != 0 {
		return 0, c.failed(cuIpcOpenMemHandle, code, "memory of another process")
	}
	c.imported.add(p)
	return p, nil
}

// openHandle passes a handle by value. C does so with a struct of more than 16 bytes on the stack,
// behind what does not fit in registers, of which there are six (System V ABI for AMD64, 3.2.3), or
// by the address of a copy (AAPCS64, 6.8.2).
func (l *Library) openHandle(p *driver.Ptr, h *driver.Handle) int32 {
	if runtime.GOARCH == "arm64" {
		return l.call(cuIpcOpenMemHandle, uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(h)),
			lazyPeerAccess)
	}
	w := *(*[8]uintptr)(unsafe.Pointer(h))
	return l.call(cuIpcOpenMemHandle, uintptr(unsafe.Pointer(p)), lazyPeerAccess, 0, 0, 0, 0,
		w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7])
}

// CloseImport closes memory of Import.
func (c *context) CloseImport(p driver.Ptr) error {
	return release(c, &c.imported, p, cuIpcCloseMemHandle, uintptr(p))
}
