package gemm

import (
	"sort"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

const (
	// unpackColumns are those that are unpacked at a time: with them a panel stays in the L1 cache
	// while the rows pass by.
	unpackColumns = 256
	// unpackRows are the rows of x that one unpacking serves: so many columns of them stay in the
	// L2 cache.
	unpackRows = 128
	// Panels take turns where a run of one is turnBytes at most: of a longer one they would be a
	// single stream of memory.
	turnBytes = 4 << 10
	// wholePanels are those of a row whose sums over pieces stay in the L1 cache.
	wholePanels = 32
	// tileBytes are those of a panel, unpacked, that tiles multiply with all rows of a block before
	// the next ones: they stay in the L1 cache meanwhile.
	tileBytes = 16 << 10
)

// sumCodes is sum for quantised weights.
func (t *mulTask) sumCodes(b *block) {
	switch {
	case t.kernels.blocks:
		t.sumTiles(b)
		return
	case t.whole():
		t.sumRow(b)
		return
	case t.m.codes.bytes(b.rows):
		t.sumBytes(b)
		return
	}
	m, q := t.m, t.m.codes
	call := &t.calls[b.thread]
	for i := range m.pieces {
		piece := unsafe.Add(b.sums, uintptr(i)*b.chunk)
		clearRows(piece, b.stride, b.rows, b.width*m.kernels.nr)
		for _, p := range q.parts[q.starts[i]:q.starts[i+1]] {
			r := &q.runs[p.first]
			each := max(t.depth/8/(r.spans*r.blocks), 1)
			for at := p.first; at < p.first+p.runs; at += each {
				end := min(at+each, p.first+p.runs)
				for tile, row := 0, 0; tile < b.cut.tiles; tile++ {
					height := b.cut.height(tile)
					sums := unsafe.Add(piece, uintptr(row)*b.stride)
					for panel := 0; panel < b.width; {
						width := t.kernels.width(height, b.width-panel)
						t.aim(call, b.panel+panel, at, b.first+row)
						call.runs, call.next = end-at, m.nextRun(end, width)
						call.c, call.cStride = unsafe.Add(sums, panel*m.kernels.nr*4), b.stride
						if q.tiles.whole && height == 1 {
							call.one = codePart{call.runs, call.blocks, call.spans, call.skip,
								call.scaleStep, lastPart}
							call.list, call.cApart = &call.one, uintptr(4*m.kernels.nr)
						}
						q.tiles.tiles[height][width](call)
						panel += width
					}
					row += height
				}
			}
		}
	}
	if !b.direct {
		t.finish(b, 0, b.rows)
	}
}

// bytesFrom is how many rows are worth unpacking six bits to bytes: tiles of bytes are higher.
const bytesFrom = 8

// bytes tells whether codes are unpacked to bytes for the tiles of so many rows.
func (c *codes) bytes(rows int) bool { return c.wide != nil && rows >= bytesFrom }

// sumBytes is sumCodes of codes that are unpacked for all tiles: some runs of a panel at a time,
// which stay in the L1 cache meanwhile.
func (t *mulTask) sumBytes(b *block) {
	m, q := t.m, t.m.codes
	call := &t.calls[b.thread]
	cut := cutRows(b.rows, q.wide.rows)
	for panel := range b.width {
		for i := range m.pieces {
			c := unsafe.Add(b.sums, uintptr(i)*b.chunk+uintptr(4*panel*m.kernels.nr))
			clearRows(c, b.stride, b.rows, m.kernels.nr)
			for at := q.pieces[i]; at < q.pieces[i+1]; {
				runs := q.tileRuns(at, m.kernels.nr)
				unpacked, next := t.unpackBytes(b.thread, b.panel+panel, at, runs, tableZeros)
				for tile, row := 0, 0; tile < cut.tiles; tile++ {
					height := cut.height(tile)
					t.aim(call, b.panel+panel, at, b.first+row)
					call.runs, call.w, call.skip, call.next = runs, unpacked, 0, next
					call.c, call.cStride = unsafe.Add(c, uintptr(row)*b.stride), b.stride
					q.wide.tiles[height][1](call)
					row += height
				}
				at += runs
			}
		}
	}
	if !b.direct {
		t.finish(b, 0, b.rows)
	}
}

// unpackBytes makes bytes, as formDots8 has them, of some runs of a panel, less a number of the
// table. A thread has them until the next ones. It tells how many bytes behind them lie the codes
// that are unpacked then, which kernels fetch meanwhile (codeCall.next).
func (t *mulTask) unpackBytes(thread, panel, run, runs int, less uintptr) (to unsafe.Pointer,
	next uintptr) {
	m, q, call := t.m, t.m.codes, &t.calls[thread]
	t.aim(call, panel, run, 0)
	to = unsafe.Add(t.looked, thread*q.unpackedSize())
	next = uintptr(call.scale) + m.nextRun(run+runs, 1) + q.runs[run+runs-1].at - q.runs[run].at
	call.runs, call.c, call.next = runs, to, less
	q.tiles.unpack(call)
	return to, next - uintptr(to)
}

// whole tells whether kernels multiply the row of x with all of K.
func (t *mulTask) whole() bool { return t.m.codes != nil && t.m.codes.tiles.whole && t.rows == 1 }

// sumRow is sumCodes of the only row. The panels of a call lie apart, and those of the next call
// behind each of them: they are streams of memory that processors follow.
func (t *mulTask) sumRow(b *block) {
	m, q := t.m, t.m.codes
	call, nr := &t.calls[b.thread], m.kernels.nr
	for i := range m.pieces {
		clearRows(unsafe.Add(b.sums, uintptr(i)*b.chunk), b.stride, 1, b.width*nr)
	}
	most := maxWidth
	if len(q.runs) > 0 && q.runBytes(&q.runs[0], nr) > turnBytes {
		most = 2
	}
	for first := 0; first < b.width && len(q.list) > 0; {
		width := t.kernels.width(1, min(b.width-first, most))
		apart := (b.width - first) / width
		t.aim(call, b.panel+first, 0, 0)
		call.wStride, call.cApart = uintptr(apart)*m.stride, uintptr(4*apart*nr)
		call.pieceStep = b.chunk
		scale, c := call.scale, unsafe.Add(b.sums, uintptr(q.first)*b.chunk+uintptr(4*first*nr))
		for i := range apart {
			call.scale, call.c = unsafe.Add(scale, uintptr(i)*m.stride), unsafe.Add(c, 4*i*nr)
			call.list = &q.list[0]
			q.tiles.tiles[1][width](call)
		}
		first += width * apart
	}
	if !b.direct {
		t.finish(b, 0, 1)
	}
}

// fillsTiles tells whether tiles of so many rows have few beside them: they take the time of these,
// too.
func fillsTiles(rows int) bool {
	return ceilDiv(rows, amx.CodeRows)*amx.CodeRows*10 <= rows*14
}

// sumTiles is sumCodes by tiles, which take all rows of a block: panel after panel, as they lie.
func (t *mulTask) sumTiles(b *block) {
	m, q := t.m, t.m.codes
	call := &t.tileCalls[b.thread]
	x := unsafe.Add(t.x, uintptr(b.first/amx.CodeRows)*t.xStride)
	for panel := range b.width {
		w := unsafe.Add(m.base, uintptr(b.panel+panel)*m.stride)
		for i := range m.pieces {
			c := unsafe.Add(b.sums, uintptr(i)*b.chunk+uintptr(4*panel*m.kernels.nr))
			if q.pieces[i] == q.pieces[i+1] {
				clearRows(c, b.stride, b.rows, m.kernels.nr)
			}
			for at := q.pieces[i]; at < q.pieces[i+1]; at += call.Runs {
				t.aimTiles(call, b, at)
				call.Scale = unsafe.Add(w, q.runs[at].at)
				call.W = unsafe.Add(call.Scale, call.Skip)
				if q.super > 0 {
					call.Parts = unsafe.Add(call.Scale, q.head)
				}
				switch q.form {
				case formDots8:
				case formDots6:
					call.W, call.Ahead = t.unpackBytes(b.thread, b.panel+panel, at, call.Runs,
						tableLeast)
					call.Skip = 0
				default:
					unpacked := unsafe.Add(t.looked, b.thread*q.unpackedSize())
					amx.Unpack(unpacked, call.W, call.Runs, q.runs[at].spans*q.runs[at].blocks,
						call.Skip, &q.numbers)
					call.W, call.Skip, call.Ahead = unpacked, 0, 0
				}
				call.X, call.C = unsafe.Add(x, q.runs[at].tile), c
				if at > q.pieces[i] {
					call.Flags |= amx.CodeAdd
				}
				amx.MultiplyCodes(call)
			}
		}
	}
	t.finish(b, 0, b.rows)
}

// aimTiles sets what a call has of some runs, from one on, for any panel.
func (t *mulTask) aimTiles(call *amx.CodeCall, b *block, run int) {
	q := t.m.codes
	r := &q.runs[run]
	blocks := r.spans * r.blocks
	bytes := uintptr(blocks) * q.form.blockBytes(t.m.kernels.nr)
	call.Runs = q.tileRuns(run, t.m.kernels.nr)
	call.Ahead = tileBytes
	call.Spans, call.Steps = r.spans, ceilDiv(8*r.blocks, amx.CodeDepth)
	call.Depth = 8 * r.blocks / call.Steps
	call.Skip = q.head + r.parts
	call.ScaleStep = call.Skip + bytes
	call.XStride, call.Blocks = t.xStride, ceilDiv(b.rows, amx.CodeRows)
	call.CStride, call.Flags = b.stride, q.flags
	if call.Offset = q.offset; q.offset > 0 {
		call.Sums, call.SumStep = unsafe.Pointer(t.sumOf(r.sum, b.first)), uintptr(t.sumRows)*4
	}
}

// tileRuns is how many runs from one on all rows of a block are multiplied with before the next
// ones.
func (c *codes) tileRuns(run, nr int) int {
	r := &c.runs[run]
	return min(c.alike(run), max(tileBytes/(8*r.spans*r.blocks*nr), 1))
}

// unpackedSize is how many bytes tiles multiply at a time, at most.
func (c *codes) unpackedSize() int {
	most := tileBytes
	for _, r := range c.runs {
		most = max(most, 8*r.spans*r.blocks*amx.Block)
	}
	return most
}

// alike is how many runs from one on have as many spans and blocks, in its piece.
func (c *codes) alike(run int) int {
	at := sort.Search(len(c.parts), func(i int) bool { return c.parts[i].first > run }) - 1
	return c.parts[at].first + c.parts[at].runs - run
}

// nextRun is how many bytes lie between the beginnings of the run before the given one and of that,
// which is the first run of the panels behind these where the panels have no more.
func (m *Matrix) nextRun(run, width int) uintptr {
	from := m.codes.runs[run-1].at
	if run == len(m.codes.runs) {
		return uintptr(width)*m.stride - from
	}
	return m.codes.runs[run].at - from
}

// aim points a call at a panel, a run and a row of x.
func (t *mulTask) aim(call *codeCall, panel, run, row int) {
	m, q := t.m, t.m.codes
	r := &q.runs[run]
	at := unsafe.Add(m.base, uintptr(panel)*m.stride+r.at)
	head := q.head + r.parts
	*call = codeCall{w: unsafe.Add(at, head), wStride: m.stride, scale: at,
		x: unsafe.Add(t.x, uintptr(row)*t.xStride+r.x), xStride: t.xStride,
		spans: r.spans, blocks: r.blocks, parts: r.parts, skip: head,
		scaleStep: head + uintptr(r.spans*r.blocks)*q.form.blockBytes(m.kernels.nr),
		sumStep:   uintptr(t.sumRows) * 4, table: unsafe.Pointer(&q.table[0]),
		offset: q.offset, head: q.head, flags: q.flags | m.flags}
	if q.offset > 0 {
		call.sums = unsafe.Pointer(t.sumOf(r.sum, row))
	}
}

// sumOf is a sum of a row of x.
func (t *mulTask) sumOf(i, row int) *float32 {
	return (*float32)(unsafe.Add(t.sums, (i*t.sumRows+row)*4))
}

func clearRows(c unsafe.Pointer, stride uintptr, rows, width int) {
	for r := range rows {
		clear(unsafe.Slice((*float32)(unsafe.Add(c, uintptr(r)*stride)), width))
	}
}

// unpacks tells whether codes are unpacked to float32 for all rows of x: where there are more than
// one tile has, that costs less than unpacking them once for each tile.
func (m *Matrix) unpacks(rows int) bool {
	return m.codes != nil && !m.codes.dots && rows > m.kernels.rows
}

// planUnpacked cuts a product of many rows and returns the number of chunks.
func (t *mulTask) planUnpacked() int {
	m := t.m
	blocks := ceilDiv(t.rows, min(max(pool.MostWork/(m.kernels.nr*m.k), unpackRows/4), unpackRows))
	t.blockRows = ceilDiv(t.rows, blocks)
	work := m.kernels.nr * m.k * t.blockRows
	t.perChunk = min(max(pool.MostWork/work, 1), groupSize,
		max(m.panels()*blocks/(t.threads*chunksEach), 1))
	if 2*m.n*m.k*t.rows/flopsPerNS < inlineBelow {
		t.perChunk = m.panels()
	}
	t.tileSize = t.blockRows * t.perChunk * m.kernels.nr * m.pieces
	return ceilDiv(m.panels(), t.perChunk) * ceilDiv(t.rows, t.blockRows)
}

// doUnpacked computes a chunk of a product of many rows: some columns of a panel are unpacked, and
// multiplied with the rows of the block.
func (t *mulTask) doUnpacked(chunk, thread int) {
	m, q := t.m, t.m.codes
	nr := m.kernels.nr
	begin, first, rows := t.part(chunk)
	width := min(t.perChunk, m.panels()-begin)
	column := uintptr(begin*nr) * 4
	dst := unsafe.Add(t.dst, uintptr(first)*t.dstStride+column)
	cols := min(width*nr, m.n-begin*nr)
	tile := unsafe.Add(t.tiles, thread*t.tileSize*4)
	stride := uintptr(width*nr) * 4
	piece := stride * uintptr(rows)
	for i := range m.pieces {
		out := unsafe.Add(tile, uintptr(i)*piece)
		clearRows(out, stride, rows, width*nr)
		for _, p := range q.parts[q.starts[i]:q.starts[i+1]] {
			each := max(unpackColumns/8/q.runs[p.first].blocks, 1)
			for at := 0; at < p.runs; at += each {
				for panel := range width {
					t.unpacked(begin+panel, p.first+at, min(each, p.runs-at), first, rows,
						unsafe.Add(out, panel*nr*4), stride, thread)
				}
			}
		}
	}
	e := epilogue{dst: dst, dstStride: t.dstStride, parts: tile, partStride: stride,
		chunkStride: piece, chunks: m.pieces, rows: rows, cols: cols, wide: nr == wideNR}
	if t.add != nil {
		e.add, e.addStride = unsafe.Add(t.add, uintptr(first)*t.addStride+column), t.addStride
	}
	if !t.apart {
		e.run(m.kernels.vector)
		return
	}
	e.chunks = 1
	for i := range m.pieces {
		e.dst = unsafe.Add(dst, uintptr(i)*t.dstChunk)
		e.parts = unsafe.Add(tile, uintptr(i)*piece)
		e.run(m.kernels.vector)
	}
}

// unpacked adds to out the products of some runs of a panel with rows of x.
func (t *mulTask) unpacked(panel, run, runs, first, rows int, out unsafe.Pointer, stride uintptr,
	thread int) {
	q := t.m.codes
	call := &t.calls[thread]
	t.aim(call, panel, run, 0)
	call.runs = runs
	numbers := unsafe.Add(t.numbers, thread*t.numberSize*4)
	call.c = numbers
	q.tiles.unpack(call)
	cut := cutRows(rows, q.floats.rows)
	for tile, row := 0, 0; tile < cut.tiles; tile++ {
		height := cut.height(tile)
		t.aim(call, panel, run, first+row)
		call.runs, call.w, call.skip = runs, numbers, 0
		call.c, call.cStride = unsafe.Add(out, uintptr(row)*stride), stride
		q.floats.tiles[height][1](call)
		row += height
	}
}

// numberSize is how many numbers are unpacked at a time, at most, for each thread.
func (m *Matrix) numberSize() int {
	most := 0
	for _, r := range m.codes.runs {
		most = max(most, r.blocks*8)
	}
	return max(most, unpackColumns) * m.kernels.nr
}

// sumTask sums rows of x over the runs, for offsets: [runs][rows].
type sumTask struct {
	t        *mulTask
	perChunk int
}

// Do sums some rows. Lane i of eight takes columns i, i+8, … of a run; the lanes are summed as a
// balanced tree.
func (s *sumTask) Do(chunk, _ int) {
	t := s.t
	for row := chunk * s.perChunk; row < min((chunk+1)*s.perChunk, t.rows); row++ {
		for i := range t.m.codes.runs {
			r := &t.m.codes.runs[i]
			x := unsafe.Slice((*[8]float32)(unsafe.Add(t.x,
				uintptr(row)*t.xStride+uintptr(r.packed)*4)), r.blocks)
			var a, b, c, d, e, f, g, h float32
			for j := range x {
				v := &x[j]
				a, b, c, d = a+v[0], b+v[1], c+v[2], d+v[3]
				e, f, g, h = e+v[4], f+v[5], g+v[6], h+v[7]
			}
			*t.sumOf(r.sum, row) = ((a + b) + (c + d)) + ((e + f) + (g + h))
		}
	}
}

// prepareCodes makes what a product of quantised weights needs beside x.
func (s *Scratch) prepareCodes(p *pool.Pool, t *mulTask) {
	m, q := t.m, t.m.codes
	if len(s.calls) < p.Threads() {
		s.calls = make([]codeCall, p.Threads())
	}
	t.calls = s.calls
	if t.kernels.blocks {
		if len(s.tileCalls) < p.Threads() {
			s.tileCalls = make([]amx.CodeCall, p.Threads())
		}
		t.tileCalls = s.tileCalls
	}
	if t.kernels.blocks && q.form != formDots8 || q.bytes(t.rows) {
		size := q.unpackedSize()
		t.looked = unsafe.Pointer(&alignedSlice(&s.looked, p.Threads()*size)[0])
	}
	if m.unpacks(t.rows) {
		t.numberSize = m.numberSize()
		t.numbers = unsafe.Pointer(&alignedSlice(&s.numbers, p.Threads()*t.numberSize)[0])
	}
	if q.offset > 0 && !q.dots {
		t.sumRows = t.rows
		t.sums = unsafe.Pointer(&alignedSlice(&s.sums, q.sums*t.rows)[0])
		s.sum = sumTask{t: t, perChunk: max(1, prepareAtLeast/m.k)}
		p.Run(&s.sum, ceilDiv(t.rows, s.sum.perChunk))
		s.sum = sumTask{}
	}
}
