package cuda

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// What the kernels activate and gate apply.
const (
	kindSiLU    = 3
	kindReLU2   = 7
	kindSigmoid = 4
	kindTanhCap = 5
	kindClamped = 6
)

// kindOf is how kernels name an activation.
func kindOf(a compute.Activation) int32 {
	return [...]int32{compute.ReLU: 0, compute.GELU: 1, compute.GELUTanh: 2,
		compute.SiLU: kindSiLU, compute.ReLU2: kindReLU2}[a]
}

// rowBlock is how many threads a block that has a row has.
const rowBlock = 256

// vectorOf is how many numbers kernels take at a time where rows have so many.
func vectorOf(width int) int {
	if width%4 != 0 {
		return 1
	}
	return 4
}

func (d *Device) halve(m *memory) {
	elements(d, kernels.Halve, m.floats, kernels.HalveParams{X: m.values, Y: m.halves,
		N: int32(m.floats), Type: d.half()})
}

// Copy makes dst the values of x, which has as many rows and columns.
func (d *Device) Copy(dst, x compute.View) {
	d.copyRows(first(dst), dst.Stride, x, x.Rows, 0)
	of(dst.Memory).written()
}

// Pick makes dst the given rows of x, in that order.
func (d *Device) Pick(dst *compute.Tensor, x compute.View, rows []int32) {
	d.Resize(dst, len(rows), x.Width)
	d.copyRows(at(dst.Memory), dst.Width, x, len(rows), d.integers(rows))
}

func (d *Device) copyRows(to driver.Ptr, stride int, x compute.View, rows int, picked driver.Ptr) {
	elements(d, kernels.CopyRows, rows*x.Width, kernels.CopyRowsParams{X: first(x), Y: to,
		Rows: picked, Count: int32(rows), Width: int32(x.Width), LDX: int32(x.Stride),
		LDY: int32(stride)})
}

// Zero makes x zero.
func (d *Device) Zero(x *compute.Tensor) {
	m := of(x.Memory)
	d.flush()
	if d.err == nil && m.floats > 0 {
		d.check(d.ctx.Fill(m.values, 0, uint64(4*m.floats), d.stream))
	}
	m.written()
}

// Add computes sum += x.
func (d *Device) Add(sum, x *compute.Tensor) {
	m := of(sum.Memory)
	if of(x.Memory) == m {
		d.add(sum, at(x.Memory), x.Rows*x.Width)
		return
	}
	d.addLater(m, of(x.Memory), x.Rows, x.Width)
	m.written()
}

// AddBias adds a bias to each row of x.
func (d *Device) AddBias(x *compute.Tensor, bias compute.Memory) { d.add(x, at(bias), x.Width) }

func (d *Device) add(sum *compute.Tensor, x driver.Ptr, period int) {
	n := sum.Rows * sum.Width
	elements(d, kernels.AddRows, n, kernels.AddRowsParams{Sum: at(sum.Memory), X: x, N: int32(n),
		Period: int32(max(period, 1))})
	of(sum.Memory).written()
}

// Scale multiplies x by a factor.
func (d *Device) Scale(x *compute.Tensor, factor float32) { d.scale(x, 0, factor) }

// ScaleRows multiplies each row of x by a factor of its own, [rows][1].
func (d *Device) ScaleRows(x, factors *compute.Tensor) { d.scale(x, at(factors.Memory), 0) }

func (d *Device) scale(x *compute.Tensor, factors driver.Ptr, factor float32) {
	n := x.Rows * x.Width
	elements(d, kernels.ScaleRows, n, kernels.ScaleRowsParams{X: at(x.Memory), Factors: factors,
		Factor: factor, N: int32(n), Width: int32(x.Width)})
	of(x.Memory).written()
}

// Activate applies an activation to x.
func (d *Device) Activate(a compute.Activation, x *compute.Tensor) {
	d.activate(x, kindOf(a), 0)
}

// Sigmoid replaces each v of x by the logistic function of it.
func (d *Device) Sigmoid(x *compute.Tensor) { d.activate(x, kindSigmoid, 0) }

