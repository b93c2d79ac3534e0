package layers

import (
	"cmp"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// GGUF is the layout of tensors of blocks, which say themselves what they are; others are plain.
type GGUF struct{}

// quantised tells whether a tensor is of blocks.
func quantised(t checkpoint.Tensor) bool { return t.DType == checkpoint.Quantised }

// open implements Format.
func (GGUF) open(o *opener, p *part) matrix {
	name, shape := p.tensor()
	if t, ok := o.header(name); !ok || !quantised(t) {
		return nil
	}
	return &blocks{o.tensor(name, checkpoint.Invalid, shape...)}
}

// blocks is the matrix of a tensor of blocks.
type blocks struct{ checkpoint.Tensor }

// form implements matrix.
func (m *blocks) form() *compute.Codes {
	c := m.Blocks.Form(m.Shape[0], 0, m.Shape[1])
	return &c
}

// rows are rows of the tensor one after the other, the bytes between a run's included.
func (m *blocks) rows(r run) []byte {
	size := m.Size(m.Shape[1])
	return m.Data[int64(r.first)*size : int64(r.row(r.n-1)+1)*size]
}

// prefetch implements matrix.
func (m *blocks) prefetch(rows run, _, _ int) { checkpoint.Prefetch(m.rows(rows)) }

// stored implements matrix.
func (m *blocks) stored(rows, cols int) int64 { return int64(rows) * m.Size(cols) }

// sound implements matrix.
func (m *blocks) sound(rows run) error {
	if inThreads(rows, func(some run) bool {
		m.prefetch(some, 0, 0)
		return m.Blocks.Finite(m.rows(some))
	}) {
		return nil
	}
	return m.notFinite()
}

// notFinite is an error about the first element that is not finite.
func (m *blocks) notFinite() error {
	return cmp.Or(finite(m.Tensor), fmt.Errorf("tensor %q changed while it was loaded", m.Name))
}

// decode implements matrix.
func (m *blocks) decode(dst *compute.Codes, at int, rows run, col int) error {
	for i := range rows.n {
		m.Blocks.Unpack(dst, at+i, m.rows(run{rows.row(i), 1, 1}), col)
	}
	from, to := at*dst.Groups(), (at+rows.n)*dst.Groups()
	if half.AllFinite(dst.Scale[from:to]) &&
		(dst.Offset == nil || half.AllFinite(dst.Offset[from:to])) {
		return nil
	}
	return m.notFinite()
}

// finite is an error about the first element of a tensor of blocks that is not finite.
func finite(t checkpoint.Tensor) error {
	width := t.Shape[len(t.Shape)-1]
	row := make([]float32, width)
	size := t.Size(width)
	for r := range int64(len(t.Data)) / size {
		t.Blocks.Decode(row, t.Data[r*size:(r+1)*size])
		for col, v := range row {
			if math.IsInf(float64(v), 0) || v != v {
				return &NotFinite{t.Name, fmt.Errorf("element [%d, %d] is %v, which is no weight",
					r, col, v)}
			}
		}
	}
	return nil
}

// blockTable is a table of rows of blocks: a row becomes numbers as it is looked up.
type blockTable struct {
	*rank
	checkpoint.Tensor
}

// Lookup implements compute.Table.
func (t *blockTable) Lookup(dst *Tensor, ids []int32, offset int) {
	width := t.Shape[1]
	t.dev.Resize(dst, len(ids), width)
	v, row := dst.Floats(), t.Size(width)
	for i, id := range ids {
		at := (int64(id) + int64(offset)) * row
		t.Blocks.Decode(v[i*width:(i+1)*width], t.Data[at:at+row])
	}
	dst.Memory.Filled()
}

// Free implements compute.Table: the rows are the source's.
func (t *blockTable) Free() {}
