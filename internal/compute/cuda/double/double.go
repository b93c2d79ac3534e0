// Package double is a driver without a GPU, for tests: it executes the PTX that it is given on the
// host (package ptx). What a stream was asked for happens when the program waits for that stream,
// as late as it may, so that pinned memory that is written too early, or read, shows, and streams
// that do not wait for each other. Errors come as a driver's do: later, from whichever call waits,
// and every call after it fails the same way.
package double

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/ptx"
)

// Driver has one device. The zero value of each option is a reasonable one.
type Driver struct {
	// Info is what the device says of itself; without a name it is an H200's.
	Info driver.Info
	// Threads execute blocks; 0 is 1. Seed chooses the order in which they, and their warps, do:
	// 0 is in turn. Check finds races and reads of what was never written.
	Threads int
	Seed    uint64
	Check   bool
	// Bound refuses calls of threads in which the context is not current.
	Bound bool
	// Fail, if not nil, is asked before each call of the driver's API, by its name there: an error
	// is the call's, and that of all later calls of its context if it is sticky.
	Fail func(call string) error
	// Replace, if not nil, is asked for the text that is executed in the place of PTX that is
	// loaded, without the zero byte.
	Replace func(text []byte) []byte
	// Apart says that devices do not reach each other's memory.
	Apart bool
	// NCCL is what ranks may exchange by, nil for none.
	NCCL *NCCL
	// CUBLASLt is what computes products of many rows, nil for none.
	CUBLASLt *CUBLASLt
	// Observe, if not nil, is told of each kernel that was executed.
	Observe func(kernel string, s ptx.Stats)

	mu sync.Mutex
	// ledgers are those of memory that contexts have exported, by its file's number.
	ledgers map[uint64]*ptx.Ledger
}

// Small is what a device says of itself that has one multiprocessor: its blocks compute in turn
// what a grid of a large device holds at once.
var Small = driver.Info{Name: "small", Major: 9, Multiprocessors: 1, Shared: 227 << 10}

// parsed are the modules of the texts that were read in this process, which nothing changes: of
// what is shipped there are few, and many drivers.
var parsed struct {
	mu      sync.Mutex
	modules map[string]*ptx.Module
}

// parse reads PTX, the same text once.
func parse(text []byte) (*ptx.Module, error) {
	parsed.mu.Lock()
	defer parsed.mu.Unlock()
	if m := parsed.modules[string(text)]; m != nil {
		return m, nil
	}
	m, err := ptx.Read(text)
	if err != nil {
		return nil, err
	}
	if parsed.modules == nil {
		parsed.modules = map[string]*ptx.Module{}
	}
	parsed.modules[string(text)] = m
	return m, nil
}

// Version implements driver.Driver: CUDA 13.0, as on an H200's machines of 2026.
func (d *Driver) Version() int { return 13000 }

// Devices implements driver.Driver.
func (d *Driver) Devices() ([]driver.Info, error) {
	if err := d.fails("cuDeviceGetCount"); err != nil {
		return nil, err
	}
	info := d.Info
	if info.Name == "" {
		info = driver.Info{Name: "PTX machine", Major: 9, Minor: 0, Multiprocessors: 132,
			Shared: 227 << 10, L2: 50 << 20, Memory: info.Memory}
	}
	if info.UUID == "" {
		info.UUID = "GPU-00000000-0000-0000-0000-000000000000"
	}
	if info.Memory == 0 {
		info.Memory = 141 << 30
	}
	return []driver.Info{info}, nil
}

func (d *Driver) fails(call string) error {
	if d.Fail == nil {
		return nil
	}
	return d.Fail(call)
}

