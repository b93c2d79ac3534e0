package layers

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// MXFP4 is the scheme of experts that are stored together as GPT-OSS publishes them, in blocks of
// 32 input features: of each block 16 bytes of two numbers, the first in the low half, and one
// power of two that they are multiplied by (e2m1 and e8m0 of the OCP Microscaling Formats, version
// 1.0, opencompute.org). They are unpacked as they are loaded, which loses nothing in bfloat16 and
// float32. What is not stored together is Plain.
type MXFP4 struct{ Plain }

// mxBlock is how many numbers share a scale.
const mxBlock = 32

func (s MXFP4) weight(l *Loader, chunks int, parts []part) (compute.Weight, int64, error) {
	if parts[0].stack == nil {
		return s.Plain.weight(l, chunks, parts)
	}
	blocks, scales, release, err := s.open(l, &parts[0])
	defer release()
	if err != nil {
		return nil, 0, err
	}
	var sources []compute.Source
	var read int64
	for i := range parts {
		sources = append(sources, parts[i].unpack(blocks.Data, scales.Data))
		read += s.stored(&parts[i])
	}
	w, err := l.dev.Pack(chunks, sources...)
	if err != nil {
		return nil, 0, fmt.Errorf("tensor %q: %w", blocks.Name, err)
	}
	return w, read, nil
}

func (s MXFP4) bytes(l *Loader, chunks int, parts []part) (held, read int64, err error) {
	if parts[0].stack == nil {
		return s.Plain.bytes(l, chunks, parts)
	}
	_, _, release, err := s.open(l, &parts[0])
	defer release()
	if err != nil {
		return 0, 0, err
	}
	var sources []compute.Source
	for i := range parts {
		p := &parts[i]
		rows := p.rowHi - p.rowLo
		sources = append(sources, compute.Source{DType: compute.BFloat16, Rows: rows, RowHi: rows,
			Cols: p.cols, ColLo: p.colLo, ColHi: p.colHi})
		l.scale.given = max(l.scale.given, p.colHi-p.colLo)
		l.scale.Tensors = max(l.scale.Tensors, 2*int64(rows)*int64(p.cols)*int64(len(parts)))
		read += s.stored(p)
	}
	held, err = l.scale.planner.PackedBytes(chunks, sources...)
	return held, read, err
}

// open opens the tensors of a stack.
func (MXFP4) open(l *Loader, p *part) (blocks, scales checkpoint.Tensor, release func(),
	err error) {
	s := p.stack
	release = func() {}
	if p.cols%mxBlock != 0 {
		return blocks, scales, release, fmt.Errorf("tensor %q: %d input features are no blocks "+
			"of %d", s.tensor+"_blocks", p.cols, mxBlock)
	}
	blocks, err = l.src.Stored(s.tensor+"_blocks", checkpoint.U8, s.count, s.rows, p.cols/mxBlock,
		mxBlock/2)
	if err != nil {
		return blocks, scales, release, err
	}
	release = func() { l.src.Release(blocks) }
	scales, err = l.src.Stored(s.tensor+"_scales", checkpoint.U8, s.count, s.rows, p.cols/mxBlock)
	if err != nil {
		return blocks, scales, release, err
	}
	return blocks, scales, func() {
		l.src.Release(blocks)
		l.src.Release(scales)
	}, nil
}

// stored is the bytes that a part has of a stack.
func (MXFP4) stored(p *part) int64 {
	rows, cols := int64(p.rowHi-p.rowLo), int64(p.colHi-p.colLo)
	return rows * cols * (mxBlock/2 + 1) / mxBlock
}

// e2m1 are the numbers of four bits, the highest being the sign.
var e2m1 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6}

// unpack is a part of a stack in bfloat16: its own rows, with all columns.
func (p *part) unpack(blocks, scales []byte) compute.Source {
	s, perRow := p.stack, p.cols/mxBlock
	rows := p.rowHi - p.rowLo
	data := make([]byte, 2*rows*p.cols)
	for r := range rows {
		stored := s.index*s.rows + (p.rowLo+r)*s.step + s.first
		for b := range perRow {
			at := stored*perRow + b
			scale := float32(math.Ldexp(1, int(scales[at])-127))
			dst := data[2*(r*p.cols+b*mxBlock):]
			for i, two := range blocks[at*mxBlock/2:][:mxBlock/2] {
				low, high := e2m1[two&15]*scale, e2m1[two>>4]*scale
				binary.LittleEndian.PutUint16(dst[4*i:], half.ToBF16(low))
				binary.LittleEndian.PutUint16(dst[4*i+2:], half.ToBF16(high))
			}
		}
	}
	return compute.Source{DType: compute.BFloat16, Data: data, Rows: rows, RowHi: rows,
		Cols: p.cols, ColLo: p.colLo, ColHi: p.colHi}
}
