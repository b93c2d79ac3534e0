package layers

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// Source gives tensors by name; checkpoint.Checkpoint is the usual one.
type Source interface {
	// Tensor returns the named tensor, which must have the given shape.
	Tensor(name string, shape ...int) (checkpoint.Tensor, error)
	// Has tells whether the checkpoint has the tensor.
	Has(name string) bool
	// Release tells that the bytes of t will not be read again.
	Release(t checkpoint.Tensor)
	// Rest tells that the bytes of t will not all be read soon: they need no memory.
	Rest(t checkpoint.Tensor)
	// Written tells whether others may have written the bytes of t since the last call, or since it
	// was opened.
	Written(t checkpoint.Tensor) bool
}

// Loader makes the layers of one rank, reading of each tensor what the rank holds of it. The first
// error stays: from then on it reads nothing, its layers are nil, and Err returns it. So a model is
// written as a list of layers and asks once.
type Loader struct {
	*rank
	src      Source
	progress func(bytes int64)
	bytes    int64
	// scale, unless it is nil, weighs the layers only: nothing of them is read or kept.
	scale *scale
	head  int64 // bytes of the output head
	err   error
	// strict refuses tables with elements that are not finite.
	strict  bool
	weights []weight
	// tables are the tensors that stay in use: what embeddings are looked up in.
	tables []table
	// lost is why tables are not what they were.
	lost error
}

// NewLoader returns a loader of layers that run on d as a rank of g. progress, when not nil, is
// called with the number of checkpoint bytes read so far.
func NewLoader(d *Device, g Group, src Source, progress func(bytes int64)) *Loader {
	return &Loader{rank: &rank{dev: d.cpu, group: g}, src: src, progress: progress}
}

// Strict has the loader refuse a table, too, that has an element that is infinite or NaN. Without
// it only what looks such an element up is unsound.
func (l *Loader) Strict() { l.strict = true }

// NotFinite says that a tensor has an element that is infinite or NaN, or is so in the type that
// the model runs in.
type NotFinite struct {
	Tensor string
	// Err says which element.
	Err error
}

func (e *NotFinite) Error() string { return fmt.Sprintf("tensor %q: %v", e.Tensor, e.Err) }

// Unwrap returns which element it is.
func (e *NotFinite) Unwrap() error { return e.Err }

// Weigh returns a loader of layers that cannot run: of src it asks the shapes and types of tensors
// alone, to count their bytes, and those of the layers on a device that runs models in dtype.
// Sequences have so many positions at most.
func Weigh(g Group, src Source, dtype compute.DType, positions int) *Loader {
	return &Loader{rank: &rank{group: g}, src: src,
		scale: &scale{dtype: dtype, positions: positions, widths: map[*Tensor]int{}}}
}

// Footprint is the memory that layers take, in bytes.
type Footprint struct {
	// Packed is the weights as they are multiplied by, Vectors those that are not.
	Packed, Vectors int64
	// Tables are what embeddings are looked up in: they stay in the source's memory.
	Tables int64
	// Tensors are the largest of the source's tensors that are held at a time.
	Tensors int64
	// Width is how many float32 the layers compute in for each row of a step.
	Width int64
}

// scale is what layers are weighed with.
type scale struct {
	dtype     compute.DType
	positions int
	Footprint
	// widths are the largest of the tensors that layers share, given the widest input of a product,
	// which is copied for it.
	widths map[*Tensor]int
	given  int
}

// widen takes note that a layer makes a shared tensor so wide; nil stands for memory of its own.
func (l *Loader) widen(t *Tensor, width int) {
	switch {
	case l.scale == nil:
	case t == nil:
		l.scale.Width += int64(width)
	default:
		l.scale.widths[t] = max(l.scale.widths[t], width)
	}
}

// Own takes note of a tensor so wide that the model itself computes in.
func (l *Loader) Own(width int) { l.widen(nil, width) }

// add adds a matrix of the sources to what is weighed.
func (s *scale) add(chunks int, sources []gemm.Source) error {
	n, err := cpu.PackedBytes(s.dtype, chunks, sources...)
	if err != nil {
		return err
	}
	page := int64(os.Getpagesize())
	s.Packed += (n + page - 1) / page * page
	var held int64
	for _, x := range sources {
		s.given = max(s.given, x.ColHi-x.ColLo)
		held += int64(x.Rows) * int64(x.Cols) * int64(x.Kind.Size())
	}
	s.Tensors = max(s.Tensors, held)
	return nil
}

