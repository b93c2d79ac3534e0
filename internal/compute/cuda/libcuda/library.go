// Package libcuda is NVIDIA's driver, libcuda.so.1, as a driver.Driver. The library is loaded when
// Open asks for it: a program with this package also starts where no GPU is, and says what is
// missing. It needs no C compiler to build, and makes the program a dynamic one (glibc).
package libcuda

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// OldestVersion is that of the oldest driver that Open accepts: 11.0, which reads PTX 7.0.
const OldestVersion = 11000

// Library is a loaded driver. It stays loaded until the process ends. Its methods may be called by
// several goroutines at a time.
type Library struct {
	path      string
	version   int
	addresses *addresses

	mu       sync.Mutex
	repaired []Repair
}

var _ driver.Driver = (*Library)(nil)

// Open loads and initialises the driver at a path; without one it searches (Find). An error lists
// what was tried, or says which of a stub library, a driver that is too old and a machine without a
// device was found, and what to do. It is a *driver.Error where the driver gave a code.
func Open(path string) (*Library, error) {
	handle, place, err := Find(path, soname)
	if err != nil {
		return nil, fmt.Errorf("no CUDA driver was found: install NVIDIA's driver, or start the "+
			"container with its GPUs (docker run --gpus all, or nvidia.com/gpu in a pod's "+
			"limits); %w", err)
	}
	l := &Library{path: place, addresses: lookUp(handle)}
	if l.addresses[cuInit] == 0 || l.addresses[cuDriverGetVersion] == 0 {
		return nil, fmt.Errorf("%s lacks cuInit: it is no CUDA driver", place)
	}
	if file := FileAt(l.addresses[cuInit]); file != "" {
		l.path = file
	}
	if err := l.initialise(); err != nil {
		return nil, err
	}
	return l, nil
}

// Path is the file that was loaded, or the name it was found by where the system does not tell.
func (l *Library) Path() string { return l.path }

// Version is the newest CUDA version that the driver supports: 12090 is 12.9.
func (l *Library) Version() int { return l.version }

// Repaired lists the handlers of signals that the driver installed in a way that would have ended
// the process at the first such signal, and that were mended (RepairSignals): for a log.
func (l *Library) Repaired() []Repair {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.repaired)
}

// repair mends handlers of signals after a call that may have installed some.
func (l *Library) repair() error {
	found, err := RepairSignals()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.repaired = append(l.repaired, found...)
	return err
}

// initialise makes the driver ready. Its version comes first: an old one may lack other exports.
func (l *Library) initialise() error {
	var version int32
	if code := l.call(cuDriverGetVersion, uintptr(unsafe.Pointer(&version))); code != 0 {
		return l.refused(cuDriverGetVersion, code)
	}
	l.version = int(version)
	if l.version < OldestVersion {
		return fmt.Errorf("the driver %s is for CUDA %s, and %s is the least that is needed: "+
			"update NVIDIA's driver", l.path, VersionText(l.version), VersionText(OldestVersion))
	}
	if err := l.addresses.complete(l.path); err != nil {
		return err
	}
	if code := l.call(cuInit, 0); code != 0 {
		return l.refused(cuInit, code)
	}
	if err := l.repair(); err != nil {
		return err
	}
	return l.someDevice()
}

// someDevice wants one device at least: a driver may start without.
func (l *Library) someDevice() error {
	n, err := l.count()
	if err != nil {
		return err
	}
	if n == 0 {
		return l.refused(cuDeviceGetCount, driver.NoDevice)
	}
	return nil
}

// call calls an export and returns its CUresult. An argument that is the address of Go memory is
// written uintptr(unsafe.Pointer(&x)) in the call itself: the compiler then leaves x where it is,
// and alive, until the call returns.
//
//go:uintptrescapes
func (l *Library) call(e export, args ...uintptr) int32 {
	code, _, _ := purego.SyscallN(l.addresses[e], args...)
	return int32(code)
}

// errorName is the driver's name of a code, "" if it has none, or cannot tell.
func (l *Library) errorName(code int32) string {
	if l.addresses[cuGetErrorName] == 0 {
		return ""
	}
	var name *byte
	if l.call(cuGetErrorName, uintptr(code), uintptr(unsafe.Pointer(&name))) != 0 {
		return ""
	}
	return unix.BytePtrToString(name)
}

// VersionText is a version as people write it: 12.9 for 12090.
func VersionText(version int) string {
	return fmt.Sprintf("%d.%d", version/1000, version%1000/10)
}
