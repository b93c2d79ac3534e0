package layers

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
)

// GPTQ is the layout of AutoGPTQ and GPTQModel: of a module qweight, words of codes of neighbouring
// input features, [input features·Bits/32][output features]; qzeros, words of the codes that stand
// for 0, of neighbouring output features, [groups][output features·Bits/32]; scales [groups][output
// features]; and g_idx, the group of each input feature, where they are not in order.
type GPTQ struct {
	// Bits are 4 or 8. Group is how many input features share a scale, 0 for all.
	Bits, Group int
	// Symmetric says that the middle code stands for 0. Exact says that qzeros has the codes as
	// they are (format gptq_v2), else they are stored minus one. Ordered says that there is a
	// g_idx.
	Symmetric, Exact, Ordered bool
}

// open implements Format.
func (f GPTQ) open(o *opener, p *part) matrix {
	if o.plain(p, ".qweight") {
		return nil
	}
	per := 32 / f.Bits
	if p.rows%per != 0 || p.cols%per != 0 {
		if _, ok := o.header(p.module + ".qweight"); !ok {
			return nil // dummy weights have it plainly
		}
		o.fail("module %q of %d by %d features is not packed in words of %d codes", p.module,
			p.rows, p.cols, per)
		return nil
	}
	m := &tabled{Codes: compute.Codes{Rows: p.rows, Cols: p.cols, Group: f.Group, Values: signed},
		weights: newGrid(p.rows, p.cols, 1, per, true)}
	if f.Bits == 8 {
		m.Type = compute.Code8
	}
	if !f.Symmetric {
		m.Offset = []float32{}
	}
	m.affine(o, p, per, f.Group)
	m.order(o, p.module+".g_idx", f.Ordered)
	m.code, m.zero = m.words(f.Bits), func(row, col int) int {
		v := int(m.zeros.word(row, col)>>(row%per*f.Bits)) & (1<<f.Bits - 1)
		if !f.Exact {
			v = (v + 1) & (1<<f.Bits - 1)
		}
		return v - 1<<(f.Bits-1)
	}
	if _, ok := o.header(m.zeros.Name); f.Symmetric && !ok {
		m.zero = nil // dummy weights are of no kind
	}
	return m
}

// affine opens qweight, qzeros and scales; per is how many codes a word has.
func (m *tabled) affine(o *opener, p *part, per, group int) {
	if group == 0 {
		group = p.cols
	}
	zeros := newGrid(p.rows, p.cols, per, group, true)
	m.zeros, m.scales = &zeros, newGrid(p.rows, p.cols, 1, group, true)
	m.weights.Tensor = o.tensor(p.module+".qweight", checkpoint.I32, m.weights.shape()...)
	m.zeros.Tensor = o.tensor(p.module+".qzeros", checkpoint.I32, m.zeros.shape()...)
	m.scales.Tensor = o.tensor(p.module+".scales", checkpoint.Invalid, m.scales.shape()...)
}

// order sorts the input features by their groups, which a tensor has if there is one, as there must
// be if so required, unless they are sorted.
func (m *tabled) order(o *opener, name string, required bool) {
	beside := ""
	if required {
		beside = m.weights.Name
	}
	if !o.has(name, beside) {
		return
	}
	index := o.tensor(name, checkpoint.I32, m.Cols)
	if o.err != nil || len(index.Data) == 0 {
		return
	}
	if m.Order, o.err = groupOrder(index, m.Group); m.Order == nil {
		return
	}
	m.place = make([]int32, m.Cols)
	for to, from := range m.Order {
		m.place[from] = int32(to)
	}
}

// groupOrder is the order in which input features lie group by group, of which index is the group
// of each, nil if they do already. All groups are of size features, but for the last one; 0 is one
// group.
func groupOrder(index checkpoint.Tensor, size int) ([]int32, error) {
	n := len(index.Data) / 4
	if size == 0 {
		size = n
	}
	groups := make([][]int32, (n+size-1)/size)
	sorted := true
	for i := range n {
		g := int(int32(binary.LittleEndian.Uint32(index.Data[4*i:])))
		if g < 0 || g >= len(groups) {
			return nil, fmt.Errorf("tensor %q: input feature %d is in group %d of %d", index.Name,
				i, g, len(groups))
		}
		groups[g] = append(groups[g], int32(i))
		sorted = sorted && g == i/size
	}
	if sorted {
		return nil, nil
	}
	for g, members := range groups {
		if want := min(size, n-g*size); len(members) != want {
			return nil, fmt.Errorf("tensor %q: group %d has %d input features, not %d", index.Name,
				g, len(members), want)
		}
	}
	return slices.Concat(groups...), nil
}

// words has codes of so many bits in words of neighbouring input features.
func (m *tabled) words(bits int) coder {
	per, flip := 32/bits, byte(0)
	if bits == 8 {
		flip = 0x80 // the middle becomes 0
	}
	return func(dst *compute.Codes, at int, rows run, col int) error {
		for first := col / per * per; first < col+dst.Cols; first += per {
			lo, hi := max(first, col), min(first+per, col+dst.Cols)
			words := m.weights.Data[4*m.weights.index(0, first):]
			for i := range rows.n {
				w := binary.LittleEndian.Uint32(words[4*rows.row(i):])
				to := dst.Code[(at+i)*dst.Cols:][:dst.Cols]
				if bits == 4 && hi-lo == per {
					binary.LittleEndian.PutUint64(to[lo-col:], spread(w))
					continue
				}
				for in := lo; in < hi; in++ {
					to[in-col] = byte(w>>(bits*(in-first)))&(1<<bits-1) ^ flip
				}
			}
		}
		return nil
	}
}

// spread is the eight halves of bytes of a word as bytes, the lowest first.
func spread(w uint32) uint64 {
	x := uint64(w)
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	return (x | x<<4) & 0x0f0f0f0f0f0f0f0f
}

// AWQ is the layout "gemm" of AutoAWQ: of a module qweight, words of four-bit codes of neighbouring
// output features, of eight first the even ones, [input features][output features/8]; qzeros, the
// same of the codes that stand for 0, [groups][output features/8]; scales [groups][output
// features].
type AWQ struct {
	// Group is how many input features share a scale, 0 for all.
	Group int
}

// open implements Format.
func (f AWQ) open(o *opener, p *part) matrix {
	const per = 8
	if o.plain(p, ".qweight") {
		return nil
	}
	if p.rows%per != 0 {
		if _, ok := o.header(p.module + ".qweight"); !ok {
			return nil
		}
		o.fail("module %q of %d output features is not packed in words of %d codes", p.module,
			p.rows, per)
		return nil
	}
	m := &tabled{Codes: compute.Codes{Rows: p.rows, Cols: p.cols, Group: f.Group, Values: signed,
		Offset: []float32{}}, weights: newGrid(p.rows, p.cols, per, 1, true)}
	m.affine(o, p, per, f.Group)
	shift := func(row int) int { return 4 * (row%2*4 + row%per/2) }
	m.zero = func(row, col int) int { return int(m.zeros.word(row, col)>>shift(row)&15) - 8 }
	m.code = func(dst *compute.Codes, at int, rows run, col int) error {
		for c := range dst.Cols {
			words := m.weights.Data[4*m.weights.index(0, col+c):]
			for i := range rows.n {
				row := rows.row(i)
				w := binary.LittleEndian.Uint32(words[row/per*4:])
				dst.Code[(at+i)*dst.Cols+c] = byte(w>>shift(row)) & 15
			}
		}
		return nil
	}
	return m
}
