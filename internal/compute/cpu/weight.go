package cpu

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// weight is a packed matrix on its device.
type weight struct {
	d *Device
	*gemm.Matrix
}

// Out implements compute.Weight.
func (w *weight) Out() int { return w.N() }

// In implements compute.Weight.
func (w *weight) In() int { return w.K() }

// Product implements compute.Weight.
func (w *weight) Product(dst, x compute.View, bias compute.Memory) {
	if m := x.Memory.(*memory); m.inBlocks {
		w.MulBlocks(w.d.pool, &w.d.gemm, view(dst), dst.Stride, &m.blocks, floats(bias))
		return
	}
	w.Mul(w.d.pool, &w.d.gemm, view(dst), dst.Stride, view(x), x.Stride, x.Rows, floats(bias))
}

// ProductAdded implements compute.Weight.
func (w *weight) ProductAdded(dst, x compute.View) {
	if m := x.Memory.(*memory); m.inBlocks {
		w.MulAddBlocks(w.d.pool, &w.d.gemm, view(dst), dst.Stride, &m.blocks)
		return
	}
	w.MulAdd(w.d.pool, &w.d.gemm, view(dst), dst.Stride, view(x), x.Stride, x.Rows)
}

// ProductChunks implements compute.Weight.
func (w *weight) ProductChunks(dst *compute.Tensor, x compute.View) {
	w.d.Resize(dst, w.Chunks()*x.Rows, w.N())
	if m := x.Memory.(*memory); m.inBlocks {
		w.MulChunksBlocks(w.d.pool, &w.d.gemm, floats(dst.Memory), w.N(), &m.blocks)
		return
	}
	w.MulChunks(w.d.pool, &w.d.gemm, floats(dst.Memory), w.N(), view(x), x.Stride, x.Rows)
}

// matrices implements packed.
func (w *weight) matrices() []*gemm.Matrix { return []*gemm.Matrix{w.Matrix} }

// packed is a weight of packed matrices.
type packed interface {
	compute.Weight
	matrices() []*gemm.Matrix
}

// Pack makes a weight of the stacked sources, in the type that models run in. chunks is the number
// of pieces in which input features are summed (see gemm.Options). Sources that are not finite are
// a *compute.NotFinite.
func (d *Device) Pack(chunks int, sources ...compute.Source) (compute.Weight, error) {
	opt := gemm.Options{Chunks: chunks, Kind: kindOf(d.dtype, sources)}
	opt.Rounded = opt.Kind == gemm.BF16 && d.dtype == compute.BFloat16 && d.isa >= isa.AVX512BF16
	return d.pack(opt, sources)
}

func (d *Device) pack(opt gemm.Options, sources []compute.Source) (compute.Weight, error) {
	opt.ISA, opt.Spare, opt.Finite = d.isa, &d.spare, true
	m, err := gemm.Pack(d.pool, opt, rectangles(sources)...)
	if bad := (*gemm.NotFinite)(nil); errors.As(err, &bad) {
		return nil, &compute.NotFinite{Source: bad.Source, Err: bad}
	}
	if err != nil {
		return nil, err
	}
	return &weight{d: d, Matrix: m}, nil
}

// Retire frees a weight, but keeps its memory for those that are packed next, unless that is
// another owner's.
func (d *Device) Retire(w compute.Weight) {
	for _, m := range w.(packed).matrices() {
		if m.Borrowed() {
			m.Free()
			continue
		}
		d.spare.Release(m)
	}
}

// Packed is what a weight is made of, valid until it is freed.
func (d *Device) Packed(w compute.Weight) ([]compute.Packed, error) {
	var parts []compute.Packed
	for _, m := range w.(packed).matrices() {
		form, data := m.Form()
		text, err := json.Marshal(form)
		if err != nil {
			return nil, fmt.Errorf("form of a packed matrix: %w", err)
		}
		parts = append(parts, compute.Packed{Form: text, Data: data})
	}
	return parts, nil
}

// FromPacked makes the weight again that Packed returned the parts of. Their bytes stay the
// caller's, who neither writes nor frees them before the weight is freed.
func (d *Device) FromPacked(parts []compute.Packed) (compute.Weight, error) {
	var list []compute.Weight
	for _, p := range parts {
		var form gemm.Form
		if err := json.Unmarshal(p.Form, &form); err != nil {
			return nil, fmt.Errorf("form of a packed matrix: %w", err)
		}
		m, err := gemm.FromForm(d.isa, form, p.Data)
		if err != nil {
			return nil, err
		}
		list = append(list, &weight{d: d, Matrix: m})
	}
	if len(list) == 0 {
		return nil, errors.New("a packed weight without parts")
	}
	return d.Join(list...), nil
}

// Reserve has the system find memory for as many weights as those, unless some is kept already.
func (d *Device) Reserve(weights []compute.Weight) error {
	if !d.spare.Empty() {
		return nil
	}
	var like []*gemm.Matrix
	for _, w := range weights {
		like = append(like, w.(packed).matrices()...)
	}
	return d.spare.Reserve(d.pool, like)
}

// Planner says what a device that runs models in a type takes, before there is one.
type Planner struct{ DType compute.DType }

// PackedBytes is the memory that Pack takes, at most; of the sources only types and shapes are
// looked at.
func (p Planner) PackedBytes(chunks int, sources ...compute.Source) (int64, error) {
	return gemm.PackedBytes(kindOf(p.DType, sources), chunks, rectangles(sources)...)
}

// rectangles are sources as gemm has them.
func rectangles(sources []compute.Source) []gemm.Source {
	list := make([]gemm.Source, len(sources))
	for i, s := range sources {
		list[i] = gemm.Source{Kind: kind(s.DType), Data: s.Data, Rows: s.Rows, Cols: s.Cols,
			RowLo: s.RowLo, RowHi: s.RowHi, ColLo: s.ColLo, ColHi: s.ColHi,
			RowStride: s.RowStride, ColStride: s.ColStride}
	}
	return list
}

func kind(t compute.DType) gemm.Kind {
	return [...]gemm.Kind{compute.BFloat16: gemm.BF16, compute.Float16: gemm.F16,
		compute.Float32: gemm.F32}[t]
}

// kindOf is the type in which a matrix of the sources is packed.
func kindOf(dtype compute.DType, sources []compute.Source) gemm.Kind {
	if dtype != compute.Float32 {
		return kind(dtype)
	}
	// The widest kind among the sources holds them all exactly: bfloat16 weights need not grow to
	// be multiplied as float32.
	widest := kind(sources[0].DType)
	for _, s := range sources[1:] {
		if kind(s.DType) != widest {
			widest = gemm.F32
		}
	}
	return widest
}

// PackInt8 makes a weight of bytes of the stacked sources, with a scale for each output feature
// (see gemm.I8). Unless models run in float32, inputs are rounded to int8.
func (d *Device) PackInt8(chunks int, sources ...compute.Source) (compute.Weight, error) {
	return d.pack(gemm.Options{Chunks: chunks, Kind: gemm.I8, Rounded: d.dtype != compute.Float32},
		sources)
}

// Int8Bytes is the memory that PackInt8 takes, at most.
func (p Planner) Int8Bytes(chunks int, sources ...compute.Source) (int64, error) {
	return gemm.PackedBytes(gemm.I8, chunks, rectangles(sources)...)
}
