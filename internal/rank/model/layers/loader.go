package layers

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// Source gives tensors by name; checkpoint.Checkpoint is the usual one.
type Source interface {
	// Tensor returns the named tensor, which must have the given shape.
	Tensor(name string, shape ...int) (checkpoint.Tensor, error)
	// Stored is Tensor for one of a type that is no weight by itself.
	Stored(name string, dtype checkpoint.DType, shape ...int) (checkpoint.Tensor, error)
	// Has tells whether the checkpoint has the tensor.
	Has(name string) bool
	// Header is a tensor without its data; it is not ok where it is not known which tensors there
	// are, or there is none of the name.
	Header(name string) (t checkpoint.Tensor, ok bool)
	// Release tells that the bytes of t will not be read again.
	Release(t checkpoint.Tensor)
	// Rest tells that the bytes of t will not all be read soon: they need no memory.
	Rest(t checkpoint.Tensor)
	// Watch returns what tells whether others may have written the bytes of t since its last call,
	// or since t was opened: nil where nothing can.
	Watch(t checkpoint.Tensor) (written func() bool)
}

// Loader makes the layers of one rank, reading of each tensor what the rank holds of it. The first
// error stays: from then on it reads nothing, its layers are nil, and Err returns it. So a model is
// written as a list of layers and asks once.
type Loader struct {
	*rank
	src      Source
	progress func(bytes int64)
	scheme   Scheme
	bytes    int64
	// scale, unless it is nil, weighs the layers only: nothing of them is read or kept.
	scale *scale
	head  int64 // bytes of the output head
	err   error
	// strict refuses tables with elements that are not finite.
	strict bool
	// scaled says that attentions store keys and values with the checkpoint's scales.
	scaled bool
	// conv1D says that the plain weights of layers' modules are [in][out].
	conv1D bool
	// store, unless it is nil, has what an earlier load made. entries are what was made by this
	// one, but for their parts: made says that some of it was not in the store.
	store   Store
	entries []Entry
	made    bool
	weights []compute.Weight
	// movable are the mixtures of which ranks hold whole experts, in the order of their layers;
	// idle is the pass of a step in which their place has no rows.
	movable []*Mixture
	idle    func() error
	// adaptable are the weights that adapters may stand beside.
	adaptable []*adaptable
	// kept are tensors to be held once they have been opened, held those that are (see pin).
	kept []string
	held []checkpoint.Tensor
	// scratch is what codes lie in while a weight is made of them.
	scratch scratch
	// tables are the tensors that stay in use: what embeddings are looked up in.
	tables []table
	// lost is why tables are not what they were.
	lost error
	// loads are of the mixtures that were made.
	loads []counting
}

// NewLoader returns a loader of layers that run on d as a rank of g. progress, when not nil, is
// called with the number of checkpoint bytes read so far.
func NewLoader(d Device, g Group, src Source, progress func(bytes int64)) *Loader {
	l := &Loader{rank: &rank{dev: d, group: g}, src: src, progress: progress, scheme: Plain{}}
	l.idle = l.idles
	return l
}

// Use has weights made by a scheme; the default is Plain.
func (l *Loader) Use(s Scheme) { l.scheme = s }

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
// alone, to count their bytes, and those of the layers on a device that p plans. Sequences have so
// many positions at most, and steps so many rows.
func Weigh(g Group, src Source, p Planner, positions, rows int) *Loader {
	return &Loader{rank: &rank{group: g}, src: src, scheme: Plain{},
		scale: &scale{planner: p, positions: positions, rows: rows, widths: map[*Tensor]int{}}}
}

// Footprint is the memory that layers take, in bytes.
type Footprint struct {
	// Packed is the weights as they are multiplied by, Vectors those that are not. Step is how much
	// of Packed a step of one row reads: of a mixture the experts that the row is sent to.
	Packed, Vectors, Step int64
	// Tables are what embeddings are looked up in: they stay in the source's memory.
	Tables int64
	// Tensors are the largest of the source's tensors that are held at a time, Unpacked is what the
	// largest of those that are quantised takes while a weight is made of it.
	Tensors, Unpacked int64
	// Width is how many float32 the layers compute in for each row of a step.
	Width int64
}

