package cuda

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// stagingBytes is a piece of what weights are loaded through.
const stagingBytes = 16 << 20

// staging is pinned memory that weights go to the device through: while one piece is on its way,
// the next is filled.
type staging struct {
	pieces [2][]byte
	used   int
}

// next is a piece to be filled. What was sent of earlier ones may still be on its way.
func (s *staging) next(d *Device) ([]byte, error) {
	i := s.used % len(s.pieces)
	if s.used++; s.pieces[i] == nil {
		var err error
		if s.pieces[i], err = d.ctx.Pin(stagingBytes); err != nil {
			return nil, err
		}
		return s.pieces[i], nil
	}
	if i == 0 {
		if d.wait(); d.err != nil {
			return nil, d.err
		}
	}
	return s.pieces[i], nil
}

// packing converts rows of a source to 16 bits, chunks padded with zeros.
type packing struct {
	s              *compute.Source
	row            int // the first one
	dtype          compute.DType
	chunks, padded int
	to             []uint16
	bad            atomic.Bool
}

// Do converts one row.
func (p *packing) Do(chunk, _ int) {
	s, width, size := p.s, p.chunks*p.padded, p.s.DType.Size()
	down, right := strides(s)
	in := s.ColHi - s.ColLo
	row := s.Data[size*((p.row+chunk)*down+s.ColLo*right):]
	to := p.to[chunk*width : (chunk+1)*width]
	for c := range p.chunks {
		lo, hi := in*c/p.chunks, in*(c+1)/p.chunks
		part := to[c*p.padded : (c+1)*p.padded]
		clear(part[hi-lo:])
		if !p.convert(part[:hi-lo], row[size*lo*right:], size*right) {
			p.bad.Store(true)
		}
	}
}

// strides are how many elements lie between rows, and between columns.
func strides(s *compute.Source) (down, right int) {
	return cmp.Or(s.RowStride, s.Cols), cmp.Or(s.ColStride, 1)
}

// convert rounds numbers that lie stride bytes apart, and says whether all of them are finite.
func (p *packing) convert(to []uint16, from []byte, stride int) bool {
	if p.s.DType == p.dtype && stride == 2 {
		b := from[:2*len(to)]
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&to[0])), len(b)), b)
		return finite(to, p.dtype)
	}
	for i := range to {
		to[i] = rounded(element(p.s, from[i*stride:]), p.dtype)
	}
	return finite(to, p.dtype)
}

// finite says that none of numbers of 16 bits is infinite or NaN.
func finite(v []uint16, dtype compute.DType) bool {
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 2*len(v))
	if dtype == compute.Float16 {
		return half.FiniteF16(b)
	}
	return half.FiniteBF16(b)
}

// find is an error that names the first element of the rows that is not finite.
func (p *packing) find(rows int) error {
	width := p.chunks * p.padded
	in := p.s.ColHi - p.s.ColLo
	for r := range rows {
		for c := range p.chunks {
			lo, hi := in*c/p.chunks, in*(c+1)/p.chunks
			part := p.to[r*width+c*p.padded:][:hi-lo]
			for i := range part {
				if !finite(part[i:i+1], p.dtype) {
					return &compute.NotFinite{Err: fmt.Errorf(
						"element [%d, %d] is not finite in %v", p.row+r, p.s.ColLo+lo+i, p.dtype)}
				}
			}
		}
	}
	return nil
}

// floatBytes are floats as they lie in memory.
func floatBytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}