// Footprint is what the layers take that were weighed.
func (l *Loader) Footprint() Footprint {
	f := l.scale.Footprint
	f.Width += int64(l.scale.given)
	for _, width := range l.scale.widths {
		f.Width += int64(width)
	}
	return f
}

// Bytes are those of the checkpoint that the layers were made of, without the tables in which
// embeddings are looked up, and those of them that are the output head's.
func (l *Loader) Bytes() (read, head int64) { return l.bytes, l.head }

// Enter says that the layers that run next are those of the model's layer.
func (l *Loader) Enter(layer int) {
	l.layer = layer
	l.report(false)
}

// Err is the first error.
func (l *Loader) Err() error { return l.err }

// Has tells whether the checkpoint has the tensor.
func (l *Loader) Has(tensor string) bool { return l.src.Has(tensor) }

// Free gives back the memory of all layers that were made, and what is still held of the source.
func (l *Loader) Free() {
	for _, w := range l.weights {
		w.packed.Free()
	}
	for _, t := range l.tables {
		l.src.Release(t.Tensor)
	}
	l.weights, l.tables = nil, nil
}

// Retire is Free, but the memory of the weights is kept for what is loaded next on the device.
func (l *Loader) Retire() {
	for _, w := range l.weights {
		l.dev.Spare().Release(w.packed)
	}
	l.weights = nil
	l.Free()
}

// Reserve has the system find memory for as many weights, unless the device keeps some already.
func (l *Loader) Reserve() error {
	if !l.dev.Spare().Empty() {
		return nil
	}
	like := make([]*gemm.Matrix, len(l.weights))
	for i, w := range l.weights {
		like[i] = w.packed
	}
	return l.dev.Spare().Reserve(l.dev.Pool(), like)
}

// fail keeps the first error and returns whether there is one.
func (l *Loader) fail(err error) bool {
	if l.err == nil {
		l.err = err
	}
	return l.err != nil
}

// count adds to the bytes reported as read.
func (l *Loader) count(bytes int64) {
	l.bytes += bytes
	if l.progress != nil {
		l.progress(l.bytes)
	}
}

// part is what the rank holds of a module's weight, a [rows][cols] matrix of output by input
// features: a range of either. Of the module's bias it holds the same rows.
type part struct {
	module       string
	rows, cols   int
	rowLo, rowHi int
	colLo, colHi int
}

// whole is all of a module, held by every rank.
func whole(module string, rows, cols int) part {
	return part{module: module, rows: rows, cols: cols, rowHi: rows, colHi: cols}
}

// columnPart is the rank's share of a module's output features.
func (l *Loader) columnPart(module string, rows, cols int) part {
	p := whole(module, rows, cols)
	n := rows / l.group.Size
	p.rowLo, p.rowHi = l.group.Rank*n, (l.group.Rank+1)*n
	return p
}

// rowPart is the rank's share of a module's input features.
func (l *Loader) rowPart(module string, rows, cols int) part {
	p := whole(module, rows, cols)
	n := cols / l.group.Size
	p.colLo, p.colHi = l.group.Rank*n, (l.group.Rank+1)*n
	return p
}

// kvPart is the rank's key or value heads; with more ranks than heads, neighbours hold the same
// one.
func (l *Loader) kvPart(module string, h Heads, cols int) part {
	p := whole(module, h.KV*h.Dim, cols)
	first := l.group.Rank * h.KV / l.group.Size
	p.rowLo, p.rowHi = first*h.Dim, (first+l.local(h).KV)*h.Dim
	return p
}