// scale is what layers are weighed with.
type scale struct {
	planner         Planner
	positions, rows int
	Footprint
	// widths are the largest of the tensors that layers share, given the widest input of a product,
	// which is copied for it.
	widths map[*Tensor]int
	given  int
	// moving is what the experts of a layer take while they move.
	moving int64
	// of is how many experts share the rows, of which each row has per: 0 for layers of all rows.
	per, of int64
	// values and blocks are looked at (see Inspect); ordered is Ordered.
	values, blocks, ordered bool
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

// add adds a weight of so many bytes to what is weighed.
func (s *scale) add(bytes int64) {
	bytes = pages(bytes)
	s.Packed += bytes
	if s.of > 0 {
		bytes = bytes * s.per / s.of
	}
	s.Step += bytes
}

// pages is what so many bytes take of memory.
func pages(bytes int64) int64 {
	page := int64(os.Getpagesize())
	return (bytes + page - 1) / page * page
}

// weighed is the bytes of the weights that were weighed so far.
func (l *Loader) weighed() int64 {
	if l.scale == nil {
		return 0
	}
	return l.scale.Packed
}

// Footprint is what the layers take that were weighed.
func (l *Loader) Footprint() Footprint {
	f := l.scale.Footprint
	f.Packed += l.scale.moving
	f.Width += int64(l.scale.given)
	for _, width := range l.scale.widths {
		f.Width += int64(width)
	}
	return f
}

// Bytes are those of the checkpoint that the layers were made of, without the tables in which
// embeddings are looked up, and those of them that are the output head's.
func (l *Loader) Bytes() (read, head int64) { return l.bytes, l.head }

// Conv1D says that plain weights of layers' modules are stored as transformers' Conv1D has them,
// [in][out].
func (l *Loader) Conv1D() { l.conv1D = true }

// Enter says that the layers that run next are those of the model's layer.
func (l *Loader) Enter(layer int) {
	l.within = status.Within{Layer: layer}
	l.report()
}

// Err is the first error.
func (l *Loader) Err() error { return l.err }

// Has tells whether the checkpoint has the tensor.
func (l *Loader) Has(tensor string) bool { return l.src.Has(tensor) }

// Shape is that of an optional tensor, nil if the checkpoint has none.
func (l *Loader) Shape(tensor string) []int {
	t, _ := l.src.Header(tensor)
	return t.Shape
}

// Free gives back the memory of all layers that were made, and what is still held of the source.
func (l *Loader) Free() {
	for _, w := range l.weights {
		w.Free()
	}
	for _, t := range l.tables {
		if t.on != nil {
			t.on.Free()
		}
		l.src.Release(t.Tensor)
	}
	for id := range l.adapters.places {
		l.Unadapt(id)
	}
	l.weights, l.entries, l.tables = nil, nil, nil
}

// Retire is Free, but the memory of the weights is kept for what is loaded next on the device.
func (l *Loader) Retire() {
	for _, w := range l.weights {
		l.dev.Retire(w)
	}
	l.weights = nil
	l.Free()
}

// Reserve has the system find memory for as many weights, unless the device keeps some already.
func (l *Loader) Reserve() error { return l.dev.Reserve(l.weights) }

// fail keeps the first error and returns whether there is one.
func (l *Loader) fail(err error) bool {
	if l.err == nil {
		l.err = err
	}
	return l.err != nil
}

// only is the device as one that can do what others cannot. Where it is none, the error says what
// is missing; nothing is where the model is only weighed.
func only[D any](l *Loader, missing string) D {
	d, ok := l.dev.(D)
	if !ok && l.scale == nil {
		l.fail(errors.New(missing))
	}
	return d
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
	// turned says that the rank multiplies by the rectangle transposed: its rows are input
	// features.
	turned bool
	// conv1D says that its weight, where it is plain, is stored [cols][rows].
	conv1D bool
	// stack is where the module is stored with those of other experts; nil for a tensor of its own.
	stack *stack
}

// stack is a tensor in which the modules of experts lie one after the other, [count][rows][cols]:
// of each a rank takes row first, and each step-th after it. Gates and projections up are often
// stored so together.
type stack struct {
	tensor       string
	count, index int
	rows         int
	first, step  int
	// transposed says that the tensor is [count][cols][rows].
	transposed bool
}

// in is the part in a stack.
func (p part) in(s stack) part {
	p.stack = &s
	return p
}

// tensor is where the part's weight is stored plainly.
func (p part) tensor() (name string, shape []int) {
	s := p.stack
	switch {
	case s == nil && p.conv1D:
		return p.module + ".weight", []int{p.cols, p.rows}
	case s == nil:
		return p.module + ".weight", []int{p.rows, p.cols}
	case s.transposed:
		return s.tensor, []int{s.count, p.cols, s.rows}
	}
	return s.tensor, []int{s.count, s.rows, p.cols}
}

// source is the part of a tensor that has its weight plainly.
func (p part) source(dtype compute.DType, data []byte) compute.Source {
	size := dtype.Size()
	r := compute.Source{DType: dtype, Data: data, Rows: p.rows, Cols: p.cols,
		RowLo: p.rowLo, RowHi: p.rowHi, ColLo: p.colLo, ColHi: p.colHi}
	if p.conv1D {
		r.RowStride, r.ColStride = 1, p.rows
	}
	if s := p.stack; s != nil {
		one, first := s.rows*p.cols*size, s.first*p.cols*size
		r.RowStride, r.ColStride = s.step*p.cols, 1
		if s.transposed {
			r.RowStride, r.ColStride, first = s.step, s.rows, s.first*size
		}
		if len(data) > 0 { // it is read, not only weighed
			r.Data = data[s.index*one+first : (s.index+1)*one]
		}
	}
	if p.turned {
		rows := p.rowHi - p.rowLo
		if len(data) > 0 {
			r.Data = r.Data[p.rowLo*p.cols*size : p.rowHi*p.cols*size]
		}
		r.Rows, r.Cols, r.RowStride, r.ColStride = p.cols, rows, 1, p.cols
		r.RowLo, r.RowHi, r.ColLo, r.ColHi = p.colLo, p.colHi, 0, rows
	}
	return r
}

// whole is all of a module, held by every rank.
func whole(module string, rows, cols int) part {
	return part{module: module, rows: rows, cols: cols, rowHi: rows, colHi: cols}
}

// ofLayer is all of a module of a layer.
func (l *Loader) ofLayer(module string, rows, cols int) part {
	p := whole(module, rows, cols)
	p.conv1D = l.conv1D
	return p
}

// columnPart is the rank's share of a module's output features.
func (l *Loader) columnPart(module string, rows, cols int) part {
	p := l.ofLayer(module, rows, cols)
	n := rows / l.group.Size
	p.rowLo, p.rowHi = l.group.Rank*n, (l.group.Rank+1)*n
	return p
}

// rowPart is the rank's share of a module's input features.
func (l *Loader) rowPart(module string, rows, cols int) part {
	p := l.ofLayer(module, rows, cols)
	n := cols / l.group.Size
	p.colLo, p.colHi = l.group.Rank*n, (l.group.Rank+1)*n
	return p
}

// kvPart is the rank's key or value heads; with more ranks than heads, neighbours hold the same
// one.
func (l *Loader) kvPart(module string, h Heads, cols int) part {
	p := l.ofLayer(module, h.KV*h.Dim, cols)
	first := l.group.Rank * h.KV / l.group.Size
	p.rowLo, p.rowHi = first*h.Dim, (first+l.local(h).KV)*h.Dim
	return p
}

// weight makes the weight of parts, stacked. chunks is 1 for whole sums, else the rank's share of
// Chunks.
func (l *Loader) weight(chunks int, parts ...part) compute.Weight {
	return l.weightIn(l.scheme, chunks, parts...)
}

// outside is the scheme of routers and of what turns vectors back to tokens: a plain one, but where
// the model's is Stored.Outside.
func (l *Loader) outside() Scheme {
	if s, ok := l.scheme.(Stored); ok && s.Outside {
		return s
	}
	return Plain{}
}

// weightIn is weight by a scheme.
func (l *Loader) weightIn(s Scheme, chunks int, parts ...part) compute.Weight {
	if l.err != nil {
		return nil
	}
	if l.scale != nil {
		held, read, err := s.bytes(l, chunks, parts)
		if l.fail(err) {
			return nil
		}
		l.scale.add(held)
		l.count(read)
		return nil
	}
	e := Entry{Key: weightKey(s, chunks, parts)}
	w := l.stored(&e)
	if w == nil {
		var err error
		if w, e.Read, err = s.weight(l, chunks, parts); l.fail(err) {
			return nil
		}
		l.made = true
	}
	l.weights, l.entries = append(l.weights, w), append(l.entries, e)
	l.count(e.Read)
	return w
}

// pin has tensors held, once one is opened, until the function that it returns is called: several
// modules are read of each.
func (l *Loader) pin(tensors ...string) (release func()) {
	l.kept = tensors
	return func() {
		for _, t := range l.held {
			l.src.Release(t)
		}
		l.kept, l.held = nil, nil
	}
}

// open opens a tensor of the source, and holds it if it is to be pinned.
func (l *Loader) open(name string, shape ...int) (checkpoint.Tensor, error) {
	if i := slices.Index(l.kept, name); i >= 0 {
		t, err := l.src.Tensor(name, shape...)
		if err != nil {
			return t, err
		}
		l.kept, l.held = slices.Delete(l.kept, i, i+1), append(l.held, t)
	}
	return l.src.Tensor(name, shape...)
}

// bias reads and stacks the biases of the parts.
func (l *Loader) bias(parts ...part) compute.Memory {
	var all []float32
	for i := 0; i < len(parts); {
		// Parts of one module are read at once.
		p, n := parts[i], 1
		lo, hi := p.rowLo, p.rowHi
		for ; i+n < len(parts) && parts[i+n].module == p.module; n++ {
			lo, hi = min(lo, parts[i+n].rowLo), max(hi, parts[i+n].rowHi)
		}
		v := l.floats(p.module+".bias", []int{p.rows}, lo, hi)
		for _, p := range parts[i : i+n] {
			if v != nil {
				all = append(all, v[p.rowLo-lo:p.rowHi-lo]...)
			}
		}
		i += n
	}
	return l.upload(all)
}

// vector reads elements lo..hi of a one-dimensional tensor of n elements.
func (l *Loader) vector(tensor string, n, lo, hi int) compute.Memory {
	return l.upload(l.floats(tensor, []int{n}, lo, hi))
}

// upload gives numbers to the device, unless the layers are weighed only.
func (l *Loader) upload(v []float32) compute.Memory {
	if v == nil || l.err != nil {
		return nil
	}
	return l.dev.Vector(v)
}

// floats reads elements lo..hi of a tensor as float32, nil when the layers are weighed only.
func (l *Loader) floats(tensor string, shape []int, lo, hi int) []float32 {
	if l.err != nil {
		return nil
	}
	t, err := l.src.Tensor(tensor, shape...)
	if l.fail(err) {
		return nil
	}
	defer l.src.Release(t)
	var v []float32
	if l.scale == nil || l.scale.values {
		if v, err = decode(t, lo, hi); l.fail(err) {
			return nil
		}
	}
	l.count(t.Size(hi - lo))
	if l.scale != nil {
		l.scale.Vectors += 4 * int64(hi-lo)
		return nil
	}
	return v
}

// decode is elements lo..hi of a tensor, which must be finite.
func decode(t checkpoint.Tensor, lo, hi int) ([]float32, error) {
	v := make([]float32, hi-lo)
	raw := t.Data[lo*t.DType.Size() : hi*t.DType.Size()]
	switch t.DType {
	case checkpoint.BF16:
		half.DecodeBF16(v, raw)
	case checkpoint.F16:
		half.DecodeF16(v, raw)
	case checkpoint.F32:
		half.DecodeF32(v, raw)
	default:
		_, err := weightType(t)
		return nil, err
	}
	if !half.AllFinite(v) {
		i := slices.IndexFunc(v, func(x float32) bool {
			return math.IsInf(float64(x), 0) || x != x
		})
		return nil, &NotFinite{t.Name,
			fmt.Errorf("element [%d] is %v, which is no weight", lo+i, v[i])}
	}
	return v, nil
}

// NoDevice plans nothing: what is read of a checkpoint is counted without it.
type NoDevice struct{}

// PackedBytes implements Planner.
func (NoDevice) PackedBytes(int, ...compute.Source) (int64, error) { return 0, nil }

// Int8Bytes implements Planner.
func (NoDevice) Int8Bytes(int, ...compute.Source) (int64, error) { return 0, nil }

// CodesBytes implements Planner.
func (NoDevice) CodesBytes(int, ...compute.Codes) (int64, error) { return 0, nil }

// RotaryBytes implements Planner.
func (NoDevice) RotaryBytes(dim, positions int) int64 { return 0 }

// MixtureWidth implements Planner.
func (NoDevice) MixtureWidth(hidden, inner, chunks, experts, perToken int) int { return 0 }

// VisitWidth implements Planner.
func (NoDevice) VisitWidth(mixture, hidden, experts, perToken, places, rows int) int { return 0 }

// AmongBytes implements Planner.
func (NoDevice) AmongBytes(kvHeads, headDim int) int { return 0 }

// ScratchPerThread implements Planner.
func (NoDevice) ScratchPerThread() int64 { return 0 }