// Open implements driver.Driver.
func (d *Driver) Open(ordinal int) (driver.Context, error) {
	list, err := d.Devices()
	if err != nil {
		return nil, err
	}
	if ordinal != 0 {
		return nil, &driver.Error{Call: "cuDeviceGet", Code: 101, Name: "CUDA_ERROR_INVALID_DEVICE"}
	}
	if err := d.fails("cuDevicePrimaryCtxRetain"); err != nil {
		return nil, err
	}
	memory := ptx.NewMemory(list[0].Memory)
	return &Context{d: d, info: list[0], state: state{memory: memory,
		threads: map[int]bool{unix.Gettid(): true},
		allocs:  map[driver.Ptr]uint64{}, exported: map[driver.Ptr]*shared{},
		imported: map[driver.Ptr]*shared{}, pinned: map[*byte]int{},
		machine: &ptx.Machine{Memory: memory, Threads: max(1, d.Threads), Seed: d.Seed,
			Check: d.Check}}}, nil
}

// Context is the device in use. Several threads may call its methods: what one of them is at holds
// up the others, but between two works that a stream was asked for.
type Context struct {
	d    *Driver
	info driver.Info

	mu sync.Mutex // of what follows
	state
}

// state is all of a context until it is closed. Handles are places in its lists, from 1 on.
type state struct {
	memory  *ptx.Memory
	machine *ptx.Machine
	threads map[int]bool // in which it is current
	allocs  map[driver.Ptr]uint64
	used    uint64
	pinned  map[*byte]int
	// exported is memory of this context that others open, imported is theirs.
	exported, imported map[driver.Ptr]*shared

	modules   []*ptx.Module
	functions []function
	streams   []*stream
	graphs    [][]work
	events    driver.Event // how many there are
	// recorder is the thread that records a stream, 0 for none.
	recorder int
	lost     error
}

// stream is what was asked for, and is done in this order.
type stream struct {
	queue   []work
	capture *[]work // nil while nothing is recorded
}

type function struct {
	kernel *ptx.Kernel
	shared int
}

// work is what a stream was asked for: a copy, a fill, a launch, an exchange, or a product.
type work struct {
	call     string
	dst, src driver.Ptr
	bytes    uint64
	value    byte
	to, from []byte
	launch   *driver.Launch
	params   []byte
	gather   *communicator
	product  *product
	divided  bool // of an exchange: each rank has a part for each
}

var (
	_ driver.Driver  = (*Driver)(nil)
	_ driver.Context = (*Context)(nil)
)

// begin is the error of a call that is not made. It is called with the lock, as all is that no
// other package calls.
func (c *Context) begin(call string) error {
	if c.lost != nil {
		return c.lost
	}
	if c.d.Bound && !c.threads[unix.Gettid()] {
		return invalidContext(call)
	}
	err := c.d.fails(call)
	if e := (*driver.Error)(nil); errors.As(err, &e) && e.Sticky() {
		c.lost = err
	}
	return err
}

// apart is begin of a call that a thread must not make while it records a stream. Other threads may
// (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).
func (c *Context) apart(call string) error {
	if c.recorder == unix.Gettid() {
		return &driver.Error{Call: call, Code: 900,
			Name: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}
	}
	return c.begin(call)
}

// Enter implements driver.Context.
func (c *Context) Enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		c.threads[unix.Gettid()] = true
	}
	return c.begin("cuCtxSetCurrent")
}

func invalidContext(call string) error {
	return &driver.Error{Call: call, Code: 201, Name: "CUDA_ERROR_INVALID_CONTEXT"}
}

// Close implements driver.Context.
func (c *Context) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeShared()
	c.state = state{lost: invalidContext("cuCtxGetCurrent")}
	return nil
}

// Left is how many allocations of the device's, or of others that were opened, and of pinned memory
// there are.
func (c *Context) Left() (device, pinned int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.allocs) + len(c.imported), len(c.pinned)
}

// MemInfo implements driver.Context.
func (c *Context) MemInfo() (free, total uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.info.Memory - c.used, c.info.Memory, c.begin("cuMemGetInfo_v2")
}

