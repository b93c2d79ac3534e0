package gemm

import (
	"encoding/binary"
	"fmt"
	"math"
	"sort"
	"sync/atomic"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// PackCodes copies rectangles of codes that are alike, stacked along N in the given order, into
// packed form. Of the options Kind is not looked at, and Finite is always so. Errors
// are those of Pack.
//
// An element is the sum over the pieces of K that Pack would cut. In each of them acc begins at
// zero and takes run after run, a run being the columns of a group, 1024 of them at most, that lie
// in the piece: acc = s·Σ + acc, and then, if there are offsets, acc = o·(the sum of x over the
// run) + acc. Σ begins at zero and takes the products of x and the numbers that the codes stand
// for, in order. Each of these steps is a fused multiply-add, but in the portable kernels. With
// Rounded it is that of dots.go where the codes stand for integers: Code8, and Code4 of Values that
// are multiples of a power of two by -128 to 127.
func PackCodes(p *pool.Pool, opt Options, sources ...compute.Codes) (*Matrix, error) {
	opt.Kind = I8
	if err := opt.check(); err != nil {
		return nil, err
	}
	m, err := codeMatrix(opt, sources)
	if err != nil {
		return nil, err
	}
	t := &packCodesTask{m: m, sources: sources, ends: make([]int, len(sources)),
		wide: make([]int, p.Threads())}
	end := 0
	for i := range sources {
		c := &sources[i]
		if c.Code == nil {
			return nil, fmt.Errorf("%w %d: no codes", ErrSource, i)
		}
		end += c.Rows
		t.ends[i] = end
	}
	t.bad.Store(math.MaxInt64)
	p.Run(scanTask{t}, m.panels())
	if n := t.bad.Load(); n < math.MaxInt64 {
		return nil, t.find(int(n))
	}
	for _, flags := range t.wide {
		m.codes.flags |= flags
	}
	m.stride = spread(m.codes.place(m.kernels.nr, sources[0].Offset != nil))
	m.codes.order(m.k, sources[0].Order)
	if err := opt.Spare.place(m); err != nil {
		return nil, err
	}
	p.Run(t, m.panels())
	if n := t.bad.Load(); n < math.MaxInt64 {
		err := t.find(int(n))
		m.Free()
		return nil, err
	}
	return m, nil
}

// CodesBytes is the memory that PackCodes takes for the sources, at most, of which only types and
// shapes are looked at, with the kernels of any instruction set. Errors wrap ErrSource.
func CodesBytes(chunks int, rounded bool, sources ...compute.Codes) (int64, error) {
	var most int64
	for _, nr := range panelRows {
		m, err := codeMatrix(Options{Chunks: chunks, Rounded: rounded}, sources)
		if err != nil {
			return 0, err
		}
		m.kernels.nr = nr
		m.codes.flags = flagWideScale | flagWideOffset
		stride := spread(m.codes.place(nr, sources[0].Offset != nil))
		most = max(most, int64(m.panels())*int64(stride))
	}
	return most, nil
}

// codeMatrix is a matrix of the shape of the sources, without memory.
func codeMatrix(opt Options, sources []compute.Codes) (*Matrix, error) {
	if len(sources) == 0 {
		return nil, fmt.Errorf("%w: none given", ErrSource)
	}
	m := &Matrix{pieces: opt.Chunks, codes: &codes{}, flags: follows()}
	for i := range sources {
		c := &sources[i]
		if err := c.Check(); err != nil {
			return nil, fmt.Errorf("%w %d: %w", ErrSource, i, err)
		}
		if !sources[0].Alike(c) {
			return nil, fmt.Errorf("%w %d: not quantised as the first one is", ErrSource, i)
		}
		of := c.Of
		if of == 0 {
			of = c.Cols
		}
		s := Source{Kind: F32, Rows: c.Rows, RowHi: c.Rows, Cols: of, ColLo: c.From,
			ColHi: c.From + c.Cols}
		if err := m.join(&s); err != nil {
			return nil, fmt.Errorf("%w %d: %w", ErrSource, i, err)
		}
	}
	if float64(m.n)*float64(m.k)*8 > maxBytes {
		return nil, fmt.Errorf("%w: %d x %d is too large", ErrSource, m.n, m.k)
	}
	m.kernels = m.codes.choose(opt.ISA, &sources[0], opt.Rounded)
	m.codes.cutRuns(m.start[:m.pieces+1])
	return m, nil
}

// packCodesTask packs one panel per chunk.
type packCodesTask struct {
	m       *Matrix
	sources []compute.Codes
	ends    []int // of the rows of each source, among those of all
	wide    []int // flags, by thread
	// bad is the first row that has something which is no number.
	bad atomic.Int64
}

// source is that of row n of the stacked sources, and the number of the row in it.
func (t *packCodesTask) source(n int) (number, row int) {
	i := sort.Search(len(t.ends), func(i int) bool { return n < t.ends[i] })
	return i, t.sources[i].Rows - (t.ends[i] - n)
}

// mark notes a row that cannot be packed.
func (t *packCodesTask) mark(n int) {
	for {
		old := t.bad.Load()
		if int64(n) >= old || t.bad.CompareAndSwap(old, int64(n)) {
			return
		}
	}
}

// scanTask looks at the scales and offsets of a panel per chunk.
type scanTask struct{ *packCodesTask }

// Do looks at a panel.
func (t scanTask) Do(panel, thread int) {
	m := t.m
	fold := m.codes.fold()
	for n := panel * m.kernels.nr; n < min((panel+1)*m.kernels.nr, m.n); n++ {
		i, row := t.source(n)
		scale, offset, _ := m.codes.scalesOf(&t.sources[i], row)
		if !half.AllFinite(scale) {
			t.mark(n)
			return
		}
		if t.wide[thread]&flagWideScale == 0 && !fitF16(scale, fold) {
			t.wide[thread] |= flagWideScale
		}
		if offset == nil {
			continue
		}
		if !half.AllFinite(offset) {
			t.mark(n)
			return
		}
		if t.wide[thread]&flagWideOffset == 0 && !fitF16(offset, 1) {
			t.wide[thread] |= flagWideOffset
		}
	}
}

// fitF16 tells whether float16 has all of the numbers, times a factor.
func fitF16(v []float32, factor float32) bool {
	for _, x := range v {
		if x *= factor; half.FromF16(half.ToF16(x)) != x {
			return false
		}
	}
	return true
}

// find is the error of a row: its first scale, offset or code that is no number.
func (t *packCodesTask) find(n int) error {
	i, row := t.source(n)
	c := &t.sources[i]
	groups := c.Groups()
	for col := range c.Cols {
		g := 0
		if c.Group > 0 {
			g = (c.Lead + col) / c.Group
		}
		v := []float32{c.Scale[row*groups+g] * t.m.codes.fold(), c.Number(c.Code[row*c.Cols+col])}
		if c.Offset != nil {
			v = append(v, c.Offset[row*groups+g])
		}
		for _, x := range v {
			if math.IsInf(float64(x), 0) || x != x {
				return &NotFinite{i, row, col, x, F32}
			}
		}
	}
	if code := c.Code[row*c.Cols:][:c.Cols]; t.m.codes.super > 0 && !t.m.codes.sixBits(code) {
		least := -t.m.codes.least
		return fmt.Errorf("%w %d: row %d: codes of 8 bits, of groups that share factors, are "+
			"%d to %d", ErrSource, i, row, least, least+sixBits-1)
	}
	return fmt.Errorf("row %d of source %d changed while it was packed", row, i)
}

// Do packs a panel.
func (t *packCodesTask) Do(panel, _ int) {
	m, q := t.m, t.m.codes
	nr := m.kernels.nr
	base := unsafe.Add(m.base, uintptr(panel)*m.stride)
	lanes := min(nr, m.n-panel*nr)
	for lane := 0; lane < lanes; {
		count := 1
		if q.form == formBytes && lane+8 <= lanes {
			count = 8
		}
		var rows [8][]byte
		for i := range count {
			n := panel*nr + lane + i
			var sound bool
			if rows[i], sound = t.factors(base, lane+i, n); !sound {
				t.mark(n)
				return
			}
		}
		for r := range q.runs {
			u := &q.runs[r]
			at := unsafe.Add(base, u.at+q.head+u.parts)
			if count == 8 {
				putRows(at, nr, lane, &rows, u.from, u.length)
			} else {
				q.putRun(at, nr, lane, rows[0][u.from:u.from+u.length])
			}
		}
		lane += count
	}
}

// factors writes the scales and offsets of row n to its lane of all runs. It returns the row's
// codes, and whether all that it has is finite.
func (t *packCodesTask) factors(base unsafe.Pointer, lane, n int) (code []byte, sound bool) {
	q := t.m.codes
	fold := q.fold()
	i, row := t.source(n)
	c := &t.sources[i]
	scales, offsets, groups := q.scalesOf(c, row)
	code = c.Code[row*c.Cols:][:c.Cols]
	if c.Type == compute.CodeE4M3 && !numbersE4M3(code) ||
		q.super > 0 && c.Type == compute.Code8 && !q.sixBits(code) {
		return nil, false
	}
	for r := range q.runs {
		u := &q.runs[r]
		at := unsafe.Add(base, u.at)
		first := (u.group + q.superLead) / groups
		scale := scales[first] * fold
		if math.IsInf(float64(scale), 0) {
			return nil, false
		}
		putFactor(at, lane, scale, q.flags&flagWideScale != 0)
		if q.offset > 0 {
			putFactor(unsafe.Add(at, q.offset), lane, offsets[first],
				q.flags&flagWideOffset != 0)
		}
		if q.super > 0 && !t.parts(unsafe.Add(at, q.head), lane, c, row, u) {
			return nil, false
		}
	}
	return code, true
}

// parts writes the integers of the run's spans to a row's lane, and tells whether they are some.
func (t *packCodesTask) parts(to unsafe.Pointer, lane int, c *compute.Codes, row int, u *run) bool {
	q, nr := t.m.codes, t.m.kernels.nr
	crossed := lane
	if q.split { // the halves of a vector are interleaved apart
		crossed = lane&3 | lane>>3<<2 | lane>>2&1<<3
	}
	for span := range u.spans {
		g := u.group + span
		cell, factor := row*c.Groups()+g, row*c.Supers()+(g+c.SuperLead)/c.Super
		at := unsafe.Add(to, span*nr)
		if !putPart(at, crossed, c.Scale[cell], c.Factor[factor]) || q.offset > 0 &&
			!putPart(unsafe.Add(at, u.spans*nr), lane, c.Offset[cell], c.OffsetFactor[factor]) {
			return false
		}
	}
	return true
}

// scalesOf are the numbers of a row that scales and offsets of runs are, and how many groups have
// the same.
func (c *codes) scalesOf(of *compute.Codes, row int) (scale, offset []float32, groups int) {
	scale, offset, groups = of.Scale, of.Offset, 1
	n := of.Groups()
	if c.super > 0 {
		scale, offset, groups, n = of.Factor, of.OffsetFactor, c.super, of.Supers()
	}
	if of.Offset != nil {
		offset = offset[row*n:][:n]
	}
	return scale[row*n:][:n], offset, groups
}

// putPart writes what v is, as a multiple of a factor, and tells whether that is an integer of 8
// bits.
func putPart(to unsafe.Pointer, lane int, v, factor float32) bool {
	var n int8
	if v != 0 {
		n = int8(math.RoundToEven(float64(v / factor)))
	}
	*(*int8)(unsafe.Add(to, lane)) = n
	return float32(n)*factor == v
}

// sixBits tells whether codes of groups that share factors have as many.
func (c *codes) sixBits(code []byte) bool {
	for _, b := range code {
		if byte(int32(int8(b))+c.least) >= sixBits {
			return false
		}
	}
	return true
}

// numbersE4M3 tells whether none of the codes is NaN.
func numbersE4M3(code []byte) bool {
	for ; len(code) >= 8; code = code[8:] {
		// 0x7f and one is 0x80.
		v := binary.LittleEndian.Uint64(code) & 0x7f7f7f7f7f7f7f7f
		if (v+0x0101010101010101)&0x8080808080808080 != 0 {
			return false
		}
	}
	for _, b := range code {
		if b&0x7f == 0x7f {
			return false
		}
	}
	return true
}

// putRows writes the codes, which are bytes, of a run of eight rows to their lanes, of which the
// first is given.
func putRows(to unsafe.Pointer, nr, lane int, rows *[8][]byte, from, length int) {
	to = unsafe.Add(to, lane)
	for k := from; k < from+length; k += 8 {
		var v [8]uint64
		for i := range v {
			if left := from + length - k; left < 8 {
				var last [8]byte
				copy(last[:], rows[i][k:k+left])
				v[i] = binary.LittleEndian.Uint64(last[:])
				continue
			}
			v[i] = binary.LittleEndian.Uint64(rows[i][k:])
		}
		transpose(&v)
		for _, u := range v {
			*(*uint64)(to) = u
			to = unsafe.Add(to, nr)
		}
	}
}

// transpose makes byte i of number j that which was byte j of number i: it exchanges halves, then
// quarters, then eighths.
func transpose(v *[8]uint64) {
	for i := range 4 {
		a, b := v[i], v[i+4]
		v[i], v[i+4] = a&0xffffffff|b<<32, a>>32|b&0xffffffff00000000
	}
	for _, i := range [4]int{0, 1, 4, 5} {
		const low = 0x0000ffff0000ffff
		a, b := v[i], v[i+2]
		v[i], v[i+2] = a&low|b&low<<16, a>>16&low|b&^low
	}
	for _, i := range [4]int{0, 2, 4, 6} {
		const low = 0x00ff00ff00ff00ff
		a, b := v[i], v[i+1]
		v[i], v[i+1] = a&low|b&low<<8, a>>8&low|b&^low
	}
}

func putFactor(at unsafe.Pointer, lane int, v float32, wide bool) {
	if wide {
		*(*float32)(unsafe.Add(at, 4*lane)) = v
		return
	}
	*(*uint16)(unsafe.Add(at, 2*lane)) = half.ToF16(v)
}

// putRun writes the codes of a row's run to its lane. What fills up the last block is code 0.
func (c *codes) putRun(to unsafe.Pointer, nr, lane int, code []byte) {
	size := c.form.blockBytes(nr)
	for ; len(code) >= 8; code = code[8:] {
		c.putBlock(to, nr, lane, binary.LittleEndian.Uint64(code))
		to = unsafe.Add(to, size)
	}
	if len(code) > 0 {
		var last [8]byte
		copy(last[:], code)
		c.putBlock(to, nr, lane, binary.LittleEndian.Uint64(last[:]))
	}
}

// putBlock writes eight codes of a row, the first of which is the lowest byte.
func (c *codes) putBlock(to unsafe.Pointer, nr, lane int, v uint64) {
	if c.form == formBytes {
		for k := range 8 {
			*(*byte)(unsafe.Add(to, k*nr+lane)) = byte(v >> (8 * k))
		}
		return
	}
	if c.form == formDots8 {
		*(*uint32)(unsafe.Add(to, 4*lane)) = uint32(v)
		*(*uint32)(unsafe.Add(to, 4*(nr+lane))) = uint32(v >> 32)
		return
	}
	if c.form == formDots6 {
		v = (v&0x3f3f3f3f3f3f3f3f + uint64(c.least)*0x0101010101010101) & 0x3f3f3f3f3f3f3f3f
		shift := lane / (nr / 2) * 2
		upper := (*uint32)(unsafe.Add(to, 4*(nr+lane%(nr/2))))
		if lane < nr/2 {
			*upper = 0
		}
		*upper |= (uint32(v>>4)&0x03030303 | uint32(v>>36)&0x03030303<<4) << shift
	}
	v &= 0x0f0f0f0f0f0f0f0f
	// Byte i is codes i and i+4.
	u := uint32(v) | uint32(v>>28)
	half := unsafe.Add(to, lane/4*16) // four rows lie in half a vector
	switch c.form {
	case formPairs:
		*(*uint16)(unsafe.Add(half, lane%4*2)) = uint16(u)
		*(*uint16)(unsafe.Add(half, 8+lane%4*2)) = uint16(u >> 16)
	case formQuads:
		for k := range 4 {
			*(*byte)(unsafe.Add(half, 4*k+lane%4)) = byte(u >> (8 * k))
		}
	case formDots4, formTable, formDots6:
		*(*uint32)(unsafe.Add(to, 4*lane)) = u
	case formNibbles:
		v = (v | v>>4) & 0x00ff00ff00ff00ff
		v = (v | v>>8) & 0x0000ffff0000ffff
		*(*uint32)(unsafe.Add(to, 4*lane)) = uint32(v | v>>16)
	}
}
