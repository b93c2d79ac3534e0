package gemm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"sync/atomic"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// maxBytes bounds a packed matrix and keeps all size arithmetic free of overflow.
const maxBytes = 1 << 46

// Pack copies the sources, stacked along N in the given order, into packed form; fused projections
// are several sources. The pool may be nil. Errors wrap ErrOptions or ErrSource, or come from the
// operating system when it has no memory; see Options.Finite, too.
func Pack(p *pool.Pool, opt Options, sources ...Source) (*Matrix, error) {
	if err := opt.check(); err != nil {
		return nil, err
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%w: none given", ErrSource)
	}
	m := newMatrix(opt)
	for i := range sources {
		if err := sources[i].whole(); err != nil {
			return nil, fmt.Errorf("%w %d: %w", ErrSource, i, err)
		}
	}
	if err := m.shape(sources); err != nil {
		return nil, err
	}
	if err := opt.Spare.place(m); err != nil {
		return nil, err
	}
	if m.codes != nil {
		m.codes.order(m.k, nil)
	}
	t := &packTask{m: m, sources: sources, ends: make([]int, len(sources)),
		buffers: make([]packBuffer, p.Threads()), ops: vec.New(opt.ISA)}
	end := 0
	for i := range sources {
		end += sources[i].RowHi - sources[i].RowLo
		t.ends[i] = end
	}
	p.Run(t, m.panels())
	if opt.Finite && t.bad.Load() {
		err := t.find()
		m.Free()
		return nil, err
	}
	return m, nil
}

// PackedBytes is the memory that Pack takes for the sources, of which only kinds and shapes are
// looked at, with the kernels of any instruction set. Errors wrap ErrSource.
func PackedBytes(kind Kind, chunks int, sources ...Source) (int64, error) {
	var most int64
	for _, rounded := range []bool{false, kind == I8} {
		for _, nr := range panelRows {
			m := newMatrix(Options{Kind: kind, Chunks: chunks, Rounded: rounded})
			m.kernels = &kernelSet{nr: nr}
			if err := m.shape(sources); err != nil {
				return 0, err
			}
			most = max(most, int64(m.panels())*int64(m.stride))
		}
	}
	return most, nil
}

// newMatrix is a matrix without a shape.
func newMatrix(opt Options) *Matrix {
	m := &Matrix{kind: opt.Kind, pieces: opt.Chunks, flags: follows()}
	if opt.Kind != I8 {
		m.rounded = opt.Rounded
		m.kernels = kernelsFor(opt)
		return m
	}
	m.codes = &codes{flags: flagWideScale}
	m.kernels = m.codes.choose(opt.ISA, &compute.Codes{Type: compute.Code8}, opt.Rounded)
	return m
}

// panelRows are the rows of a panel, of all kernels there are.
var panelRows = []int{portableNR, 32}

// shape is what the packed form of stacked sources has of sizes.
func (m *Matrix) shape(sources []Source) error {
	for i := range sources {
		if err := m.join(&sources[i]); err != nil {
			return fmt.Errorf("%w %d: %w", ErrSource, i, err)
		}
	}
	m.layOut()
	size := float64(m.panels()) * float64(m.kernels.nr) * float64(m.k+2*m.pieces) *
		float64(m.kind.Size())
	if size > maxBytes {
		return fmt.Errorf("%w: %d x %d is too large", ErrSource, m.n, m.k)
	}
	return nil
}

// whole checks that the source's data is all of it.
func (s *Source) whole() error {
	if !s.Kind.stored() || s.Rows <= 0 || s.Cols <= 0 || s.Rows > maxBytes/s.Cols {
		return nil // join says so
	}
	down, right := s.strides()
	if right < 0 || down < 0 || right > maxBytes/s.Cols || down > maxBytes/s.Rows {
		return fmt.Errorf("strides %d and %d of %d x %d", down, right, s.Rows, s.Cols)
	}
	want := ((s.Rows-1)*down + (s.Cols-1)*right + 1) * s.Kind.Size()
	if len(s.Data) < want || s.RowStride == 0 && s.ColStride == 0 && len(s.Data) != want {
		return fmt.Errorf("%d bytes for %d x %d of %v (want %d)",
			len(s.Data), s.Rows, s.Cols, s.Kind, want)
	}
	return nil
}

// NotFinite says that weights have an element that is infinite or NaN, or too large for the type of
// the matrix: every product with it would be unsound.
type NotFinite struct {
	// Source is the number of the source, Row and Col where it is in it.
	Source, Row, Col int
	// Value is what it is, Kind the type that it cannot be in.
	Value float32
	Kind  Kind
}