// Alloc implements driver.Context.
func (c *Context) Alloc(bytes uint64) (driver.Ptr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apart("cuMemAlloc_v2"); err != nil {
		return 0, err
	}
	if bytes == 0 || bytes > c.info.Memory-c.used {
		return 0, outOfMemory("cuMemAlloc_v2")
	}
	p, err := c.memory.Alloc(bytes)
	if err != nil {
		return 0, outOfMemory("cuMemAlloc_v2")
	}
	c.allocs[driver.Ptr(p)] = bytes
	c.used += bytes
	return driver.Ptr(p), nil
}

func outOfMemory(call string) error {
	return &driver.Error{Call: call, Code: driver.OutOfMemory, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
}

// Free implements driver.Context: it waits, as a driver does.
func (c *Context) Free(p driver.Ptr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apart("cuMemFree_v2"); err != nil {
		return err
	}
	if err := c.runAll(); err != nil {
		return err
	}
	bytes, ok := c.allocs[p]
	if !ok {
		return invalid("cuMemFree_v2", "address %#x was not allocated", p)
	}
	delete(c.allocs, p)
	c.used -= bytes
	if err := c.memory.Free(uint64(p)); err != nil {
		return err
	}
	return c.endExport(p)
}

func invalid(call, format string, args ...any) error {
	return &driver.Error{Call: call, Code: 1, Name: "CUDA_ERROR_INVALID_VALUE",
		Detail: fmt.Sprintf(format, args...)}
}

// Pin implements driver.Context.
func (c *Context) Pin(bytes int) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apart("cuMemHostAlloc"); err != nil {
		return nil, err
	}
	// Of words, so that it is aligned.
	words := make([]uint64, (bytes+7)/8)
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes)
	if bytes > 0 {
		if _, err := c.memory.Attach(hostAddress(b), b, nil); err != nil {
			return nil, invalid("cuMemHostAlloc", "%v", err)
		}
	}
	c.pinned[unsafe.SliceData(b)] = bytes
	return b, nil
}

// hostAddress is where kernels reach pinned memory: where it is.
func hostAddress(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Unpin implements driver.Context: it waits, as a driver does.
func (c *Context) Unpin(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apart("cuMemFreeHost"); err != nil {
		return err
	}
	if n, ok := c.pinned[unsafe.SliceData(b)]; !ok || n != len(b) {
		return invalid("cuMemFreeHost", "%d bytes were not pinned", len(b))
	}
	if err := c.runAll(); err != nil {
		return err
	}
	delete(c.pinned, unsafe.SliceData(b))
	if len(b) == 0 {
		return nil
	}
	return c.memory.Free(hostAddress(b))
}

// isPinned says whether all of b is.
func (c *Context) isPinned(b []byte) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	for p, n := range c.pinned {
		begin := uintptr(unsafe.Pointer(p))
		if at >= begin && at+uintptr(len(b)) <= begin+uintptr(n) {
			return true
		}
	}
	return false
}

// Load implements driver.Context: of images it knows PTX.
func (c *Context) Load(image []byte) (driver.Module, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.apart("cuModuleLoadDataEx"); err != nil {
		return 0, err
	}
	if bytes.HasPrefix(image, []byte("\x7fELF")) {
		return 0, &driver.Error{Call: "cuModuleLoadDataEx", Code: driver.NoBinaryForGPU,
			Name: "CUDA_ERROR_NO_BINARY_FOR_GPU", Detail: "a machine executes only PTX"}
	}
	if len(image) == 0 || image[len(image)-1] != 0 {
		return 0, &driver.Error{Call: "cuModuleLoadDataEx", Code: driver.InvalidImage,
			Name: "CUDA_ERROR_INVALID_IMAGE", Detail: "PTX does not end with a zero byte"}
	}
	text, parse := image[:len(image)-1], parse
	if c.d.Replace != nil {
		if other := c.d.Replace(text); !bytes.Equal(other, text) {
			text, parse = other, ptx.Read // which is not asked for again
		}
	}
	m, err := parse(text)
	if err != nil {
		return 0, &driver.Error{Call: "cuModuleLoadDataEx", Code: driver.InvalidPTX,
			Name: "CUDA_ERROR_INVALID_PTX", Detail: err.Error()}
	}
	c.modules = append(c.modules, m)
	return driver.Module(len(c.modules)), nil
}