// weight packs the parts, stacked. chunks is 1 for whole sums, else the rank's share of Chunks.
func (l *Loader) weight(chunks int, parts ...part) weight {
	if l.err != nil {
		return weight{}
	}
	sources := make([]gemm.Source, 0, len(parts))
	var bytes int64
	var t checkpoint.Tensor
	for i, p := range parts {
		if i == 0 || p.module != parts[i-1].module {
			var err error
			if t, err = l.src.Tensor(p.module+".weight", p.rows, p.cols); l.fail(err) {
				return weight{}
			}
			defer l.src.Release(t)
		}
		kind, err := weightKind(t)
		if l.fail(err) {
			return weight{}
		}
		sources = append(sources, gemm.Source{Kind: kind, Data: t.Data, Rows: p.rows, Cols: p.cols,
			RowLo: p.rowLo, RowHi: p.rowHi, ColLo: p.colLo, ColHi: p.colHi})
		bytes += int64(p.rowHi-p.rowLo) * int64(p.colHi-p.colLo) * int64(t.DType.Size())
	}
	if l.scale != nil {
		if err := l.scale.add(chunks, sources); err != nil {
			l.fail(fmt.Errorf("tensor %q: %w", parts[0].module+".weight", err))
			return weight{}
		}
		l.count(bytes)
		return weight{}
	}
	for i := range sources {
		prefetch(&sources[i])
	}
	m, err := l.dev.Pack(chunks, sources...)
	if err != nil {
		if bad := (*gemm.NotFinite)(nil); errors.As(err, &bad) {
			l.fail(&NotFinite{parts[bad.Source].module + ".weight", err})
		}
		l.fail(fmt.Errorf("tensor %q: %w", parts[0].module+".weight", err))
		return weight{}
	}
	w := weight{packed: m}
	l.weights = append(l.weights, w)
	l.count(bytes)
	return w
}

// longRow is how many bytes of a row a disk reads alone in about the time in which it reads on to
// the next row.
const longRow = 64 << 10

// prefetch has the system read what a rank holds of a matrix: of long rows nothing else, of short
// ones all that lies between.
func prefetch(s *gemm.Source) {
	width := s.Kind.Size()
	at := func(row, col int) int { return (row*s.Cols + col) * width }
	step := s.RowHi - s.RowLo
	if (s.ColHi-s.ColLo)*width >= longRow && s.ColHi-s.ColLo < s.Cols {
		step = 1
	}
	for row := s.RowLo; row < s.RowHi; row += step {
		checkpoint.Prefetch(s.Data[at(row, s.ColLo):at(row+step-1, s.ColHi)])
	}
}

// bias reads and stacks the biases of the parts.
func (l *Loader) bias(parts ...part) []float32 {
	var all []float32
	for i := 0; i < len(parts); {
		// Parts of one module are read at once.
		p, n := parts[i], 1
		lo, hi := p.rowLo, p.rowHi
		for ; i+n < len(parts) && parts[i+n].module == p.module; n++ {
			lo, hi = min(lo, parts[i+n].rowLo), max(hi, parts[i+n].rowHi)
		}
		v := l.vector(p.module+".bias", p.rows, lo, hi)
		for _, p := range parts[i : i+n] {
			if v != nil {
				all = append(all, v[p.rowLo-lo:p.rowHi-lo]...)
			}
		}
		i += n
	}
	return all
}

// vector reads elements lo..hi of a one-dimensional tensor of n elements as float32.
func (l *Loader) vector(tensor string, n, lo, hi int) []float32 {
	if l.err != nil {
		return nil
	}
	t, err := l.src.Tensor(tensor, n)
	if l.fail(err) {
		return nil
	}
	defer l.src.Release(t)
	var v []float32
	if l.scale != nil {
		l.scale.Vectors += 4 * int64(hi-lo)
	} else {
		v = make([]float32, hi-lo)
		if l.fail(l.toFloat32(v, t, lo)) {
			return nil
		}
		if !half.AllFinite(v) {
			i := slices.IndexFunc(v, func(x float32) bool {
				return math.IsInf(float64(x), 0) || x != x
			})
			l.fail(&NotFinite{tensor,
				fmt.Errorf("element [%d] is %v, which is no weight", lo+i, v[i])})
			return nil
		}
	}
	l.count(int64(hi-lo) * int64(t.DType.Size()))
	return v
}

// toFloat32 converts len(dst) elements of t from element at on.
func (r *rank) toFloat32(dst []float32, t checkpoint.Tensor, at int) error {
	if len(dst) == 0 {
		return nil
	}
	raw := unsafe.Pointer(&t.Data[at*t.DType.Size()])
	switch t.DType {
	case checkpoint.BF16:
		r.dev.Vec().FromBF16(dst, unsafe.Slice((*uint16)(raw), len(dst)))
	case checkpoint.F16:
		r.dev.Vec().FromF16(dst, unsafe.Slice((*uint16)(raw), len(dst)))
	case checkpoint.F32:
		copy(dst, unsafe.Slice((*float32)(raw), len(dst)))
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
