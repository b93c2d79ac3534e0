// Package cuda is the CUDA backend: it puts kernels behind the calls that a model's layers are
// written in. What executes them is a driver.Driver: NVIDIA's, or a machine for their PTX.
//
// Activations are float32, products multiply numbers of 16 bits and sum in float32. The bits of
// each element depend on its own row, the weights and the architecture, never on the other rows of
// a batch, on the grid or on how work was cut.
//
// A call enqueues work and returns: what a step computes is known when something waits for it.
package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// Device is one rank's GPU. Its methods are called from one goroutine at a time, which is locked to
// its thread if the driver wants that.
type Device struct {
	driver  driver.Driver
	ordinal int
	ctx     driver.Context
	info    driver.Info
	stream  driver.Stream
	dtype   compute.DType
	pool    *pool.Pool
	comms   []*Comm // the ways to other ranks that are connected
	nccl    NCCL

	functions [kernels.Count]driver.Function
	launches  [kernels.Count]uint64
	moved     *atomic.Uint64 // nil for none
	launched  driver.Launch
	params    [512]uint64 // of the launch at hand
	err       error       // the first of the driver's

	reclaimed *reclaimed
	groups    warpGroups
	library   library
	ring      ring
	step      step
	padded    compute.Batch
	filled    int // rows of it that only fill it
	graphs    graphs
	parts     scratch // the chunks of products
	pending   pending
	segments  scratch // of attention
	staging   staging
	lanes     lanes
	raw       scratch // codes, before they lie as kernels read them
	ordered   scratch // inputs of products, in the order of a weight's columns
	inputSums scratch // sums of inputs, by group of a weight with offsets
	mix       mixing
	sampling  sampling
	among     among
}

// Options configure a Device.
type Options struct {
	// Driver has the device, Ordinal is its number there.
	Driver  driver.Driver
	Ordinal int
	// DType is what models run in: bfloat16, float16 or float32.
	DType compute.DType
	// Threads are those of the host, for work of the rank's own.
	Threads int
	// NCCL is what ranks exchange by that do not reach each other's memory.
	NCCL NCCL
	// CUBLASLt is what may compute products of many rows.
	CUBLASLt CUBLASLt
	// Eager has steps computed launch by launch, not by graphs that were recorded.
	Eager bool
	// PTX has the driver compile the kernels, also for a device that there is machine code for.
	PTX bool
}

// NCCL is how ranks may use the library.
type NCCL struct {
	// Open opens it, when it is needed; nil for none.
	Open func() (driver.NCCL, error)
	// Between says that it may be used between machines, where it does not encrypt.
	Between bool
}