// Function implements driver.Context.
func (c *Context) Function(m driver.Module, name string) (driver.Function, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin("cuModuleGetFunction"); err != nil {
		return 0, err
	}
	k := c.modules[m-1].Kernel(name)
	if k == nil {
		return 0, &driver.Error{Call: "cuModuleGetFunction", Code: driver.NotFound,
			Name: "CUDA_ERROR_NOT_FOUND", Detail: name}
	}
	c.functions = append(c.functions, function{kernel: k, shared: defaultShared})
	return driver.Function(len(c.functions)), nil
}

// decoded has a kernel decoded, which takes the time that loading all of a module would.
func (c *Context) decoded(call string, k *ptx.Kernel) error {
	if err := k.Decode(); err != nil {
		return &driver.Error{Call: call, Code: driver.InvalidPTX, Name: "CUDA_ERROR_INVALID_PTX",
			Detail: err.Error()}
	}
	return nil
}

// defaultShared is the dynamic shared memory that a function may have without being allowed more.
const defaultShared = 48 << 10

// AllowShared implements driver.Context.
func (c *Context) AllowShared(f driver.Function, bytes int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin("cuFuncSetAttribute"); err != nil {
		return err
	}
	y := &c.functions[f-1]
	if bytes > c.info.Shared { // with what the kernel declares, a launch tells
		return invalid("cuFuncSetAttribute", "%d bytes of shared memory of %d", bytes,
			c.info.Shared)
	}
	y.shared = max(y.shared, bytes)
	return nil
}

// TensorMap implements driver.Context.
func (c *Context) TensorMap(t *driver.Tensor) (driver.TensorMap, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	const call = "cuTensorMapEncodeTiled"
	if err := c.begin(call); err != nil {
		return driver.TensorMap{}, err
	}
	const columns = 64 // of a box: the 128 bytes of a swizzle
	m := ptx.TensorMap{Base: uint64(t.Base), ElementBytes: 2, Swizzle: 2 * columns,
		Dims: []uint32{uint32(t.Columns), uint32(t.Rows)}, Strides: []uint64{uint64(t.Stride)},
		Box: []uint32{columns, uint32(t.Box)}}
	if t.Places > 0 {
		if t.Apart <= 0 || t.Stride%t.Apart != 0 {
			return driver.TensorMap{}, invalid(call, "places %d bytes apart of rows of %d", t.Apart,
				t.Stride)
		}
		m.Dims = slices.Insert(m.Dims, 1, uint32(t.Places))
		m.Strides = slices.Insert(m.Strides, 0, uint64(t.Apart))
		m.Box = slices.Insert(m.Box, 1, 1)
	}
	b, err := m.Encode()
	if err != nil {
		return driver.TensorMap{}, invalid(call, "%v", err)
	}
	return *(*driver.TensorMap)(unsafe.Pointer(&b)), nil
}

// Resources implements driver.Context: a machine has as many registers as PTX says.
func (c *Context) Resources(f driver.Function) (registers, shared, local int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.functions[f-1].kernel
	if err := c.decoded("cuFuncGetAttribute", k); err != nil {
		return 0, 0, 0, err
	}
	return 0, int(k.StaticShared), 0, c.begin("cuFuncGetAttribute")
}

// NewStream implements driver.Context.
func (c *Context) NewStream() (driver.Stream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams = append(c.streams, new(stream))
	return driver.Stream(len(c.streams)), c.begin("cuStreamCreateWithPriority")
}
