package layers

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// Int4 is Plain, made of four bits as it is loaded: round(w/s), from -8 to 7, s being the number of
// largest magnitude among Group neighbouring input features, at most mostGroup, divided by -8.
// Activations stay as they are.
type Int4 struct{ Group int }

// mostGroup is the largest group of an Int4.
const mostGroup = 128

// name implements Scheme.
func (s Int4) name() string { return fmt.Sprintf("int4 in groups of %d", s.Group) }

// weight implements Scheme.
func (s Int4) weight(l *Loader, chunks int, parts []part) (compute.Weight, int64, error) {
	sources, bytes, release, err := l.sources(parts)
	defer release()
	if err != nil {
		return nil, 0, err
	}
	var d decoding
	at := 0
	for i := range sources {
		r := &sources[i]
		prefetch(r)
		d.add(&rounded{r, s.Group, nameOf(parts[i])}, at, run{r.RowLo, r.RowHi - r.RowLo, 1},
			r.ColLo)
		at += r.RowHi - r.RowLo
	}
	d.codes = append(d.codes, s.codes(sources))
	if l.fill(&d); d.err != nil {
		return nil, 0, d.err
	}
	w, err := l.dev.PackCodes(chunks, d.codes...)
	if err != nil {
		return nil, 0, fmt.Errorf("tensor %q: %w", nameOf(parts[0]), err)
	}
	return w, bytes, nil
}

// bytes implements Scheme.
func (s Int4) bytes(l *Loader, chunks int, parts []part) (held, read int64, err error) {
	return packedBytes(l, parts, func(sources []compute.Source) (int64, error) {
		c := s.codes(sources)
		l.scale.Unpacked = max(l.scale.Unpacked, unpackedBytes(&c))
		return l.scale.planner.CodesBytes(chunks, c)
	})
}

// codes are the codes of sources, without numbers.
func (s Int4) codes(sources []compute.Source) compute.Codes {
	first := &sources[0]
	c := compute.Codes{Values: signed, Cols: first.ColHi - first.ColLo, Group: s.Group,
		Lead: first.ColLo % s.Group}
	for i := range sources {
		c.Rows += sources[i].RowHi - sources[i].RowLo
	}
	return c
}

// rounded makes the codes of an Int4 of a source.
type rounded struct {
	*compute.Source
	group  int
	tensor string
}

// decode implements decoder. A group is rounded as a whole, also where a part of it is another
// rank's.
func (m *rounded) decode(dst *compute.Codes, at int, rows run, col int) error {
	ops := vec.New(isa.Best())
	var group [mostGroup]float32
	groups, first := dst.Groups(), col/m.group
	for i := range rows.n {
		row := rows.row(i)
		to := dst.Code[(at+i)*dst.Cols:][:dst.Cols]
		for g := range groups {
			lo := (first + g) * m.group
			v := group[:min(m.group, m.Cols-lo)]
			m.read(ops, v, row, lo)
			scale, bad := scaleOf(ops, v)
			if bad >= 0 {
				return &NotFinite{m.tensor, fmt.Errorf("element [%d %d] is %v, which is no weight",
					row, lo+bad, v[bad])}
			}
			dst.Scale[(at+i)*groups+g] = scale
			inverse := float32(0)
			if scale != 0 {
				inverse = 1 / scale
			}
			begin, end := max(lo, col), min(lo+len(v), col+dst.Cols)
			ops.RoundInt4(to[begin-col:end-col], v[begin-lo:end-lo], inverse)
		}
	}
	return nil
}

// read reads elements of a row from a column on.
func (m *rounded) read(ops *vec.Ops, v []float32, row, col int) {
	stride, step, size := m.RowStride, m.ColStride, m.DType.Size()
	if stride == 0 {
		stride = m.Cols
	}
	if step == 0 {
		step = 1
	}
	data := m.Data[(row*stride+col*step)*size:]
	if step == 1 && m.DType == compute.BFloat16 {
		// Machines that this is for read numbers wherever they begin.
		halves := (*uint16)(unsafe.Pointer(unsafe.SliceData(data[:2*len(v)])))
		ops.FromBF16(v, unsafe.Slice(halves, len(v)))
		return
	}
	for i := range v {
		switch at := data[i*step*size:]; m.DType {
		case compute.BFloat16:
			v[i] = half.FromBF16(binary.LittleEndian.Uint16(at))
		case compute.Float16:
			v[i] = half.FromF16(binary.LittleEndian.Uint16(at))
		default:
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(at))
		}
	}
}

// scaleOf is the number of largest magnitude divided by -8, which it is rounded to exactly, and the
// place of one that is not finite, else -1. A scale whose reciprocal is not finite is 0.
func scaleOf(ops *vec.Ops, v []float32) (scale float32, bad int) {
	const infinity, sign = 0x7f800000, 1 << 31
	most := ops.Largest(v)
	if most >= infinity {
		return 0, slices.IndexFunc(v, func(x float32) bool { return x-x != 0 })
	}
	for _, x := range v {
		if math.Float32bits(x)&^sign == most {
			scale = x / -8
			break
		}
	}
	if math.IsInf(float64(1/scale), 0) {
		return 0, -1
	}
	return scale, -1
}
