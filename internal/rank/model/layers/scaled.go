package layers

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// Scaled is the layout of a code of a byte for each weight in the tensor "weight", and of the
// scales in one beside it: compressed-tensors' float-quantized and int-quantized, that of DeepSeek
// V3, and bitsandbytes' of eight bits.
type Scaled struct {
	// Float says that codes are e4m3, else they are integers.
	Float bool
	// Scale is the scales' tensor, behind the module's name, Code that of codes; "" is .weight.
	Scale, Code string
	// Rows and Cols are how many output and input features share a scale, 0 for all. Shaped says
	// that the scales are a matrix, whose shape tells.
	Rows, Cols int
	Shaped     bool
	// Asymmetric says that a tensor beside Scale, _zero_point for _scale, has the codes that stand
	// for 0, as many as scales.
	Asymmetric bool
	// Largest is the code that scales are the numbers of; 0 is 1.
	Largest float32
	// Order is a tensor behind the module's name that is 0 where codes lie in rows; "" is none.
	Order string
}

// open implements Format.
func (f Scaled) open(o *opener, p *part) matrix {
	if _, ok := o.header(p.module + f.Scale + "_inv"); ok {
		f.Scale += "_inv" // as transformers calls it, also where it is no block's
	}
	if o.plain(p, f.Scale) {
		return nil
	}
	if h, _ := o.header(p.module + f.Scale); f.Shaped && len(h.Shape) == 2 {
		f.Rows, f.Cols = p.rows/max(h.Shape[0], 1), p.cols/max(h.Shape[1], 1)
		if f.Cols == p.cols {
			f.Cols = 0
		}
	}
	perRow, perCol := f.Rows, f.Cols
	if perRow == 0 {
		perRow = p.rows
	}
	if perCol == 0 {
		perCol = p.cols
	}
	m := &tabled{Codes: compute.Codes{Type: compute.Code8, Rows: p.rows, Cols: p.cols,
		Group: f.Cols}, weights: newGrid(p.rows, p.cols, 1, 1, false),
		scales: newGrid(p.rows, p.cols, perRow, perCol, false)}
	dtype := checkpoint.I8
	if f.Float {
		m.Type, dtype = compute.CodeE4M3, checkpoint.F8E4M3
	}
	m.weights.Tensor = o.tensor(p.module+cmp.Or(f.Code, ".weight"), dtype, p.rows, p.cols)
	m.scales.Tensor = o.scales(p.module+f.Scale, m.scales.shape())
	if h, ok := o.header(p.module + f.Order); ok {
		order := o.tensor(h.Name, checkpoint.U8, h.Shape...)
		if len(order.Data) > 0 && order.Data[0] != 0 {
			o.fail("tensor %q is %d: weights lie in tiles of a GPU, not in rows, as bitsandbytes "+
				"before 0.45 stored them: quantise the model again", h.Name, order.Data[0])
		}
	}
	m.code = m.copied(p.cols, 0)
	if f.Asymmetric {
		zeros := newGrid(p.rows, p.cols, perRow, perCol, false)
		name := p.module + strings.TrimSuffix(f.Scale, "_scale") + "_zero_point"
		zeros.Tensor = o.shaped(name, checkpoint.I8, zeros.shape())
		m.Offset, m.zeros = []float32{}, &zeros
		m.zero = func(row, col int) int { return int(int8(zeros.Data[zeros.index(row, col)])) }
	}
	if f.Largest != 0 {
		m.scale = func(row, col int) float32 {
			return m.scales.number(m.scales.index(row, col)) / f.Largest
		}
		m.finite = func() bool { return finiteIn(m.scales.DType)(m.scales.Data) }
	}
	return m
}

// scales opens a tensor of scales, of a type of weights, of e4m3, or of powers of two, which are
// bytes where it is older than their type's name.
func (o *opener) scales(name string, shape []int) checkpoint.Tensor {
	dtype := checkpoint.Invalid
	switch h, _ := o.header(name); h.DType {
	case checkpoint.F8E4M3, checkpoint.F8E8M0, checkpoint.U8:
		dtype = h.DType
	}
	return o.shaped(name, dtype, shape)
}

