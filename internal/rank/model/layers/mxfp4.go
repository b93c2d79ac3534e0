package layers

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// MXFP4 is the layout of experts that are stored together as GPT-OSS publishes them, in blocks of
// 32 input features: of each block 16 bytes of two numbers, the first in the low half, and one
// power of two that they are multiplied by (e2m1 and e8m0 of the OCP Microscaling Formats, version
// 1.0, opencompute.org). What is not stored together is plain.
type MXFP4 struct{}

// mxBlock is how many numbers share a scale.
const mxBlock = 32

// e2m1 are the numbers of four bits, the highest being the sign.
var e2m1 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}

// open implements Format.
func (MXFP4) open(o *opener, p *part) matrix {
	s := p.stack
	if s == nil {
		return nil
	}
	if p.cols%mxBlock != 0 {
		o.fail("tensor %q: %d input features are no blocks of %d", s.tensor+"_blocks", p.cols,
			mxBlock)
		return nil
	}
	rows := s.count * s.rows
	m := &tabled{Codes: compute.Codes{Rows: rows, Cols: p.cols, Group: mxBlock, Values: e2m1},
		weights: newGrid(rows, p.cols, 1, 2, false),
		scales:  newGrid(rows, p.cols, 1, mxBlock, false)}
	m.weights.Tensor = o.tensor(s.tensor+"_blocks", checkpoint.U8, s.count, s.rows,
		p.cols/mxBlock, mxBlock/2)
	m.scales.Tensor = o.tensor(s.tensor+"_scales", checkpoint.U8, s.count, s.rows, p.cols/mxBlock)
	m.code = m.halves(p.cols/2, false)
	return m
}

// E2M1 is the layout of numbers of four bits (e2m1) of modules that are stored each by itself:
// bytes of two of them, the first in the low half, and in weight_scale a number for each Group
// input features. It is compressed-tensors' nvfp4-pack-quantized and mxfp4-pack-quantized, and
// ModelOpt's NVFP4.
type E2M1 struct {
	Group int
	// Weight is the tensor of codes, behind the module's name. Global is that of a number that all
	// scales of the module are divided by, or multiplied with; "" is none.
	Weight, Global string
	Divided        bool
}

// open implements Format.
func (f E2M1) open(o *opener, p *part) matrix {
	const scale = ".weight_scale"
	if o.plain(p, scale) {
		return nil
	}
	m := &tabled{Codes: compute.Codes{Rows: p.rows, Cols: p.cols, Group: f.Group, Values: e2m1},
		weights: newGrid(p.rows, p.cols, 1, 2, false),
		scales:  newGrid(p.rows, p.cols, 1, f.Group, false)}
	m.weights.Tensor = o.tensor(p.module+f.Weight, checkpoint.U8, m.weights.shape()...)
	m.scales.Tensor = o.scales(p.module+scale, m.scales.shape())
	m.code = m.halves(m.weights.cols, false)
	if f.Global == "" || !o.has(p.module+f.Global, m.weights.Name) {
		return m
	}
	global := o.shaped(p.module+f.Global, checkpoint.F32, []int{1})
	if o.err != nil || len(global.Data) == 0 {
		return m
	}
	by := number(global, 0)
	if f.Divided {
		by = 1 / by
	}
	if math.IsInf(float64(by), 0) || by != by {
		o.err = &NotFinite{global.Name, fmt.Errorf("it is %v", number(global, 0))}
	}
	m.scale = func(row, col int) float32 { return m.scales.number(m.scales.index(row, col)) * by }
	m.finite = func() bool { return finiteIn(m.scales.DType)(m.scales.Data) }
	return m
}
