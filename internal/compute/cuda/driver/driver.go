// Package driver is the line between a CUDA device and what executes its kernels. It has the few
// calls of the CUDA driver API that the device needs, by their meaning there: libcuda is NVIDIA's
// driver, double a machine for PTX on the host.
package driver

import (
	"fmt"
	"time"
	"unsafe"
)

// Handles of a driver. Ptr is an address in a device's memory.
type (
	Ptr      uint64
	Module   uintptr
	Function uintptr
	Stream   uintptr
	Event    uintptr
	Graph    uintptr // instantiated
)

// Handle stands for memory of a process that others open (CUipcMemHandle).
type Handle [64]byte

// ExportGrain is what drivers divide among small allocations.
const ExportGrain = 2 << 20

// Driver finds devices. Its errors, and those of a Context, are an *Error where the driver has a
// code for them.
type Driver interface {
	// Version is the newest CUDA version that the driver supports: 12090 is 12.9.
	Version() int
	// Devices lists those that this process may use, by ordinal.
	Devices() ([]Info, error)
	// Open makes the primary context of a device, current in the calling thread. All calls of the
	// Context are made by that thread, which the caller has locked to its goroutine; others call
	// Context.Enter first.
	Open(ordinal int) (Context, error)
	// Reaches says whether kernels of a device may use the memory of another one.
	Reaches(ordinal, other int) (bool, error)
}

// Info is what a driver knows of a device.
type Info struct {
	Name string
	// UUID is "GPU-" or "MIG-" and a UUID in lower case, as nvidia-smi writes it; PCI its address
	// on the bus, "0000:3b:00.0".
	UUID, PCI string
	// Major and Minor are its compute capability: 9 and 0 is sm_90.
	Major, Minor int
	// Multiprocessors is how many it has, Shared the most bytes of shared memory of a block, L2 the
	// bytes of its second cache.
	Multiprocessors, Shared, L2 int
	// Memory is its bytes.
	Memory uint64
}

// Arch is "sm_90" for a compute capability of 9.0.
func (i Info) Arch() string { return fmt.Sprintf("sm_%d%d", i.Major, i.Minor) }

// Launch is a kernel's launch. Params is where its one parameter, a struct, lies; it is copied
// before the call returns.
type Launch struct {
	Function    Function
	Grid, Block [3]uint32
	Shared      uint32 // dynamic shared memory in bytes
	Params      unsafe.Pointer
}

// Context is a device in use. Calls with a Stream only enqueue: errors of what was enqueued earlier
// may be returned by any later call.
type Context interface {
	// Enter makes the context current in the calling thread.
	Enter() error
	// Close gives all its memory back.
	Close() error

	// MemInfo is how many bytes of the device's memory are free, and how many there are.
	MemInfo() (free, total uint64, err error)
	Alloc(bytes uint64) (Ptr, error)
	Free(p Ptr) error
	// Pin is memory of the host that the device copies from and to by itself, and that kernels
	// reach at the address it has here.
	Pin(bytes int) ([]byte, error)
	Unpin(b []byte) error
	// Export is what another process of the machine opens memory of Alloc by: all of it, and maybe
	// what lies beside it, if it is no multiple of ExportGrain. It is freed when others have closed
	// it.
	Export(p Ptr) (Handle, error)
	// Import opens memory that another process exported, CloseImport closes it.
	Import(h Handle) (Ptr, error)
	CloseImport(p Ptr) error

	// Load reads a module: a cubin, or PTX, which ends with a zero byte.
	Load(image []byte) (Module, error)
	Function(m Module, name string) (Function, error)
	// AllowShared lets a function have so much dynamic shared memory.
	AllowShared(f Function, bytes int) error
	// TensorMap describes a tensor to copies of kernels for sm_90 and later.
	TensorMap(t *Tensor) (TensorMap, error)
	// Resources are a function's registers of a thread, and its bytes of static shared memory and
	// of local memory of a thread.
	Resources(f Function) (registers, shared, local int, err error)

	NewStream() (Stream, error)
	// Upload copies to the device, Download from it: src and dst are pinned, and not the caller's
	// until the stream is there.
	Upload(dst Ptr, src []byte, s Stream) error
	Download(dst []byte, src Ptr, s Stream) error
	Copy(dst, src Ptr, bytes uint64, s Stream) error
	// Fill sets so many bytes.
	Fill(dst Ptr, value byte, bytes uint64, s Stream) error
	Launch(l *Launch, s Stream) error
	// Synchronize waits until the stream has done all that was enqueued.
	Synchronize(s Stream) error

	NewEvent() (Event, error)
	Record(e Event, s Stream) error
	// Elapsed is the time between the records of two events that are done.
	Elapsed(from, to Event) (time.Duration, error)

	// BeginCapture has the stream's calls recorded until EndCapture, which makes a graph of them;
	// Replay enqueues all of it.
	BeginCapture(s Stream) error
	EndCapture(s Stream) (Graph, error)
	Replay(g Graph, s Stream) error
	Destroy(g Graph) error
}

// Codes of CUresult that callers act on.
const (
	OutOfMemory           = 2
	StubLibrary           = 34
	NoDevice              = 100
	InvalidImage          = 200
	NoBinaryForGPU        = 209
	PeerUnsupported       = 217
	UncorrectableECC      = 214
	NVLinkUncorrectable   = 220
	InvalidPTX            = 218
	UnsupportedPTXVersion = 222
	NotFound              = 500
	NotReady              = 600
	IllegalAddress        = 700
	LaunchTimeout         = 702
	LaunchFailed          = 719
	Unknown               = 999
)

// Error is a code that the driver returned.
type Error struct {
	// Call is the function of the driver, Code its CUresult, Name the code's ("" if it has none).
	Call string
	Code int
	Name string
	// Detail is what else is known: the log of a compilation, the kernel that failed.
	Detail string
}

// Error names the call and the code.
func (e *Error) Error() string {
	name := e.Name
	if name == "" {
		name = fmt.Sprintf("CUDA error %d", e.Code)
	} else {
		name = fmt.Sprintf("%s (%d)", name, e.Code)
	}
	if e.Detail != "" {
		return fmt.Sprintf("%s: %s: %s", e.Call, name, e.Detail)
	}
	return e.Call + ": " + name
}

// Sticky says that the context is lost, and with it its process: every later call fails as well.
func (e *Error) Sticky() bool {
	switch e.Code {
	case IllegalAddress, LaunchTimeout, 709, 710, UncorrectableECC, NVLinkUncorrectable, Unknown:
		return true
	}
	return e.Code >= 714 && e.Code <= 719
}

// Tensor is rows of numbers of 16 bits in a device's memory, of which copies take boxes of 64
// columns and some rows, at most 256. One of several places is as many tensors as there are, which
// may have numbers in common: the place is a dimension between columns and rows.
type Tensor struct {
	Base               Ptr // a multiple of 16
	Columns, Rows, Box int
	Stride             int // bytes from a row to the next, a multiple of 16
	Places             int // 0 for one without that dimension
	Apart              int // bytes from a place to the next, a multiple of 16 that divides Stride
}

// TensorMap is a Tensor as kernels have it (CUtensorMap).
type TensorMap [16]uint64