// shaped opens a tensor that may lack dimensions of 1, or have more of them.
func (o *opener) shaped(name string, dtype checkpoint.DType, shape []int) checkpoint.Tensor {
	if h, ok := o.header(name); ok && slices.Equal(wide(h.Shape), wide(shape)) {
		shape = h.Shape
	}
	return o.tensor(name, dtype, shape...)
}

// wide is the dimensions of a shape that are not 1.
func wide(shape []int) (list []int) {
	for _, n := range shape {
		if n != 1 {
			list = append(list, n)
		}
	}
	return list
}

// Packed is compressed-tensors' layout pack-quantized: of a module weight_packed, words of codes of
// neighbouring input features, [output features][input features·Bits/32]; weight_scale; where codes
// are not symmetric, weight_zero_point, words of those of neighbouring output features, [output
// features·Bits/32][groups]; weight_shape; and weight_g_idx, the group of each input feature, where
// they are not in order.
type Packed struct {
	// Bits are 4 or 8. Group is how many input features share a scale, 0 for all; Tensor says that
	// all output features do.
	Bits, Group int
	Tensor      bool
	Symmetric   bool
	// Ordered says that there is a weight_g_idx.
	Ordered bool
}

// open implements Format.
func (f Packed) open(o *opener, p *part) matrix {
	if o.plain(p, ".weight_packed") {
		return nil
	}
	per, perRow, perCol := 32/f.Bits, 1, f.Group
	if f.Tensor {
		perRow = p.rows
	}
	if perCol == 0 {
		perCol = p.cols
	}
	m := &tabled{Codes: compute.Codes{Rows: p.rows, Cols: p.cols, Group: f.Group, Values: signed},
		weights: newGrid(p.rows, p.cols, 1, per, false),
		scales:  newGrid(p.rows, p.cols, perRow, perCol, false)}
	m.weights.Tensor = o.tensor(p.module+".weight_packed", checkpoint.I32, m.weights.shape()...)
	m.scales.Tensor = o.scales(p.module+".weight_scale", m.scales.shape())
	if h, ok := o.header(p.module + ".weight_shape"); ok {
		dtype := checkpoint.I64
		if h.DType == checkpoint.I32 { // Kimi K2's
			dtype = h.DType
		}
		shape := o.tensor(h.Name, dtype, 2)
		if o.err != nil {
			return nil
		}
		rows, cols := integerAt(shape, 0), integerAt(shape, 1)
		if rows != int64(p.rows) || cols != int64(p.cols) {
			o.fail("tensor %q is [%d %d], but config.json asks for [%d %d]", shape.Name, rows, cols,
				p.rows, p.cols)
		}
	}
	m.code = m.halves(4*m.weights.cols, false)
	if f.Bits == 8 {
		m.Type, m.code = compute.Code8, m.copied(4*m.weights.cols, 0x80)
	}
	if !f.Symmetric {
		m.packedZeros(o, p, f.Bits, perCol)
	}
	m.order(o, p.module+".weight_g_idx", f.Ordered)
	return m
}

// packedZeros opens weight_zero_point, which older releases have a byte for each group in.
func (m *tabled) packedZeros(o *opener, p *part, bits, perCol int) {
	per, name := 32/bits, p.module+".weight_zero_point"
	m.Offset = []float32{}
	if h, _ := o.header(name); h.DType == checkpoint.I8 {
		zeros := newGrid(p.rows, p.cols, 1, perCol, false)
		zeros.Tensor = o.tensor(name, checkpoint.I8, zeros.shape()...)
		m.zeros = &zeros
		m.zero = func(row, col int) int { return int(int8(zeros.Data[zeros.index(row, col)])) }
		return
	}
	zeros := newGrid(p.rows, p.cols, per, perCol, false)
	zeros.Tensor = o.tensor(name, checkpoint.I32, zeros.shape()...)
	m.zeros = &zeros
	m.zero = func(row, col int) int {
		return int(zeros.word(row, col)>>(row%per*bits))&(1<<bits-1) - 1<<(bits-1)
	}
}

// integerAt is element i of a tensor of integers of 32 or 64 bits.
func integerAt(t checkpoint.Tensor, i int) int64 {
	if t.DType == checkpoint.I32 {
		return int64(int32(binary.LittleEndian.Uint32(t.Data[4*i:])))
	}
	return int64(binary.LittleEndian.Uint64(t.Data[8*i:]))
}