// Error names neither the tensor nor the source, which the caller knows.
func (e *NotFinite) Error() string {
	return fmt.Sprintf("element [%d, %d] is %v in %v, which is no weight",
		e.Row, e.Col, e.Value, e.Kind)
}

// find finds the first element because of which the matrix cannot be used.
func (t *packTask) find() error {
	for i, s := range t.sources {
		lo, hi := s.ColLo, s.ColHi
		if t.m.kind == I8 { // the scale is of the whole row
			lo, hi = 0, s.Cols
		}
		v, buffer := make([]float32, hi-lo), make([]byte, 4*(hi-lo))
		for row := s.RowLo; row < s.RowHi; row++ {
			decode(v, s.Kind, s.row(row, lo, hi-lo, buffer))
			for j, x := range v {
				if y := t.m.kind.round(x); math.IsInf(float64(y), 0) || y != y {
					return &NotFinite{i, row, lo + j, y, t.m.kind}
				}
			}
		}
	}
	return errors.New("weights changed while they were packed")
}

// round is a number in the type.
func (k Kind) round(x float32) float32 {
	switch k {
	case BF16:
		return half.FromBF16(half.ToBF16(x))
	case F16:
		return half.FromF16(half.ToF16(x))
	}
	return x
}

func (o *Options) check() error {
	if o.Kind >= kinds {
		return fmt.Errorf("%w: unknown %v", ErrOptions, o.Kind)
	}
	if !slices.Contains([]int{1, 2, 4, 8}, o.Chunks) {
		return fmt.Errorf("%w: %d chunks (want 1, 2, 4 or 8)", ErrOptions, o.Chunks)
	}
	if !isa.Available(o.ISA) {
		return fmt.Errorf("%w: this machine has no %v", ErrOptions, o.ISA)
	}
	if o.Rounded && o.Kind != I8 && (o.ISA < isa.AVX512BF16 || o.Kind != BF16) {
		const text = "%w: products of rounded rows need %v, or %v or more and %v, not %v and %v"
		return fmt.Errorf(text, ErrOptions, I8, isa.AVX512BF16, BF16, o.ISA, o.Kind)
	}
	return nil
}

// join checks a source and adds it to the matrix's shape.
func (m *Matrix) join(s *Source) error {
	if !s.Kind.stored() {
		return fmt.Errorf("unknown %v", s.Kind)
	}
	if s.Rows <= 0 || s.Cols <= 0 || s.Rows > maxBytes/s.Cols {
		return fmt.Errorf("shape %d x %d", s.Rows, s.Cols)
	}
	if s.RowLo < 0 || s.RowLo >= s.RowHi || s.RowHi > s.Rows {
		return fmt.Errorf("rows %d to %d of %d", s.RowLo, s.RowHi, s.Rows)
	}
	if s.ColLo < 0 || s.ColLo >= s.ColHi || s.ColHi > s.Cols {
		return fmt.Errorf("columns %d to %d of %d", s.ColLo, s.ColHi, s.Cols)
	}
	start := s.cut(m.pieces)
	if m.n > 0 && start != m.start {
		return fmt.Errorf("columns %d to %d of %d are cut otherwise than those of the first source",
			s.ColLo, s.ColHi, s.Cols)
	}
	m.start = start
	m.k = s.ColHi - s.ColLo
	m.n += s.RowHi - s.RowLo
	return nil
}

// cut returns where the pieces of K begin; see Options.Chunks.
func (s *Source) cut(pieces int) (start [maxPieces + 1]int) {
	lo, k, grid, first := 0, s.ColHi-s.ColLo, pieces, 0
	for g := pieces; g <= maxPieces && k < s.Cols; g *= 2 {
		for j := 0; j < g; j += pieces {
			if j*s.Cols/g == s.ColLo && (j+pieces)*s.Cols/g == s.ColHi {
				lo, k, grid, first = s.ColLo, s.Cols, g, j
			}
		}
	}
	for i := range pieces + 1 {
		start[i] = (first+i)*k/grid - lo
	}
	return start
}

// layOut computes where the pieces begin in the packed form.
func (m *Matrix) layOut() {
	if m.codes != nil {
		m.codes.cutRuns(m.start[:m.pieces+1])
		m.stride = spread(m.codes.place(m.kernels.nr, false))
		return
	}
	for i := range m.pieces {
		length := m.start[i+1] - m.start[i]
		m.packed[i+1] = m.packed[i] + (length+1)&^1
	}
	m.stride = spread(uintptr(m.packed[m.pieces] * m.kernels.nr * m.kind.Size()))
}

