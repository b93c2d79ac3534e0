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

// packing converts rows of a source to the type that models run in, chunks padded with zeros.
type packing struct {
	s              *compute.Source
	row            int // the first one
	dtype          compute.DType
	chunks, padded int
	to             []byte
	bad            atomic.Bool
}

// part is what a chunk of a row becomes, of the chunk's own input features and with zeros behind.
func (p *packing) part(row, chunk int) (own, all []byte) {
	in, size := p.s.ColHi-p.s.ColLo, p.dtype.Size()
	all = p.to[(row*p.chunks+chunk)*p.padded*size:][:p.padded*size]
	return all[:size*(in*(chunk+1)/p.chunks-in*chunk/p.chunks)], all
}

// Do converts one row.
func (p *packing) Do(row, _ int) {
	s, size := p.s, p.s.DType.Size()
	down, right := strides(s)
	in := s.ColHi - s.ColLo
	from := s.Data[size*((p.row+row)*down+s.ColLo*right):]
	for c := range p.chunks {
		own, all := p.part(row, c)
		clear(all[len(own):])
		if !p.convert(own, from[size*(in*c/p.chunks)*right:], size*right) {
			p.bad.Store(true)
		}
	}
}

// strides are how many elements lie between rows, and between columns.
func strides(s *compute.Source) (down, right int) {
	return cmp.Or(s.RowStride, s.Cols), cmp.Or(s.ColStride, 1)
}

// convert rounds numbers that lie stride bytes apart, and says whether all of them are finite.
func (p *packing) convert(to, from []byte, stride int) bool {
	size := p.dtype.Size()
	switch {
	case len(to) == 0:
	case p.s.DType == p.dtype && stride == size:
		copy(to, from[:len(to)])
	case size == 4:
		v := unsafe.Slice((*float32)(unsafe.Pointer(&to[0])), len(to)/4)
		for i := range v {
			v[i] = element(p.s, from[i*stride:])
		}
	default:
		v := unsafe.Slice((*uint16)(unsafe.Pointer(&to[0])), len(to)/2)
		for i := range v {
			v[i] = rounded(element(p.s, from[i*stride:]), p.dtype)
		}
	}
	return finite(to, p.dtype)
}

// finite says that none of numbers of a type is infinite or NaN.
func finite(v []byte, dtype compute.DType) bool {
	switch dtype {
	case compute.Float16:
		return half.FiniteF16(v)
	case compute.Float32:
		return half.FiniteF32(v)
	}
	return half.FiniteBF16(v)
}

// find is an error that names the first element of the rows that is not finite.
func (p *packing) find(rows int) error {
	in, size := p.s.ColHi-p.s.ColLo, p.dtype.Size()
	for r := range rows {
		for c := range p.chunks {
			own, _ := p.part(r, c)
			for i := range len(own) / size {
				if !finite(own[i*size:(i+1)*size], p.dtype) {
					return &compute.NotFinite{Err: fmt.Errorf(
						"element [%d, %d] is not finite in %v", p.row+r,
						p.s.ColLo+in*c/p.chunks+i, p.dtype)}
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
