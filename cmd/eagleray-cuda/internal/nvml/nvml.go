// Package nvml measures GPUs by NVIDIA's management library, libnvidia-ml.so.1, which is a part of
// the driver. The library is loaded when Open asks for it. Its functions return a code, and take
// what they fill by its address: what a GPU, a part of one (MIG) or an old driver does not have is
// a code that is not 0, or a function that is not there.
package nvml

import (
	"cmp"
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute/cuda/libcuda"
	"github.com/eagleray/eagleray/internal/link/status"
)

// soname is how the library is known to the dynamic linker.
const soname = "libnvidia-ml.so.1"

// export is a function of the library.
type export int

const (
	initialise export = iota
	driverVersion
	errorText
	handleByUUID
	memoryInfo
	utilizationRates
	clockInfo
	powerUsage
	temperature
	throttleReasons
	totalECCErrors
	exports
)

// names are those by which the exports are looked up. A later name of the reasons, of CUDA 12.2,
// did not replace this one.
var names = [exports]string{
	initialise:       "nvmlInit_v2",
	driverVersion:    "nvmlSystemGetDriverVersion",
	errorText:        "nvmlErrorString",
	handleByUUID:     "nvmlDeviceGetHandleByUUID",
	memoryInfo:       "nvmlDeviceGetMemoryInfo",
	utilizationRates: "nvmlDeviceGetUtilizationRates",
	clockInfo:        "nvmlDeviceGetClockInfo",
	powerUsage:       "nvmlDeviceGetPowerUsage",
	temperature:      "nvmlDeviceGetTemperature",
	throttleReasons:  "nvmlDeviceGetCurrentClocksThrottleReasons",
	totalECCErrors:   "nvmlDeviceGetTotalEccErrors",
}

// Arguments of the exports.
const (
	clockSM         = 1 // nvmlClockType_t
	clockMemory     = 2
	sensorGPU       = 0 // nvmlTemperatureSensors_t
	corrected       = 0 // nvmlMemoryErrorType_t
	uncorrected     = 1
	sinceDriver     = 0 // NVML_VOLATILE_ECC
	versionBytes    = 80
	missingFunction = 13 // NVML_ERROR_FUNCTION_NOT_FOUND
)

// memory is nvmlMemory_t, in bytes; utilization is nvmlUtilization_t, in hundredths.
type (
	memory      struct{ total, free, used uint64 }
	utilization struct{ gpu, memory uint32 }
)

// Library is the loaded library. It stays loaded until the process ends. Its methods may be called
// by several goroutines at a time.
type Library struct {
	path, driver string
	addresses    [exports]uintptr
}

// Open loads and initialises the library at a path; without one it searches where the driver is
// (libcuda.Find). An error lists what was tried, or names the call that failed.
func Open(path string) (*Library, error) {
	handle, place, err := libcuda.Find(path, soname)
	if err != nil {
		return nil, fmt.Errorf("no NVML was found: %w", err)
	}
	l := &Library{path: place}
	libcuda.LookUp(handle, names[:], l.addresses[:]) // not all are needed
	if file := libcuda.FileAt(l.addresses[initialise]); file != "" {
		l.path = file
	}
	if err := l.failure(initialise, l.call(initialise)); err != nil {
		return nil, err
	}
	if _, err := libcuda.RepairSignals(); err != nil {
		return nil, err
	}
	var version [versionBytes]byte
	code := l.call(driverVersion, uintptr(unsafe.Pointer(&version)), versionBytes)
	if err := l.failure(driverVersion, code); err != nil {
		return nil, err
	}
	l.driver = unix.ByteSliceToString(version[:])
	return l, nil
}

// Path is the file that was loaded, or the name it was found by where the system does not tell.
func (l *Library) Path() string { return l.path }

// Driver is the driver's version, as "570.86.15".
func (l *Library) Driver() string { return l.driver }

// Meter is what measures a GPU, or a part of one, by its UUID as nvidia-smi writes it. It allocates
// nothing.
func (l *Library) Meter(uuid string) (func(*status.GPU), error) {
	text, err := unix.BytePtrFromString(uuid)
	if err != nil {
		return nil, fmt.Errorf("UUID %q: %w", uuid, err)
	}
	m := &meter{l: l}
	code := l.call(handleByUUID, uintptr(unsafe.Pointer(text)), uintptr(unsafe.Pointer(&m.device)))
	if err := l.failure(handleByUUID, code); err != nil {
		return nil, fmt.Errorf("GPU %s: %w", uuid, err)
	}
	return m.measure, nil
}

// meter is a GPU, where its answers are put, and the arguments of a call. It lies on the heap,
// which C may write to while the meter is in use.
type meter struct {
	l      *Library
	device uintptr
	args   [4]uintptr
	memory memory
	shares utilization
	number uint32
	count  uint64
}

func (m *meter) measure(g *status.GPU) {
	*g = status.GPU{}
	if m.fill(unsafe.Pointer(&m.memory), memoryInfo) {
		g.Know(status.GPUMemoryUsed, m.memory.used)
		g.Know(status.GPUMemoryTotal, m.memory.total)
	}
	if m.fill(unsafe.Pointer(&m.shares), utilizationRates) {
		g.Know(status.GPUBusy, uint64(m.shares.gpu))
		g.Know(status.GPUMemoryBusy, uint64(m.shares.memory))
	}
	m.know(g, status.GPUClock, clockInfo, clockSM)
	m.know(g, status.GPUMemoryClock, clockInfo, clockMemory)
	m.know(g, status.GPUPower, powerUsage)
	m.know(g, status.GPUTemperature, temperature, sensorGPU)
	if m.fill(unsafe.Pointer(&m.count), throttleReasons) {
		g.Know(status.GPUThrottled, m.count)
	}
	if m.fill(unsafe.Pointer(&m.count), totalECCErrors, corrected, sinceDriver) {
		g.Know(status.GPUCorrected, m.count)
	}
	if m.fill(unsafe.Pointer(&m.count), totalECCErrors, uncorrected, sinceDriver) {
		g.Know(status.GPUUncorrected, m.count)
	}
}

// know sets a figure that is an unsigned int, if the export has it.
func (m *meter) know(g *status.GPU, f status.Figure, e export, args ...uintptr) {
	if m.fill(unsafe.Pointer(&m.number), e, args...) {
		g.Know(f, uint64(m.number))
	}
}

// fill calls an export of the device, whose last argument is where it writes: a part of the meter.
func (m *meter) fill(to unsafe.Pointer, e export, args ...uintptr) bool {
	m.args[0] = m.device
	n := 1 + copy(m.args[1:], args)
	m.args[n] = uintptr(to)
	return m.l.call(e, m.args[:n+1]...) == 0
}

// call calls an export and returns its nvmlReturn_t. An argument that is the address of Go memory
// is written uintptr(unsafe.Pointer(&x)) in the call itself: the compiler then leaves x where it
// is, and alive, until the call returns.
//
//go:uintptrescapes
func (l *Library) call(e export, args ...uintptr) int32 {
	if l.addresses[e] == 0 {
		return missingFunction
	}
	code, _, _ := purego.SyscallN(l.addresses[e], args...)
	return int32(code)
}

// failure is the error of a code, with the library's words for it.
func (l *Library) failure(e export, code int32) error {
	switch {
	case code == 0:
		return nil
	case l.addresses[e] == 0:
		return fmt.Errorf("%s lacks %s", l.path, names[e])
	}
	text := cmp.Or(libcuda.Text(l.addresses[errorText], uintptr(code)), "unknown")
	return fmt.Errorf("%s of %s: %s (%d)", names[e], l.path, text, code)
}