// spread lengthens a panel, by 1 KiB at most, so that the panels a kernel reads side by side do not
// fall into the same sets of the L1 cache, which repeat every 4 KiB: their addresses then differ by
// at least 512 bytes there. With K a power of two they would all meet in one set, which halves the
// speed of a matrix in the L2 cache (measured on Zen 3). Panels that fit into the cache together
// are left alone.
func spread(stride uintptr) uintptr {
	const apart = 512
	if stride < 2*cachePeriod {
		return stride
	}
	stride += -stride & (cacheLine - 1)
	for meet(stride, groupSize, apart) > 1 {
		stride += cacheLine
	}
	return stride
}

// packBlock is the number of columns packed at a time: a block of a panel stays in the L1 cache
// while its rows, which interleave, are written.
const packBlock = 256

type packBuffer struct {
	stored [4 * packBlock]byte
	floats [packBlock]float32
	halves [packBlock + 1]uint16
	codes  [packBlock]byte
	_      [128]byte // keeps the threads' buffers apart
}

// packTask packs one panel per chunk.
type packTask struct {
	m       *Matrix
	sources []Source
	ends    []int // of the rows of each source, among those of all
	buffers []packBuffer
	ops     *vec.Ops
	// bad says that an element is infinite or NaN.
	bad atomic.Bool
}

// Do packs a panel.
func (t *packTask) Do(panel, thread int) {
	m := t.m
	nr := m.kernels.nr
	first := panel * nr
	base := unsafe.Add(m.base, uintptr(panel)*m.stride)
	sound := true
	if m.kind == I8 {
		for lane := range min(nr, m.n-first) {
			sound = t.quantise(base, lane, first+lane, &t.buffers[thread]) && sound
		}
		if !sound {
			t.bad.Store(true)
		}
		return
	}
	for i := range m.pieces {
		for k := m.start[i]; k < m.start[i+1]; k += packBlock {
			count := min(packBlock, m.start[i+1]-k)
			at := m.packed[i] + k - m.start[i]
			lanes := min(nr, m.n-first)
			lane := 0
			for m.kind == BF16 && lane+4 <= lanes {
				woven, finite := t.weave(base, at, lane, first+lane, k, count)
				if !woven {
					break
				}
				sound = sound && finite
				lane += 4
			}
			for ; lane < lanes; lane++ {
				src, kind := t.row(first+lane, k, count, t.buffers[thread].stored[:])
				if !t.place(base, at, lane, count, kind, src, &t.buffers[thread]) {
					sound = false
				}
			}
		}
	}
	if !sound {
		t.bad.Store(true)
	}
}

// source is that of row n of the stacked sources, and the number of the row in it. Heads whose rows
// are reordered are as many sources as they have rows.
func (t *packTask) source(n int) (*Source, int) {
	i := sort.Search(len(t.ends), func(i int) bool { return n < t.ends[i] })
	s := &t.sources[i]
	return s, s.RowHi - (t.ends[i] - n)
}

// row returns columns k … k+count-1 of row n of the stacked sources, in buffer if they lie apart.
func (t *packTask) row(n, k, count int, buffer []byte) ([]byte, Kind) {
	s, row := t.source(n)
	return s.row(row, s.ColLo+k, count, buffer), s.Kind
}

// weave writes count elements of four rows from row n on into their lanes, as place does for each,
// in one pass over the panel: packing bf16 moves bytes only, and the passes are what it takes. It
// returns whether all are finite, as they pass; woven is false, and it has written nothing, unless
// all four are of BF16 and count is even.
func (t *packTask) weave(panel unsafe.Pointer, at, lane, n, k, count int) (woven, sound bool) {
	var rows [4][]byte
	for i := range rows {
		s, row := t.source(n + i)
		if _, right := s.strides(); s.Kind != BF16 || count%2 != 0 || right != 1 {
			return false, false
		}
		rows[i] = s.row(row, s.ColLo+k, count, nil)
	}
	sound = half.FiniteBF16(rows[0]) && half.FiniteBF16(rows[1]) && half.FiniteBF16(rows[2]) &&
		half.FiniteBF16(rows[3])
	step := t.m.kernels.nr * 4 // bytes of two columns
	a, b, c, d := rows[0], rows[1][:2*count], rows[2][:2*count], rows[3][:2*count]
	to := unsafe.Add(panel, at/2*step+4*lane)
	for ; len(a) >= 4; a, b, c, d = a[4:], b[4:], c[4:], d[4:] {
		dst := (*[4]uint32)(to)
		dst[0], dst[1] = binary.LittleEndian.Uint32(a), binary.LittleEndian.Uint32(b)
		dst[2], dst[3] = binary.LittleEndian.Uint32(c), binary.LittleEndian.Uint32(d)
		to = unsafe.Add(to, step)
	}
	return true, sound
}