// TanhCap replaces each v of x by limit·tanh(v/limit).
func (d *Device) TanhCap(x *compute.Tensor, limit float32) { d.activate(x, kindTanhCap, limit) }

func (d *Device) activate(x *compute.Tensor, kind int32, limit float32) {
	n := x.Rows * x.Width
	elements(d, kernels.Activate, n, kernels.ActivateParams{X: at(x.Memory), N: int32(n),
		Kind: kind, Limit: limit})
	of(x.Memory).written()
}

// GatedProduct makes dst what a gating makes of the product of x with w, plus bias unless that is
// nil, in which gate and up lie side by side: in both.
func (d *Device) GatedProduct(g compute.Gating, dst, both *compute.Tensor, w compute.Weight,
	x compute.View, bias compute.Memory, _ compute.Weight) {
	d.Resize(both, x.Rows, w.Out())
	w.Product(both.All(), x, bias)
	d.Gate(g, dst, both)
}

// Gate makes dst of rows in which gate and up lie side by side, or up alone.
func (d *Device) Gate(g compute.Gating, dst, both *compute.Tensor) { d.gate(g, dst, both, 0) }

// gate is Gate of as many rows as filled says on the device, 0 of all.
func (d *Device) gate(g compute.Gating, dst, both *compute.Tensor, filled driver.Ptr) {
	kind, width, vector := kindOf(g.Activation), both.Width/2, vectorOf(both.Width/2)
	switch {
	case g.Ungated:
		width, vector = both.Width, 1
	case g.Limit > 0:
		kind = kindClamped
	case g.Activation == compute.ReLU:
		kind = kindSiLU // what the zero value means of a gate
	}
	d.Resize(dst, both.Rows, width)
	m, n := of(dst.Memory), dst.Rows*dst.Width
	elements(d, kernels.Gate, n/vector, kernels.GateParams{Both: at(both.Memory),
		Y: m.values, Half: m.half(true), Filled: filled, N: int32(n), Width: int32(dst.Width),
		Kind: kind, Type: d.half(), Alone: flag(g.Ungated), Limit: g.Limit})
}

// SigmoidGate multiplies x by the logistic function of gate, which is as large.
func (d *Device) SigmoidGate(x *compute.Tensor, gate compute.View) {
	n := x.Rows * x.Width
	elements(d, kernels.SigmoidGate, n, kernels.SigmoidGateParams{X: at(x.Memory),
		Gate: first(gate), N: int32(n), Width: int32(x.Width), Ldgate: int32(gate.Stride)})
	of(x.Memory).written()
}

// RMSNorm makes dst the rows of x divided by their root mean square and multiplied by a weight.
func (d *Device) RMSNorm(dst, x *compute.Tensor, weight compute.Memory, eps float32) {
	d.norm(kernels.RMSNorm, dst, x, weight, nil, eps)
}

// LayerNorm makes dst the rows of x normalised by mean and variance; dst may be x.
func (d *Device) LayerNorm(dst, x *compute.Tensor, weight, bias compute.Memory, eps float32) {
	d.norm(kernels.LayerNorm, dst, x, weight, bias, eps)
}

func (d *Device) norm(k kernels.ID, dst, x *compute.Tensor, weight, bias compute.Memory,
	eps float32) {
	if dst != x {
		d.Resize(dst, x.Rows, x.Width)
	}
	m := of(dst.Memory)
	m.written()
	if k == kernels.RMSNorm && dst != x && d.addNorm(of(x.Memory), m, at(weight), eps) {
		return
	}
	launch(d, k, [3]uint32{uint32(x.Rows), 1, 1}, normBlock(x.Width), 0,
		kernels.NormParams{X: at(x.Memory), Weight: at(weight), Bias: at(bias), Y: m.values,
			Half: m.half(true), Width: int32(x.Width), Type: d.half(), Eps: eps})
}

// normThreads is how many threads a block has that normalises a row, at most.
const normThreads = 1024

// normBlock is the block of a norm: of its threads each has two vectors of 4 numbers, as far as
// that gets (kernels/norm.cuh).
func normBlock(width int) [3]uint32 {
	warps := ceil(width, 2*4*32)
	return [3]uint32{uint32(min(max(warps, 1)*32, normThreads)), 1, 1}
}

