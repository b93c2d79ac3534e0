package model

import (
	"fmt"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
	"github.com/eagleray/eagleray/internal/model/checkpoint"
)

// loader reads one rank's shard tensor by tensor.
type loader struct {
	cfg      *checkpoint.Config
	src      Source
	dev      *cpu.Device
	shard    Shard
	progress func(int64)
	bytes    int64
	matrices []*gemm.Matrix
	// tables are the tensors that stay in use: what embeddings are looked up in.
	tables []checkpoint.Tensor
}

// free gives back what was packed and what is still held of the source; used when loading fails half-way and by the
// models' Close.
func (l *loader) free() {
	for _, m := range l.matrices {
		m.Free()
	}
	for _, t := range l.tables {
		l.src.Release(t)
	}
	l.matrices, l.tables = nil, nil
}

// count adds to the bytes reported as read.
func (l *loader) count(bytes int64) {
	l.bytes += bytes
	if l.progress != nil {
		l.progress(l.bytes)
	}
}

// part is a slice of a tensor along one axis: rows or columns lo..hi of a matrix.
type part struct {
	name       string
	rows, cols int
	rowLo      int
	rowHi      int
	colLo      int
	colHi      int
}

// whole is all of a [rows][cols] matrix.
func whole(name string, rows, cols int) part {
	return part{name: name, rows: rows, cols: cols, rowHi: rows, colHi: cols}
}

// columnPart is this rank's share of the output features of a column-parallel matrix.
func (l *loader) columnPart(name string, rows, cols int) part {
	p := whole(name, rows, cols)
	n := rows / l.shard.Size
	p.rowLo, p.rowHi = l.shard.Rank*n, (l.shard.Rank+1)*n
	return p
}

// rowPart is this rank's share of the input features of a row-parallel matrix.
func (l *loader) rowPart(name string, rows, cols int) part {
	p := whole(name, rows, cols)
	n := cols / l.shard.Size
	p.colLo, p.colHi = l.shard.Rank*n, (l.shard.Rank+1)*n
	return p
}

// kvPart is this rank's key or value heads; with more ranks than heads, neighbours hold the same head.
func (l *loader) kvPart(name string, cols int) part {
	c := l.cfg
	p := whole(name, c.KVHeads*c.HeadDim, cols)
	n := LocalKVHeads(c, l.shard.Size)
	first := l.shard.Rank * c.KVHeads / l.shard.Size
	p.rowLo, p.rowHi = first*c.HeadDim, (first+n)*c.HeadDim
	return p
}

// matrix packs the stacked parts. chunks is 1 for whole sums, else the rank's share of Chunks.
func (l *loader) matrix(chunks int, parts ...part) (*gemm.Matrix, error) {
	sources := make([]gemm.Source, 0, len(parts))
	tensors := make([]checkpoint.Tensor, 0, len(parts))
	defer func() {
		for _, t := range tensors {
			l.src.Release(t)
		}
	}()
	var bytes int64
	for _, p := range parts {
		t, err := l.src.Tensor(p.name, p.rows, p.cols)
		if err != nil {
			return nil, err
		}
		tensors = append(tensors, t)
		kind, err := weightKind(t)
		if err != nil {
			return nil, err
		}
		sources = append(sources, gemm.Source{Kind: kind, Data: t.Data, Rows: p.rows, Cols: p.cols,
			RowLo: p.rowLo, RowHi: p.rowHi, ColLo: p.colLo, ColHi: p.colHi})
		bytes += int64(p.rowHi-p.rowLo) * int64(p.colHi-p.colLo) * int64(t.DType.Size())
	}
	m, err := l.dev.Pack(chunks, sources...)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", parts[0].name, err)
	}
	l.matrices = append(l.matrices, m)
	l.count(bytes)
	return m, nil
}

// column packs column-parallel parts: whole sums over the input features.
func (l *loader) column(parts ...part) (*gemm.Matrix, error) { return l.matrix(1, parts...) }

// row packs this rank's part of a row-parallel matrix in its share of the fixed chunks.
func (l *loader) row(name string, rows, cols int) (*gemm.Matrix, error) {
	return l.matrix(Chunks/l.shard.Size, l.rowPart(name, rows, cols))
}

// vector reads elements lo..hi of a one-dimensional tensor of n elements as float32.
func (l *loader) vector(name string, n, lo, hi int) ([]float32, error) {
	t, err := l.src.Tensor(name, n)
	if err != nil {
		return nil, err
	}
	defer l.src.Release(t)
	v := make([]float32, hi-lo)
	if err := toFloat32(l.dev, v, t, lo); err != nil {
		return nil, err
	}
	l.count(int64(hi-lo) * int64(t.DType.Size()))
	return v, nil
}

// fullVector reads a one-dimensional tensor of n elements as float32.
func (l *loader) fullVector(name string, n int) ([]float32, error) { return l.vector(name, n, 0, n) }

// biasParts reads and stacks the biases that belong to the stacked parts of a column-parallel matrix.
func (l *loader) biasParts(parts ...part) ([]float32, error) {
	var all []float32
	for _, p := range parts {
		v, err := l.vector(p.name, p.rows, p.rowLo, p.rowHi)
		if err != nil {
			return nil, err
		}
		all = append(all, v...)
	}
	return all, nil
}

// toFloat32 converts len(dst) elements of t from element at on.
func toFloat32(d *cpu.Device, dst []float32, t checkpoint.Tensor, at int) error {
	if len(dst) == 0 {
		return nil
	}
	raw := t.Data[at*t.DType.Size():]
	switch t.DType {
	case checkpoint.BF16:
		d.Vec().FromBF16(dst, unsafe.Slice((*uint16)(unsafe.Pointer(&raw[0])), len(dst)))
	case checkpoint.F16:
		d.Vec().FromF16(dst, unsafe.Slice((*uint16)(unsafe.Pointer(&raw[0])), len(dst)))
	case checkpoint.F32:
		copy(dst, unsafe.Slice((*float32)(unsafe.Pointer(&raw[0])), len(dst)))
	default:
		return fmt.Errorf("tensor %q: dtype %s cannot be a weight", t.Name, t.DType)
	}
	return nil
}

func weightKind(t checkpoint.Tensor) (gemm.Kind, error) {
	switch t.DType {
	case checkpoint.BF16:
		return gemm.BF16, nil
	case checkpoint.F16:
		return gemm.F16, nil
	case checkpoint.F32:
		return gemm.F32, nil
	}
	return 0, fmt.Errorf("tensor %q: dtype %s cannot be a weight", t.Name, t.DType)
}

// embedding is a table looked up by row, kept in the checkpoint's own memory: only the rows that are used
// ever become resident, on every rank alike.
type embedding struct {
	dev   *cpu.Device
	table checkpoint.Tensor
	width int
}

func (l *loader) embedding(name string, rows, width int) (*embedding, error) {
	t, err := l.src.Tensor(name, rows, width)
	if err != nil {
		return nil, err
	}
	l.tables = append(l.tables, t)
	if _, err := weightKind(t); err != nil {
		return nil, err
	}
	return &embedding{dev: l.dev, table: t, width: width}, nil
}

// lookup writes row id to dst.
func (e *embedding) lookup(dst []float32, id int) {
	// The dtype was checked when the table was opened, so this cannot fail.
	_ = toFloat32(e.dev, dst[:e.width], e.table, id*e.width)
}