// New opens a device and loads its kernels. Close frees it.
func New(opt Options) (*Device, error) {
	devices, err := opt.Driver.Devices()
	if err != nil {
		return nil, fmt.Errorf("list CUDA devices: %w", err)
	}
	if opt.Ordinal < 0 || opt.Ordinal >= len(devices) {
		return nil, fmt.Errorf("CUDA device %d of %d", opt.Ordinal, len(devices))
	}
	d := &Device{driver: opt.Driver, ordinal: opt.Ordinal, dtype: opt.DType,
		info: devices[opt.Ordinal], nccl: opt.NCCL, pool: pool.New(opt.Threads),
		graphs: graphs{off: opt.Eager, made: map[repeated]*graph{}}, reclaimed: new(reclaimed)}
	if d.info.Major < kernels.OldestMajor {
		d.pool.Close()
		return nil, fmt.Errorf("CUDA device %d, %s, is of %s: sm_%d0 (Ampere) or later is needed",
			opt.Ordinal, d.info.Name, d.info.Arch(), kernels.OldestMajor)
	}
	if d.ctx, err = opt.Driver.Open(opt.Ordinal); err != nil {
		d.pool.Close()
		return nil, fmt.Errorf("open CUDA device %d, %s: %w", opt.Ordinal, d.info.Name, err)
	}
	if err := d.load(&opt); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// load makes the stream and loads the kernels.
func (d *Device) load(opt *Options) (err error) {
	if d.stream, err = d.ctx.NewStream(); err != nil {
		return fmt.Errorf("stream of CUDA device: %w", err)
	}
	cubins := map[string][]byte{}
	if !opt.PTX {
		if cubins, err = kernels.Cubins(d.info.Major, d.info.Minor); err != nil {
			return err
		}
	}
	modules := map[string]driver.Module{}
	for _, file := range kernels.Files(d.info.Major, d.info.Minor) {
		if modules[file], err = d.module(file, cubins[file]); err != nil {
			return fmt.Errorf("load kernels of %s for %s: %w", file, d.info.Arch(), err)
		}
	}
	for k := range kernels.Count {
		if !k.Fits(d.info.Major, d.info.Minor) {
			continue
		}
		f, err := d.ctx.Function(modules[k.File()], k.Name())
		if err != nil {
			return fmt.Errorf("kernel %s: %w", k.Name(), err)
		}
		d.functions[k] = f
	}
	if err := d.allowShared(); err != nil {
		return err
	}
	if err := d.step.ring.init(d); err != nil {
		return err
	}
	if err := d.ring.init(d); err != nil {
		return err
	}
	if err := d.findWarpGroups(); err != nil {
		return err
	}
	return d.openLibrary(opt.CUBLASLt)
}

// module loads a file's kernels as machine code, nil for none, or as PTX where the driver does not
// take that.
func (d *Device) module(file string, cubin []byte) (driver.Module, error) {
	if cubin != nil {
		m, err := d.ctx.Load(cubin)
		if e := (*driver.Error)(nil); !errors.As(err, &e) || e.Code != driver.NoBinaryForGPU {
			return m, err
		}
	}
	text, err := kernels.PTX(file)
	if err != nil {
		return 0, err
	}
	return d.ctx.Load(text)
}

// Close frees the device's memory and ends its threads; it may not be used afterwards, but for Err.
func (d *Device) Close() {
	d.pool.Close()
	for _, c := range slices.Clone(d.comms) {
		c.Leave()
	}
	d.closeLibrary()
	d.check(d.ctx.Close())
}

// DropSpare frees memory that nothing refers to any more: the second collection is over when what
// the first one found has been told of.
func (d *Device) DropSpare() {
	runtime.GC()
	runtime.GC()
	d.reclaim()
}

// Count has launches counted, until Count(nil) returns.
func (d *Device) Count(moved *atomic.Uint64) {
	d.moved = moved
	d.pool.Count(moved)
}

// ISA is what the bits of what the device computes are of: its architecture, and how it sums.
func (d *Device) ISA() string {
	if d.library.fast {
		return d.info.Arch() + " --cuda-fast"
	}
	return d.info.Arch()
}

// Pool is threads of the host, for work of the rank's own.
func (d *Device) Pool() *pool.Pool { return d.pool }

// Info is what the driver knows of the device.
func (d *Device) Info() driver.Info { return d.info }

// Launches are how often each kernel was launched.
func (d *Device) Launches() [kernels.Count]uint64 { return d.launches }

// Replays is how many steps' layers were computed by a graph that was recorded of an earlier one.
func (d *Device) Replays() uint64 { return d.graphs.replays }

// Err is the first error of the driver. A device that has failed computes nothing any more: what it
// returned since is undefined. So is what it returned when the group of its ranks had ended, which
// is compute.ErrEnded until it has another one.
func (d *Device) Err() error {
	for _, c := range d.comms {
		if err := c.ended(); err != nil && d.err == nil {
			return err
		}
	}
	return d.err
}

// Finish waits until all is computed that was asked for.
func (d *Device) Finish() error {
	d.wait()
	return d.Err()
}

// check notes the first error of the driver.
func (d *Device) check(err error) {
	if err != nil && d.err == nil {
		d.err = err
	}
}

// wait waits until all that was enqueued is done.
func (d *Device) wait() {
	d.graphs.unfit = true
	d.flush()
	if d.err == nil {
		d.check(d.ctx.Synchronize(d.stream))
	}
}

// count notes that work was enqueued, for who watches the rank.
func (d *Device) count(n uint64) {
	if d.moved != nil {
		d.moved.Add(n)
	}
}

// launch enqueues a kernel; parameters are copied.
func launch[P any](d *Device, k kernels.ID, grid, block [3]uint32, shared int, params P) {
	d.flush()
	if d.err != nil || grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return
	}
	*(*P)(unsafe.Pointer(&d.params)) = params
	d.launched = driver.Launch{Function: d.functions[k], Grid: grid, Block: block,
		Shared: uint32(shared), Params: unsafe.Pointer(&d.params)}
	d.launches[k]++
	d.count(1)
	if err := d.ctx.Launch(&d.launched, d.stream); err != nil {
		d.check(fmt.Errorf("kernel %s: %w", k.Name(), err))
	}
}

// A block of a kernel that walks elements has so many threads, and a multiprocessor room for so
// many blocks.
const (
	elementsPerBlock = 256
	blocksAtOnce     = 8
)

// elements launches a kernel over n elements, a thread for each up to a grid that fills the device.
func elements[P any](d *Device, k kernels.ID, n int, params P) {
	blocks := min((n+elementsPerBlock-1)/elementsPerBlock,
		blocksAtOnce*max(1, d.info.Multiprocessors))
	launch(d, k, [3]uint32{uint32(blocks), 1, 1}, [3]uint32{elementsPerBlock, 1, 1}, 0, params)
}

// typed is a kernel of bfloat16, or what it is for the type that models run in.
func (d *Device) typed(k kernels.ID) kernels.ID {
	if d.dtype == compute.Float16 {
		return k.F16()
	}
	return k
}

// half is how the device's kernels name the type that models run in.
func (d *Device) half() int32 { return typeOf(d.dtype) }

// typeOf is how kernels name a type.
func typeOf(t compute.DType) int32 {
	return [...]int32{compute.BFloat16: 0, compute.Float16: 1, compute.Float32: 2, compute.Int8: 3,
		compute.E4M3: 4}[t]
}
