package layers

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// ErrOverwritten is wrapped by the error about a table whose file has changed under it.
var ErrOverwritten = errors.New("overwritten in place: files of a model that is served are to be " +
	"replaced by renaming others")

// table is a tensor that is looked up where the checkpoint has it. Everything else is packed: this
// alone changes with a file that is overwritten while it is in use.
type table struct {
	checkpoint.Tensor
	// sums are the CRC-32 of its pieces.
	sums []uint32
	// written is what the source watches it with.
	written func() bool
	on      compute.Table // the device's, nil where the rows are blocks
}

// pieceSize is how much of a table a thread sums at a time.
const pieceSize = 1 << 20

// table opens a [rows][width] tensor that stays in the checkpoint's own memory.
func (l *Loader) table(tensor string, rows, width int) compute.Table {
	if l.err != nil {
		return nil
	}
	t, err := l.src.Tensor(tensor, rows, width)
	if l.fail(err) {
		return nil
	}
	l.tables = append(l.tables, table{Tensor: t, written: l.src.Watch(t)})
	var dtype compute.DType
	if !quantised(t) {
		if dtype, err = weightType(t); l.fail(err) {
			return nil
		}
	}
	if l.scale != nil {
		l.scale.Tables += t.Size(rows * width)
		if l.scale.blocks && quantised(t) {
			l.fail((&blocks{t}).sound(run{0, rows, 1}))
		}
		return nil
	}
	sums := l.storedSums(t)
	if sums == nil {
		checkpoint.Prefetch(t.Data)
		var at int
		if sums, at = l.sum(t); at >= 0 && l.strict {
			l.fail(notFinite(t, at*pieceSize))
		}
		l.made = true
	}
	made := &l.tables[len(l.tables)-1]
	made.sums = sums
	l.src.Rest(t)
	if quantised(t) {
		if l.strict {
			l.fail(finite(t))
		}
		return &blockTable{l.rank, t}
	}
	made.on = l.dev.Table(compute.Source{DType: dtype, Data: t.Data, Rows: rows, Cols: width,
		RowHi: rows, ColHi: width})
	return made.on
}

// Intact is an error when a table is not what it was when it was loaded: its file was overwritten.
// What was looked up before it is called is what was loaded. Once it is lost it stays so.
func (l *Loader) Intact() error {
	for i := range l.tables {
		t := &l.tables[i]
		if l.lost != nil {
			break
		}
		if t.written == nil || !t.written() {
			continue
		}
		if sums, _ := l.sum(t.Tensor); !slices.Equal(sums, t.sums) {
			l.lost = fmt.Errorf("tensor %q is looked up in its file, which was %w", t.Name,
				ErrOverwritten)
		}
	}
	return l.lost
}

// Fault is an error that wraps ErrOverwritten when a panic is that a table's file was cut under it,
// else nil.
func (l *Loader) Fault(panicked any) error {
	at, ok := panicked.(interface{ Addr() uintptr })
	if !ok {
		return nil
	}
	for _, t := range l.tables {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(t.Data)))
		if begin <= at.Addr() && at.Addr() < begin+uintptr(len(t.Data)) {
			return fmt.Errorf("tensor %q is looked up in its file, which cannot be read: it was "+
				"cut, or %w", t.Name, ErrOverwritten)
		}
	}
	return nil
}

// sum sums the pieces of a tensor, and says which one, -1 if none, has an element that is not
// finite.
func (l *Loader) sum(t checkpoint.Tensor) (sums []uint32, bad int) {
	task := sumTask{data: t.Data, finite: finiteIn(t.DType),
		sums: make([]uint32, (len(t.Data)+pieceSize-1)/pieceSize)}
	if quantised(t) { // pieces do not divide into blocks
		task.finite = func([]byte) bool { return true }
	}
	task.sound = make([]bool, len(task.sums))
	l.dev.Pool().Run(&task, len(task.sums))
	return task.sums, slices.Index(task.sound, false)
}

type sumTask struct {
	data   []byte
	finite func([]byte) bool
	sums   []uint32
	sound  []bool
}

// Do sums a piece.
func (t *sumTask) Do(piece, _ int) {
	const atOnce = 16 << 10 // stays in the cache
	data := t.data[piece*pieceSize:]
	data = data[:min(len(data), pieceSize)]
	t.sound[piece] = true
	for len(data) > 0 {
		part := data[:min(len(data), atOnce)]
		t.sums[piece] = crc32.Update(t.sums[piece], crc32.IEEETable, part)
		t.sound[piece] = t.finite(part) && t.sound[piece]
		data = data[len(part):]
	}
}

// notFinite names the first element of a table that is infinite or NaN, which is at a byte or after
// it.
func notFinite(t checkpoint.Tensor, from int) error {
	size := t.DType.Size()
	v := make([]float32, 1)
	for at := from; at < len(t.Data); at += size {
		switch one := t.Data[at : at+size]; t.DType {
		case checkpoint.BF16:
			half.DecodeBF16(v, one)
		case checkpoint.F16:
			half.DecodeF16(v, one)
		default:
			half.DecodeF32(v, one)
		}
		if x := float64(v[0]); math.IsInf(x, 0) || math.IsNaN(x) {
			width := t.Shape[len(t.Shape)-1]
			return &NotFinite{t.Name, fmt.Errorf("element [%d, %d] is %v, which is no weight",
				at/size/width, at/size%width, v[0])}
		}
	}
	return fmt.Errorf("tensor %q changed while it was loaded", t.Name)
}

// Integers reads a tensor of n integers of 64 bits; none where there is no data.
func (l *Loader) Integers(tensor string, n int) []int64 {
	if l.err != nil {
		return nil
	}
	t, err := l.src.Stored(tensor, checkpoint.I64, n)
	if l.fail(err) {
		return nil
	}
	defer l.src.Release(t)
	list := make([]int64, 0, n)
	for i := 0; i+8 <= len(t.Data); i += 8 {
		list = append(list, int64(binary.LittleEndian.Uint64(t.Data[i:])))
	}
	return list
}
