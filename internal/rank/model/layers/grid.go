package layers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// grid is a tensor of elements each of which belongs to perRow output and perCol input features of
// a matrix: [rows][cols] of them, turned [cols][rows].
type grid struct {
	checkpoint.Tensor
	rows, cols     int
	perRow, perCol int
	turned         bool
}

// newGrid is the grid of a matrix of rows by cols, without its tensor.
func newGrid(rows, cols, perRow, perCol int, turned bool) grid {
	return grid{rows: (rows + perRow - 1) / perRow, cols: (cols + perCol - 1) / perCol,
		perRow: perRow, perCol: perCol, turned: turned}
}

// shape is that of the tensor.
func (g *grid) shape() []int {
	if g.turned {
		return []int{g.cols, g.rows}
	}
	return []int{g.rows, g.cols}
}

// index is the number of the element that an output and an input feature belong to.
func (g *grid) index(row, col int) int {
	row, col = row/g.perRow, col/g.perCol
	if g.turned {
		return col*g.rows + row
	}
	return row*g.cols + col
}

// word is an element of 32 bits.
func (g *grid) word(row, col int) uint32 {
	return binary.LittleEndian.Uint32(g.Data[4*g.index(row, col):])
}

// bytes is what as many output and input features have.
func (g *grid) bytes(rows, cols int) int64 {
	rows, cols = (rows+g.perRow-1)/g.perRow, (cols+g.perCol-1)/g.perCol
	return int64(rows) * int64(cols) * int64(g.DType.Size())
}

// prefetch has the system read what belongs to rows and columns lo to hi.
func (g *grid) prefetch(rows run, lo, hi int) {
	size := g.DType.Size()
	top, bottom := rows.first/g.perRow, rows.row(rows.n-1)/g.perRow+1
	left, right := lo/g.perCol, (hi-1)/g.perCol+1
	stride := g.cols
	if g.turned {
		top, bottom, left, right, stride = left, right, top, bottom, g.rows
	}
	prefetchRectangle(g.Data, size, stride, top, bottom, left, right)
}

// rowsOf is what belongs to rows, and what lies between.
func (g *grid) rowsOf(rows run) []byte {
	if g.turned {
		return g.Data
	}
	row := g.cols * g.DType.Size()
	return g.Data[rows.first/g.perRow*row : (rows.row(rows.n-1)/g.perRow+1)*row]
}

// finiteIn tells whether all elements of a type are finite; other bytes are exponents.
func finiteIn(t checkpoint.DType) func(data []byte) bool {
	switch t {
	case checkpoint.BF16:
		return half.FiniteBF16
	case checkpoint.F16:
		return half.FiniteF16
	case checkpoint.F32:
		return half.FiniteF32
	case checkpoint.F8E4M3:
		return func(data []byte) bool {
			return bytes.IndexByte(data, 0x7f) < 0 && bytes.IndexByte(data, 0xff) < 0
		}
	}
	return func(data []byte) bool { return bytes.IndexByte(data, 0xff) < 0 }
}

// number is a number that an element stands for.
func (g *grid) number(i int) float32 { return number(g.Tensor, i) }

// number is element i of a tensor; of other bytes it is the power of two that they are the
// exponent of, 255 being NaN (e8m0 of the OCP Microscaling Formats, version 1.0, opencompute.org).
func number(t checkpoint.Tensor, i int) float32 {
	switch t.DType {
	case checkpoint.BF16:
		return half.FromBF16(binary.LittleEndian.Uint16(t.Data[2*i:]))
	case checkpoint.F16:
		return half.FromF16(binary.LittleEndian.Uint16(t.Data[2*i:]))
	case checkpoint.F32:
		return math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
	case checkpoint.F8E4M3:
		return (&compute.Codes{Type: compute.CodeE4M3}).Number(t.Data[i])
	}
	if t.Data[i] == 0xff {
		return float32(math.NaN())
	}
	return float32(math.Ldexp(1, int(t.Data[i])-127))
}

func putUint32(dst []byte, v uint32) { binary.LittleEndian.PutUint32(dst, v) }

// tabled is a matrix whose codes lie in one tensor and whose scales in another.
type tabled struct {
	compute.Codes
	weights, scales grid
	// code leaves input features in the order in which they are stored.
	code coder
	// scale is the scale of an output and an input feature; nil is that of scales.
	scale func(row, col int) float32
	// finite tells that all scales are, by what they are made of; nil looks at scales.
	finite func() bool
	// zeros are where zero finds the number that stands for 0; nil is 0.
	zeros *grid
	zero  func(row, col int) int
	// place is the column of each input feature; nil leaves them in order.
	place []int32
}

// coder makes the codes of rows of dst, from row at on: those of the matrix, from a column on.
type coder func(dst *compute.Codes, at int, rows run, col int) error

// form implements matrix.
func (m *tabled) form() *compute.Codes { return &m.Codes }

// stored implements matrix.
func (m *tabled) stored(rows, cols int) int64 {
	n := m.weights.bytes(rows, cols) + m.scales.bytes(rows, cols)
	if m.zeros != nil {
		n += m.zeros.bytes(rows, cols)
	}
	return n
}