// place writes count elements of one row into its lane, at step "at" of K, which is even. It
// returns whether all are finite there.
func (t *packTask) place(panel unsafe.Pointer, at, lane, count int, kind Kind, src []byte,
	b *packBuffer) bool {
	m := t.m
	nr := m.kernels.nr
	if m.kind == F32 {
		dst := unsafe.Slice((*float32)(unsafe.Add(panel, at*nr*4)), count*nr)
		v := b.floats[:count]
		decode(v, kind, src)
		for i := range v {
			dst[i*nr+lane] = v[i]
		}
		return half.AllFinite(v)
	}
	v := b.halves[:count]
	if m.kind == F16 {
		dst := unsafe.Slice((*uint16)(unsafe.Add(panel, at*nr*2)), count*nr)
		load16(v, F16, kind, src, b.floats[:])
		for i := range v {
			dst[i*nr+lane] = v[i]
		}
		return half.FiniteF16(bytesOf(v))
	}
	pairs := (count + 1) / 2
	dst := unsafe.Slice((*uint32)(unsafe.Add(panel, at*nr*2)), pairs*nr)
	if kind == BF16 {
		for i := range count / 2 {
			dst[i*nr+lane] = binary.LittleEndian.Uint32(src[4*i:])
		}
		if count%2 != 0 {
			dst[count/2*nr+lane] = uint32(binary.LittleEndian.Uint16(src[2*count-2:]))
		}
		return half.FiniteBF16(src)
	}
	load16(v, BF16, kind, src, b.floats[:])
	b.halves[count] = 0
	for i := range pairs {
		dst[i*nr+lane] = uint32(b.halves[2*i]) | uint32(b.halves[2*i+1])<<16
	}
	return half.FiniteBF16(bytesOf(v))
}

// scale is that of row n of the stacked sources: of all its columns, whichever of them are packed,
// so that the ranks that share a row have the same one. It returns whether all are finite.
func (t *packTask) scale(n int, b *packBuffer) (scale float32, finite bool) {
	const infinity = 0x7f800000
	s, row := t.source(n)
	var most uint32
	for from := 0; from < s.Cols; from += packBlock {
		v := b.floats[:min(packBlock, s.Cols-from)]
		t.decode(v, s.Kind, s.row(row, from, len(v), b.stored[:]))
		most = max(most, t.ops.Largest(v))
	}
	return math.Float32frombits(most) / 127, most < infinity
}

// decode is the function decode, by vector kernels where there are some.
func (t *packTask) decode(dst []float32, kind Kind, src []byte) {
	switch kind {
	case BF16:
		t.ops.FromBF16(dst, halvesOf(src))
	case F16:
		t.ops.FromF16(dst, halvesOf(src))
	default:
		half.DecodeF32(dst, src)
	}
}

// quantise writes row n to its lane, as codes. It returns whether all of the row is finite.
func (t *packTask) quantise(panel unsafe.Pointer, lane, n int, b *packBuffer) bool {
	m := t.m
	scale, sound := t.scale(n, b)
	for i := range m.codes.runs {
		r := &m.codes.runs[i]
		at := unsafe.Add(panel, r.at)
		putFactor(at, lane, scale, true)
		at = unsafe.Add(at, m.codes.head)
		for from := 0; from < r.length; from += packBlock {
			v := b.floats[:min(packBlock, r.length-from)]
			src, kind := t.row(n, r.from+from, len(v), b.stored[:])
			t.decode(v, kind, src)
			t.ops.RoundInt8(b.codes[:], v, scale)
			m.codes.putRun(unsafe.Add(at, from*m.kernels.nr), m.kernels.nr, lane,
				b.codes[:len(v)])
		}
	}
	return sound
}

// halvesOf is bytes as numbers of 16 bits, which may begin anywhere: machines that this is for read
// them there.
func halvesOf(b []byte) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2)
}

// bytesOf is the memory of v, which is little-endian on every machine that this is for.
func bytesOf(v []uint16) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 2*len(v))
}
