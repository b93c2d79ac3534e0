package layers

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/model/gguf"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// Blocks is the scheme of GGUF: a module's tensor is plain, or of blocks that are multiplied by as
// the codes that they are.
type Blocks struct{ Plain }

func (b Blocks) weight(l *Loader, chunks int, parts []part) (compute.Weight, int64, error) {
	tensors, release, err := l.tensors(parts)
	defer release()
	if err != nil {
		return nil, 0, err
	}
	if list := blocksOf(parts, tensors); list != nil {
		return l.packBlocks(chunks, list)
	}
	return b.Plain.weight(l, chunks, parts)
}

func (b Blocks) bytes(l *Loader, chunks int, parts []part) (held, read int64, err error) {
	tensors, release, err := l.tensors(parts)
	defer release()
	if err != nil {
		return 0, 0, err
	}
	if list := blocksOf(parts, tensors); list != nil {
		return l.blockBytes(chunks, list)
	}
	return b.Plain.bytes(l, chunks, parts)
}

// quantised tells whether a part's tensor is of blocks.
func quantised(t checkpoint.Tensor) bool { return t.DType == checkpoint.Quantised }

// blocks are consecutive parts of one tensor of blocks, with the same columns: one rectangle of
// codes.
type blocks struct {
	checkpoint.Tensor
	parts []part
	rows  int
}

// blocksOf groups parts whose tensors are all of blocks and are multiplied by as they are stored;
// it is nil for others.
func blocksOf(parts []part, tensors []checkpoint.Tensor) (list []blocks) {
	for i, p := range parts {
		if t := tensors[i]; !quantised(t) || p.turned || p.stack != nil {
			return nil
		}
		last := len(list) - 1
		if i == 0 || tensors[i].Name != tensors[i-1].Name || p.colLo != parts[i-1].colLo ||
			p.colHi != parts[i-1].colHi {
			list, last = append(list, blocks{Tensor: tensors[i]}), last+1
		}
		list[last].parts = append(list[last].parts, p)
		list[last].rows += p.rowHi - p.rowLo
	}
	return list
}

// form is what the rectangle is as codes, without them.
func (b *blocks) form() compute.Codes {
	return b.Blocks.Form(b.rows, b.parts[0].colLo, b.parts[0].colHi)
}

// read is how many of the tensor's bytes the rectangle is.
func (b *blocks) read() int64 {
	return int64(b.rows) * b.Size(b.parts[0].colHi-b.parts[0].colLo)
}

// unpackedBytes is what codes take while a weight is made of them.
func unpackedBytes(c *compute.Codes) int64 {
	cells := int64(c.Rows) * int64(c.Groups())
	if c.Offset != nil {
		cells *= 2
	}
	return int64(c.Rows)*int64(c.Cols) + 4*cells
}

// packBlocks makes a weight of rectangles of blocks, as the codes that they are.
func (l *Loader) packBlocks(chunks int, list []blocks) (compute.Weight, int64, error) {
	codes := make([]compute.Codes, len(list))
	var read int64
	for i := range list {
		b := &list[i]
		for _, p := range b.parts {
			row := b.Size(p.cols)
			checkpoint.Prefetch(b.Data[int64(p.rowLo)*row : int64(p.rowHi)*row])
		}
		codes[i] = b.form()
		gguf.Room(&codes[i])
		b.unpack(l, &codes[i])
		if !half.AllFinite(codes[i].Scale) || !half.AllFinite(codes[i].Offset) {
			return nil, 0, cmp.Or(finite(b.Tensor),
				fmt.Errorf("tensor %q changed while it was loaded", b.Name))
		}
		read += b.read()
	}
	w, err := l.dev.PackCodes(chunks, codes...)
	if bad := (*compute.NotFinite)(nil); errors.As(err, &bad) {
		return nil, 0, &NotFinite{list[bad.Source].Name, err}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("tensor %q: %w", list[0].Name, err)
	}
	return w, read, nil
}

// unpackTask unpacks rows of a rectangle, several at a time.
type unpackTask struct {
	codes *compute.Codes
	kind  gguf.Type
	data  []byte
	rows  []int // of the tensor
	row   int64 // bytes
	lo    int
}

// rowsAtOnce is how many rows a thread unpacks at a time.
const rowsAtOnce = 16

// Do unpacks some rows.
func (t *unpackTask) Do(piece, _ int) {
	for i := piece * rowsAtOnce; i < min((piece+1)*rowsAtOnce, len(t.rows)); i++ {
		at := int64(t.rows[i]) * t.row
		t.kind.Unpack(t.codes, i, t.data[at:at+t.row], t.lo)
	}
}

// unpack makes the codes of the rectangle.
func (b *blocks) unpack(l *Loader, c *compute.Codes) {
	t := unpackTask{codes: c, kind: b.Blocks, data: b.Data, row: b.Size(b.parts[0].cols),
		lo: b.parts[0].colLo, rows: make([]int, 0, b.rows)}
	for _, p := range b.parts {
		for row := p.rowLo; row < p.rowHi; row++ {
			t.rows = append(t.rows, row)
		}
	}
	l.dev.Pool().Run(&t, (len(t.rows)+rowsAtOnce-1)/rowsAtOnce)
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

// blockBytes is packBlocks for layers that are weighed.
func (l *Loader) blockBytes(chunks int, list []blocks) (held, read int64, err error) {
	forms := make([]compute.Codes, len(list))
	var stored, unpacked int64
	for i := range list {
		forms[i] = list[i].form()
		l.scale.given = max(l.scale.given, forms[i].Cols)
		stored += list[i].Size(list[i].Elements())
		unpacked += unpackedBytes(&forms[i])
		read += list[i].read()
	}
	l.scale.Tensors = max(l.scale.Tensors, stored)
	l.scale.Unpacked = max(l.scale.Unpacked, unpacked)
	if held, err = l.scale.planner.CodesBytes(chunks, forms...); err != nil {
		return 0, 0, fmt.Errorf("tensor %q: %w", list[0].Name, err)
	}
	return held, read, nil
}

// plainly is the tensor's numbers in float32, where they are weights beside others that are no
// blocks, or are multiplied by in another order than they are stored in.
func (l *Loader) plainly(t checkpoint.Tensor) checkpoint.Tensor {
	n := t.Elements()
	if l.scale != nil {
		l.scale.Unpacked = max(l.scale.Unpacked, 8*int64(n))
	} else {
		v := make([]float32, n)
		t.Blocks.Decode(v, t.Data)
		t.Data = make([]byte, 0, 4*n)
		for _, x := range v {
			t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(x))
		}
	}
	t.DType = checkpoint.F32
	return t
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