// prefetch implements matrix.
func (m *tabled) prefetch(rows run, lo, hi int) {
	m.weights.prefetch(rows, lo, hi)
	m.scales.prefetch(rows, lo, hi)
	if m.zeros != nil {
		m.zeros.prefetch(rows, lo, hi)
	}
}

// decode implements matrix.
func (m *tabled) decode(dst *compute.Codes, at int, rows run, col int) error {
	if err := m.code(dst, at, rows, col); err != nil {
		return err
	}
	if m.place != nil {
		from := make([]byte, dst.Cols)
		for i := range rows.n {
			to := dst.Code[(at+i)*dst.Cols:][:dst.Cols]
			copy(from, to)
			for in, c := range m.place {
				to[c] = from[in]
			}
		}
	}
	groups, first := dst.Groups(), 0
	if m.Group > 0 {
		first = col / m.Group
	}
	for i := range rows.n {
		row := rows.row(i)
		for g := range groups {
			scale, zero, err := m.affineAt(row, (first+g)*m.Group)
			if err != nil {
				return err
			}
			dst.Scale[(at+i)*groups+g] = scale
			if dst.Offset != nil {
				dst.Offset[(at+i)*groups+g] = -float32(zero) * scale
			}
		}
	}
	return nil
}

// affineAt is the scale of an output and an input feature, and the number that stands for 0.
func (m *tabled) affineAt(row, col int) (scale float32, zero int, err error) {
	if m.scale != nil {
		scale = m.scale(row, col)
	} else {
		scale = m.scales.number(m.scales.index(row, col))
	}
	if math.IsInf(float64(scale), 0) || scale != scale {
		return 0, 0, &NotFinite{m.scales.Name, fmt.Errorf("the scale of output feature %d, "+
			"input features from %d on, is %v", row, col, scale)}
	}
	if m.zero == nil {
		return scale, 0, nil
	}
	if zero = m.zero(row, col); zero != 0 && m.Offset == nil {
		return 0, 0, fmt.Errorf("tensor %q: the zero point of output feature %d, input features "+
			"from %d on, is %d off the middle, but the configuration says that all are symmetric",
			m.zeros.Name, row, col, zero)
	}
	return scale, zero, nil
}

// sound implements matrix.
func (m *tabled) sound(rows run) error {
	if m.sure(rows) {
		return nil
	}
	for i := range rows.n {
		for g := range m.Groups() {
			if _, _, err := m.affineAt(rows.row(i), g*m.Group); err != nil {
				return err
			}
		}
	}
	return nil
}

// sure tells at a glance that all scales and zero points of rows are sound; false tells nothing.
func (m *tabled) sure(rows run) bool {
	if m.zero != nil && m.Offset == nil && !m.centred() {
		return false
	}
	if m.finite != nil {
		return m.finite()
	}
	data := m.scales.rowsOf(rows)
	checkpoint.Prefetch(data)
	return finiteIn(m.scales.DType)(data)
}

// centred tells that all zero points are the middle because all words of them are the same.
func (m *tabled) centred() bool {
	data := m.zeros.Data
	checkpoint.Prefetch(data)
	if len(data) < 4 || !bytes.Equal(data[4:], data[:len(data)-4]) {
		return false
	}
	for row := range min(m.zeros.perRow, m.Rows) {
		if m.zero(row, 0) != 0 {
			return false
		}
	}
	return true
}

// copied has codes as bytes, in rows of a stride; flip is what is added to them, without a carry.
func (m *tabled) copied(stride int, flip byte) coder {
	return func(dst *compute.Codes, at int, rows run, col int) error {
		for i := range rows.n {
			row := rows.row(i)
			to := dst.Code[(at+i)*dst.Cols:][:dst.Cols]
			copy(to, m.weights.Data[row*stride+col:])
			if flip != 0 {
				for k := range to {
					to[k] ^= flip
				}
			}
			if m.Type != compute.CodeE4M3 {
				continue
			}
			for k, b := range to {
				if b&0x7f == 0x7f {
					return &NotFinite{m.weights.Name, fmt.Errorf("element [%d %d] is NaN, which "+
						"is no weight", row, col+k)}
				}
			}
		}
		return nil
	}
}

// halves has codes as halves of bytes, in rows of a stride; the first is the lower one unless high
// says otherwise.
func (m *tabled) halves(stride int, high bool) coder {
	return func(dst *compute.Codes, at int, rows run, col int) error {
		for i := range rows.n {
			from := m.weights.Data[rows.row(i)*stride:]
			to := dst.Code[(at+i)*dst.Cols:][:dst.Cols]
			c := 0
			if col&1 == 1 {
				to[0], c = from[col/2]>>4, 1
				if high {
					to[0] = from[col/2] & 15
				}
			}
			for ; c+1 < len(to); c += 2 {
				b := from[(col+c)/2]
				to[c], to[c+1] = b&15, b>>4
				if high {
					to[c], to[c+1] = b>>4, b&15
				}
			}
			if c < len(to) {
				b := from[(col+c)/2]
				to[c] = b & 15
				if high {
					to[c] = b >> 4
				}
			}
		}
		return nil
	}
}

// signed are the numbers of four bits whose middle stands for 0.
var signed = [16]float32{-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}
