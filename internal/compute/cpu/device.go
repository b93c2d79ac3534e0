// Package cpu is the CPU backend: it puts the packed matrix products, the paged attention and the
// row operations of its sub-packages behind the few calls a model's layers are written in.
//
// Activations are float32, row-major. Each output element's bits depend only on its own row, the
// weights and the instruction set, never on the other rows of a batch, the number of threads or how
// work was cut: that is what lets one request give the same tokens in any batch and layout.
package cpu

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
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
	gemm  gemm.Scratch
	spare gemm.Spare
	rows  rowTask
}

// Options configure a Device.
type Options struct {
	// Threads is the number of cores used, the caller's included; at least 1.
	Threads int
	// ISA is the instruction set; it must be available on this machine.
	ISA isa.ISA
	// DType is what models run in.
	DType compute.DType
}

// New starts the device's threads. Close ends them.
func New(opt Options) (*Device, error) {
	if opt.Threads < 1 {
		return nil, fmt.Errorf("cpu device needs at least one thread, not %d", opt.Threads)
	}
	if !isa.Available(opt.ISA) {
		return nil, fmt.Errorf("this machine has no %s", opt.ISA)
	}
	d := &Device{
		isa:   opt.ISA,
		dtype: opt.DType,
		pool:  pool.New(opt.Threads),
		vec:   vec.New(opt.ISA),
		attn:  attention.New(opt.ISA),
	}
	d.rows.d = d
	return d, nil
}

// Close stops the device's threads and gives its spare memory back; the device may not be used
// afterwards.
func (d *Device) Close() {
	d.spare.Drop()
	d.pool.Close()
}

// Spare is the memory that Pack uses first.
func (d *Device) Spare() *gemm.Spare { return &d.spare }

// Pool is the device's threads, for work of the rank's own (sampling).
func (d *Device) Pool() *pool.Pool { return d.pool }

// Vec is the device's row operations.
func (d *Device) Vec() *vec.Ops { return d.vec }

// ISA is the instruction set in use.
func (d *Device) ISA() isa.ISA { return d.isa }

// Pack makes a matrix of the stacked sources in the layout of the device's kernels. chunks is the
// number of pieces K is summed in (see gemm.Options). Sources that are not finite are a
// *gemm.NotFinite.
func (d *Device) Pack(chunks int, sources ...gemm.Source) (*gemm.Matrix, error) {
	opt := gemm.Options{Chunks: chunks, ISA: d.isa, Spare: &d.spare, Finite: true,
		Kind: kindOf(d.dtype, sources)}
	opt.BF16Dot = opt.Kind == gemm.BF16 && d.dtype == compute.BFloat16 && d.isa == isa.AVX512BF16
	return gemm.Pack(d.pool, opt, sources...)
}

// PackedBytes is the memory that Pack takes on a device that runs models in a type, at most; of the
// sources only kinds and shapes are looked at.
func PackedBytes(dtype compute.DType, chunks int, sources ...gemm.Source) (int64, error) {
	return gemm.PackedBytes(kindOf(dtype, sources), chunks, sources...)
}

// kindOf is the type in which a matrix of the sources is packed.
func kindOf(dtype compute.DType, sources []gemm.Source) gemm.Kind {
	switch dtype {
	case compute.BFloat16:
		return gemm.BF16
	case compute.Float16:
		return gemm.F16
	}
	// The widest kind among the sources holds them all exactly: bfloat16 weights need not grow to
	// be multiplied as float32.
	kind := sources[0].Kind
	for _, s := range sources[1:] {
		if s.Kind != kind {
			kind = gemm.F32
		}
	}
	return kind
}

// Linear computes dst = x·Wᵀ + bias for rows rows: x is [rows][K], dst [rows][N]; bias may be nil.
func (d *Device) Linear(dst, x []float32, m *gemm.Matrix, rows int, bias []float32) {
	m.Mul(d.pool, &d.gemm, dst, m.N(), x, m.K(), rows, bias)
}

// LinearAdd computes dst += x·Wᵀ, each sum complete before it is added.
func (d *Device) LinearAdd(dst, x []float32, m *gemm.Matrix, rows int) {
	m.MulAdd(d.pool, &d.gemm, dst, m.N(), x, m.K(), rows)
}

// LinearChunks computes the partial products of each chunk of K: dst is [chunks][rows][N].
func (d *Device) LinearChunks(dst, x []float32, m *gemm.Matrix, rows int) {
	m.MulChunks(d.pool, &d.gemm, dst, x, m.K(), rows)
}

// Attention runs causal attention of the batch's rows over layer's cached keys and values. q is
// [rows][ldq] with the heads first in each row, dst [rows][ldd].
func (d *Device) Attention(c *attention.Cache, layer int, b *compute.Batch,
	args attention.Args, dst []float32, ldd int, q []float32, ldq int) {
	d.attn.Run(d.pool, c, layer, b, args, dst, ldd, q, ldq)
}
