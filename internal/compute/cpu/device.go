// Package cpu is the CPU backend: it puts the packed matrix products, the paged attention and the
// row operations of its sub-packages behind the few calls a model's layers are written in.
//
// Activations are float32, row-major. Each output element's bits depend only on its own row, the
// weights and the instruction set, never on the other rows of a batch, the number of threads or how
// work was cut: that is what lets one request give the same tokens in any batch and layout.
package cpu

import (
	"fmt"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
)

// Device is one rank's share of the CPU: its threads, kernels and scratch memory. Its methods are
// called from one goroutine at a time.
type Device struct {
	isa   isa.ISA
	dtype compute.DType
	pool  *pool.Pool
	vec   *vec.Ops
	attn  *attention.Attention
	among attention.Among
	gemm  gemm.Scratch
	spare gemm.Spare
	rows  rowTask
	mixed mixing
	// alone are the rows of the step that no other rank computes.
	alone []int32
	// positions are those of the step's rows.
	positions   []int32
	recurrence  recurrenceTask
	delta       deltaRule
	scan        scanRule
	convolution convolutionTask
	adapted     adapted
	products    productsTask
	// gated makes what a gating without a limit makes of some columns, by activation, and
	// gatedBlocks rows of blocks of it (see gemm.Matrix.MulGated).
	gated       []func(dst, gate, up []float32)
	gatedBlocks []func(dst []uint16, gate, up []float32)
}

// Options configure a Device.
type Options struct {
	// Threads is the number of cores used, the caller's included; at least 1.
	Threads int
	// Processors are those that the other threads than the caller's are bound to; nil for none.
	Processors []int
	// ISA is the instruction set by name (see isa.Parse); "" is the best there is.
	ISA string
	// DType is what models run in.
	DType compute.DType
}

// New starts the device's threads. Close ends them. An error names the option that this machine
// cannot follow.
func New(opt Options) (*Device, error) {
	set, err := isa.Parse(opt.ISA)
	if err != nil {
		return nil, err
	}
	if opt.Threads < 1 {
		return nil, fmt.Errorf("cpu device needs at least one thread, not %d", opt.Threads)
	}
	d := &Device{
		isa:   set,
		dtype: opt.DType,
		pool:  pool.NewBound(opt.Threads, opt.Processors),
		vec:   vec.New(set),
		attn:  attention.New(set),
	}
	d.gated = []func(dst, gate, up []float32){compute.ReLU: d.vec.SiluMul, // a gate's zero value
		compute.SiLU: d.vec.SiluMul, compute.GELU: d.vec.GeluErfMul,
		compute.GELUTanh: d.vec.GeluTanhMul}
	for _, gated := range d.gated {
		d.gatedBlocks = append(d.gatedBlocks, func(dst []uint16, gate, up []float32) {
			gated(gate, gate, up)
			amx.Round(dst, gate)
		})
	}
	d.gatedBlocks[compute.ReLU], d.gatedBlocks[compute.SiLU] = d.siluBlocks, d.siluBlocks
	d.rows.d = d
	d.recurrence.init(d)
	d.convolution.init(d)
	return d, nil
}

// Close stops the device's threads and gives its spare memory back; the device may not be used
// afterwards.
func (d *Device) Close() {
	d.spare.Drop()
	_ = d.among.Free() // the process has no other use of it either
	d.pool.Close()
}

// Pad returns the batch: a step is computed anew each time.
func (d *Device) Pad(b *compute.Batch) *compute.Batch { return b }

// Begin is told of each step's batch, which this device reads where it is.
func (d *Device) Begin(b *compute.Batch, places []int32) {
	d.alone, d.positions = b.Split.Rows, b.Position
	d.adapted.begin(places)
}

// Run has pass compute a step's layers.
func (d *Device) Run(_ any, _ bool, pass func() error) error { return pass() }

// Finish implements layers.Device: each call computes.
func (d *Device) Finish() error { return nil }

// Err is nil: what this device computes cannot fail.
func (d *Device) Err() error { return nil }

// DropSpare frees the memory that is kept for the next model.
func (d *Device) DropSpare() { d.spare.Drop() }

// Pool is the device's threads, for work of the rank's own (sampling).
func (d *Device) Pool() *pool.Pool { return d.pool }

// Count has the chunks of long computations counted, until Count(nil) returns (see pool.Count).
func (d *Device) Count(moved *atomic.Uint64) { d.pool.Count(moved) }

// ISA is the name of the instruction set in use.
func (d *Device) ISA() string { return d.isa.String() }

// NewCache reserves a cache; its memory is taken as blocks are first written. An error names what
// is wrong with the shape, or that the system refused the memory.
func (d *Device) NewCache(shape compute.CacheShape) (compute.Cache, error) {
	c, err := attention.NewCache(shape)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Attention runs causal attention of the batch's rows over layer's cached keys and values: dst is
// what the queries of q, one head after the other, find.
func (d *Device) Attention(c compute.Cache, layer int, b *compute.Batch,
	args compute.AttentionArgs, dst *compute.Tensor, q compute.View) {
	d.attn.Run(d.pool, c.(*attention.Cache), layer, b, attention.Args{Heads: args.Heads,
		KVHeads: args.KVHeads, HeadDim: args.HeadDim, Scale: args.Scale, Window: args.Window,
		Chunked: args.Chunked, Ahead: args.Ahead, Cap: args.Cap, Sinks: floats(args.Sinks)},
		floats(dst.Memory), dst.Width, view(q), q.Stride)
}

// AttentionAmong makes dst what the queries of q find among the rows of their own sequence, whose
// keys and values are k and v. They are stored in the type that models run in.
func (d *Device) AttentionAmong(b *compute.Batch, args compute.AttentionArgs, dst *compute.Tensor,
	q, k, v compute.View) {
	c, laid, slots := d.among.Lay(b, args.KVHeads, args.HeadDim, d.dtype)
	d.WriteCache(c, 0, k, v, compute.CacheScales{}, slots)
	d.Attention(c, 0, laid, args, dst, q)
}

// AmongBytes is what AttentionAmong keeps of each row, twice: each sequence begins a tile.
func (p Planner) AmongBytes(kvHeads, headDim int) int {
	layer := compute.CacheLayer{Heads: kvHeads, Dim: headDim}
	return 2 * layer.Bytes(1, p.DType)
}

// ScratchPerThread is the memory that each thread of a device computes in.
func (p Planner) ScratchPerThread() int64 {
	return attention.ScratchBytes() + 256<<10
}
