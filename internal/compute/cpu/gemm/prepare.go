package gemm

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// prepareTask copies rows of x into scratch memory: rounded to bf16, with the pieces of K padded as
// the packed weights are, so that a pair of steps never reaches into the next piece; or unchanged,
// at better addresses.
type prepareTask struct {
	m        *Matrix
	x        []float32
	ldx      int
	rows     int
	floats   []float32
	halves   []uint16
	ldd      int
	blocks   *[maxPieces + 1]int // see mulTask; nil where x does not lie in blocks
	perChunk int
}

const (
	// prepareAtLeast is the number of elements worth handing to another thread.
	prepareAtLeast = 32 << 10
	// mostMeet is how many rows of a tile may meet in a set of the L1 cache, which has eight ways
	// or more.
	mostMeet = 2
)

// prepare sets the task's rows of x, copied where that is needed or pays.
func (s *Scratch) prepare(p *pool.Pool, t *mulTask, x []float32, ldx int) {
	m, rows := t.m, t.rows
	t.x, t.xStride, t.xSize = unsafe.Pointer(&x[0]), uintptr(ldx)*4, 4
	if t.kernels.blocks {
		s.prepareBlocks(p, t, x, ldx)
		return
	}
	high := min(rows, t.kernels.high(rows))
	// Rows that all meet in the same sets of the L1 cache, as they do when K is a power of two,
	// halve the speed of a tile; the copy costs as much as a few columns of output, of rows
	// that come from memory as some dozens.
	if !m.rounded && !(m.codes != nil && m.codes.columns != nil) &&
		!(high > 1 && m.n >= 128 && meet(t.xStride, high, cacheLine) > mostMeet) {
		return
	}
	const line = cacheLine
	size := 4
	length := m.k
	switch {
	case m.rounded:
		length = m.packed[m.pieces]
	case m.codes != nil:
		length = m.codes.width
	}
	if t.kernels.halves {
		size = 2
	}
	// An odd number of lines apart, no two rows of a tile meet.
	stride := (ceilDiv(length*size, line) | 1) * line
	q := &s.copy
	*q = prepareTask{m: m, x: x, ldx: ldx, rows: rows, ldd: stride / size,
		perChunk: max(1, prepareAtLeast/m.k)}
	if t.kernels.halves {
		q.halves = alignedSlice(&s.halves, rows*q.ldd)
		t.x = unsafe.Pointer(&q.halves[0])
	} else {
		q.floats = alignedSlice(&s.floats, rows*q.ldd)
		t.x = unsafe.Pointer(&q.floats[0])
	}
	t.xStride, t.xSize = uintptr(stride), uintptr(size)
	p.Run(q, ceilDiv(rows, q.perChunk))
	*q = prepareTask{}
}

// prepareBlocks sets the task's rows of x, rounded, in blocks. The last one of a piece of K may
// have fewer steps, and those of the last rows fewer rows: nothing reads what they have not.
func (s *Scratch) prepareBlocks(p *pool.Pool, t *mulTask, x []float32, ldx int) {
	across := t.cutBlocks()
	halves := alignedSlice(&s.halves, amx.Row(ceilDiv(t.rows, amx.Block)*amx.Block, across))
	t.liesIn(halves)
	q := &s.copy
	*q = prepareTask{m: t.m, x: x, ldx: ldx, rows: t.rows, blocks: &t.blocks, halves: halves,
		perChunk: max(1, prepareAtLeast/t.m.k)}
	p.Run(q, ceilDiv(t.rows, q.perChunk))
	*q = prepareTask{}
}

// cutBlocks sets how many blocks of x each piece of K has, and returns how many there are.
func (t *mulTask) cutBlocks() int {
	m := t.m
	for i := range m.pieces {
		t.blocks[i+1] = t.blocks[i] + ceilDiv(m.packed[i+1]-m.packed[i], amx.Block)
	}
	return t.blocks[m.pieces]
}

// liesIn says that x lies in blocks, which have been cut.
func (t *mulTask) liesIn(halves []uint16) {
	t.x, t.xSize = unsafe.Pointer(&halves[0]), 2
	t.xStride = uintptr(t.blocks[t.m.pieces] * amx.BlockBytes)
}

// meet is how many of count addresses, stride bytes apart, lie closer than apart bytes to the first
// one modulo 4 KiB, the distance after which the sets of the L1 cache repeat, itself included.
func meet(stride uintptr, count int, apart uintptr) int {
	n := 1
	for i := range uintptr(count - 1) {
		offset := (i + 1) * stride % cachePeriod
		if min(offset, cachePeriod-offset) < apart {
			n++
		}
	}
	return n
}

// Do copies some rows.
func (t *prepareTask) Do(chunk, _ int) {
	m := t.m
	for r := chunk * t.perChunk; r < min((chunk+1)*t.perChunk, t.rows); r++ {
		src := t.x[r*t.ldx:][:m.k]
		if t.blocks != nil {
			t.doBlocks(r, src)
			continue
		}
		if t.floats != nil && m.codes != nil && m.codes.columns != nil {
			dst := t.floats[r*t.ldd:]
			for i, col := range m.codes.columns {
				dst[i] = 0
				if col >= 0 {
					dst[i] = src[col]
				}
			}
			continue
		}
		if !m.rounded {
			copy(t.floats[r*t.ldd:], src)
			continue
		}
		for i := range m.pieces {
			from := src[m.start[i]:m.start[i+1]]
			to, end := r*t.ldd+m.packed[i], r*t.ldd+m.packed[i+1]
			switch {
			case to == end:
			case t.floats != nil:
				t.floats[end-1] = 0
				roundRow(t.floats[to:end], from)
			default:
				t.halves[end-1] = 0
				halfRow(t.halves[to:end], from)
			}
		}
	}
}

// doBlocks rounds a row into the blocks that have it.
func (t *prepareTask) doBlocks(r int, src []float32) {
	m := t.m
	row := t.halves[amx.Row(r, t.blocks[m.pieces]):]
	for i := range m.pieces {
		amx.Round(row[t.blocks[i]*amx.Block*amx.Block:], src[m.start[i]:m.start[i+1]])
	}
}
