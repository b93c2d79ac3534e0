// Package layers holds what models are made of: linear layers, norms, embeddings, attention,
// feed-forward blocks. A layer knows how its weights are divided among tensor parallel ranks and by
// which names a checkpoint has them; a Loader makes it. It keeps its weights to itself: a model
// says which layer follows which, and no product, no loop over numbers and no sum over ranks is its
// own.
//
// Activations pass between layers as Tensors, [rows][width] of float32. All layers of a Loader
// share the memory of what they compute: a result is valid until the next layer of its kind runs.
// One goroutine at a time runs them, every rank of a tensor parallel group the same ones in the
// same order. The bits of a result do not depend on the number of ranks, on the rows beside it or
// on threads.
//
// Device is the line at which another processor goes. Everything that knows that weights, caches
// and activations lie in this machine's memory is behind it or in this package: a second backend is
// an interface drawn around what the layers call of cpu.Device, and changes neither models nor what
// is above them.
package layers

import (
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// Device is one rank's processor. The worker opens it, hands it to the layers and closes it.
type Device struct{ cpu *cpu.Device }

// Options configure a Device.
type Options struct {
	// Threads is the number of cores used, the caller's included; at least 1.
	Threads int
	// ISA is the instruction set by name (see isa.Parse); "" is the best there is.
	ISA string
	// DType is what models run in.
	DType compute.DType
}

// Open starts the device's threads. An error names the option that this machine cannot follow.
func Open(opt Options) (*Device, error) {
	set, err := isa.Parse(opt.ISA)
	if err != nil {
		return nil, err
	}
	d, err := cpu.New(cpu.Options{Threads: opt.Threads, ISA: set, DType: opt.DType})
	if err != nil {
		return nil, err
	}
	return &Device{cpu: d}, nil
}

// Close ends the device's threads; neither it nor what was loaded on it may be used afterwards.
func (d *Device) Close() { d.cpu.Close() }

// DropSpare frees the memory that is kept for the next model.
func (d *Device) DropSpare() { d.cpu.Spare().Drop() }

// ISA is the name of the instruction set in use.
func (d *Device) ISA() string { return d.cpu.ISA().String() }

// Pool is the rank's threads on the host, for work of its own (sampling).
func (d *Device) Pool() *pool.Pool { return d.cpu.Pool() }

// Count has the chunks of long computations counted, until Count(nil) returns (see pool.Count).
func (d *Device) Count(moved *atomic.Uint64) { d.cpu.Pool().Count(moved) }

// Cache holds the keys and values of the layers of one rank, in the device's memory.
type Cache struct{ kv *attention.Cache }

// NewCache reserves a cache; its memory is taken as blocks are first written. An error names what
// is wrong with the shape, or that the system refused the memory.
func (d *Device) NewCache(shape compute.CacheShape) (*Cache, error) {
	c, err := attention.NewCache(shape)
	if err != nil {
		return nil, err
	}
	return &Cache{kv: c}, nil
}

// Heads is where the keys (values: false) or values of some heads of the rank are in a block of one
// of its layers, from the first head to before the last: the bits of one engine are those of
// another, where dtype, block size and instruction set are. A step that writes to the block must
// not run.
func (c *Cache) Heads(layer, block int, values bool, from, to int) []byte {
	return c.kv.Heads(layer, block, values, from, to)
}

// Free gives the memory back. The cache may not be used afterwards; a second call does nothing.
func (c *Cache) Free() error { return c.kv.Free() }
