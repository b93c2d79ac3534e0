package layers

import (
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