// headsPerBlock is how many heads a block has, a warp each.
const headsPerBlock = 4

func headBlocks(rows, heads int) ([3]uint32, [3]uint32) {
	blocks := (rows*heads + headsPerBlock - 1) / headsPerBlock
	return [3]uint32{uint32(blocks), 1, 1}, [3]uint32{32 * headsPerBlock, 1, 1}
}

// Heads normalises each head of those that fill x, unless weight is nil, and turns its first
// dimensions by angles, unless they are nil.
func (d *Device) Heads(x compute.View, headDim int, weight compute.Memory, eps float32,
	angles *compute.Tensor) {
	p := kernels.HeadsParams{X: first(x), Weight: at(weight), Rows: int32(x.Rows),
		Heads: int32(x.Width / headDim), Dim: int32(headDim), LDX: int32(x.Stride), Eps: eps}
	if angles != nil {
		p.Angles, p.Turned = at(angles.Memory), int32(angles.Width)
	}
	grid, block := headBlocks(x.Rows, x.Width/headDim)
	launch(d, kernels.Heads, grid, block, 0, p)
	of(x.Memory).written()
}

// Squares makes dst the sums of squares of the heads that fill x, one of each head.
func (d *Device) Squares(dst, x compute.View, headDim int) {
	grid, block := headBlocks(x.Rows, x.Width/headDim)
	launch(d, kernels.Squares, grid, block, 0, kernels.SquaresParams{X: first(x), Y: first(dst),
		Rows: int32(x.Rows), Heads: int32(x.Width / headDim), Dim: int32(headDim),
		LDX: int32(x.Stride), LDY: int32(dst.Stride)})
	of(dst.Memory).written()
}

// NormAcross multiplies x by a weight and by the reciprocal of the root mean square of heads whose
// sums of squares are given: they may be more than x has.
func (d *Device) NormAcross(x compute.View, weight compute.Memory, squares compute.View,
	headDim int, eps float32) {
	launch(d, kernels.NormAcross, [3]uint32{uint32(x.Rows), 1, 1}, [3]uint32{rowBlock, 1, 1}, 0,
		kernels.NormAcrossParams{X: first(x), Weight: at(weight), Squares: first(squares),
			Width: int32(x.Width), LDX: int32(x.Stride), Heads: int32(squares.Width),
			Ldsquares: int32(squares.Stride), Dim: int32(headDim), Eps: eps})
	of(x.Memory).written()
}

// table is looked up in the device's memory.
type table struct {
	d    *Device
	rows *weight
	kind int32
	cols int
}

// Table is a copy of a table of the source's rows, in the source's type.
func (d *Device) Table(s compute.Source) compute.Table {
	bytes := s.Rows * s.Cols * s.DType.Size()
	w := d.newWeight(bytes)
	if d.err == nil {
		d.check(d.upload(w.data, s.Data[:bytes]))
	}
	return &table{d: d, rows: w, kind: typeOf(s.DType), cols: s.Cols}
}

// Lookup implements compute.Table.
func (t *table) Lookup(dst *compute.Tensor, ids []int32, offset int) {
	t.d.Resize(dst, len(ids), t.cols)
	elements(t.d, kernels.Lookup, len(ids)*t.cols, kernels.LookupParams{Table: t.rows.data,
		Ids: t.d.integers(ids), Y: at(dst.Memory), Rows: int32(len(ids)), Width: int32(t.cols),
		Offset: int32(offset), Type: t.kind})
}

// Free implements compute.Table.
func (t *table) Free() { t.rows.Free() }

// upload copies bytes of the host, which need not be pinned, to the device, through pinned memory.
func (d *Device) upload(to driver.Ptr, from []byte) error {
	for at := 0; at < len(from); {
		piece, err := d.staging.next(d)
		if err != nil {
			return fmt.Errorf("pinned memory to load through: %w", err)
		}
		n := copy(piece, from[at:])
		if err := d.ctx.Upload(to+driver.Ptr(at), piece[:n], d.stream); err != nil {
			return err
		}
		at += n
	}
	return nil
}
