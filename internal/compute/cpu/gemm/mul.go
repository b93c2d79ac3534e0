package gemm

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// Scratch is the working memory of one caller: not for two calls at a time. Its zero value is
// ready; it grows to what the largest call needs and allocates nothing after that.
type Scratch struct {
	mul    mulTask
	copy   prepareTask
	tiles  []float32
	floats []float32
	halves []uint16
	// For quantised weights.
	round         roundTask
	bytes         []int8
	sum           sumTask
	calls         []codeCall
	tileCalls     []amx.CodeCall
	numbers, sums []float32
	looked        []int8
}

// Mul computes dst[r·ldd+n] = Σ_k x[r·ldx+k]·W[n][k] (+ bias[n], added last) for the given number
// of rows of x. bias is nil or has N elements. dst must not overlap x. The pool may be nil. It
// panics if a slice is too short.
func (m *Matrix) Mul(p *pool.Pool, s *Scratch, dst []float32, ldd int,
	x []float32, ldx, rows int, bias []float32) {
	m.plain(s, ldd, bias)
	m.run(p, s, dst, ldd, x, ldx, rows)
}

// plain sets what the task in s has of an output, with a bias or without, as do added, of one that
// sums are added to, and chunked, of chunks of K that stay apart.
func (m *Matrix) plain(s *Scratch, ldd int, bias []float32) {
	t := &s.mul
	*t = mulTask{dstStride: uintptr(ldd) * 4}
	if bias != nil {
		t.add = unsafe.Pointer(&bias[:m.n][0])
	}
}

func (m *Matrix) added(s *Scratch, dst []float32, ldd int) {
	t := &s.mul
	*t = mulTask{dstStride: uintptr(ldd) * 4}
	t.add, t.addStride = unsafe.Pointer(unsafe.SliceData(dst)), t.dstStride
}

// chunked returns what there is of dst: run looks at its length.
func (m *Matrix) chunked(s *Scratch, dst []float32, ldd, rows int) []float32 {
	s.mul = mulTask{dstStride: uintptr(ldd) * 4, apart: true,
		dstChunk: uintptr(rows) * uintptr(ldd) * 4}
	if rows > 0 {
		dst = dst[:(m.pieces*rows-1)*ldd+m.n]
	}
	return dst
}

// MulAdd computes dst[r·ldd+n] += Σ_k x[r·ldx+k]·W[n][k]; the sum over k is complete before it is
// added. Otherwise it is like Mul.
func (m *Matrix) MulAdd(p *pool.Pool, s *Scratch, dst []float32, ldd int,
	x []float32, ldx, rows int) {
	m.added(s, dst, ldd)
	m.run(p, s, dst, ldd, x, ldx, rows)
}

// MulChunks computes the sum over each chunk of K apart: dst is [Chunks][rows][ldd], of which the
// first N columns are written. TreeSum over its chunks is what Mul computes. Otherwise it is like
// Mul.
func (m *Matrix) MulChunks(p *pool.Pool, s *Scratch, dst []float32, ldd int,
	x []float32, ldx, rows int) {
	m.run(p, s, m.chunked(s, dst, ldd, rows), ldd, x, ldx, rows)
}

// run completes the task in s, whose output fields are set, and runs it.
func (m *Matrix) run(p *pool.Pool, s *Scratch, dst []float32, ldd int,
	x []float32, ldx, rows int) {
	if rows <= 0 {
		return
	}
	t := &s.mul
	t.m, t.rows, t.threads = m, rows, p.Threads()
	t.choose()
	if ldd < m.n || ldx < m.k || len(dst) < (rows-1)*ldd+m.n || len(x) < (rows-1)*ldx+m.k {
		panic(fmt.Sprintf("gemm: %d rows of %d -> %d with strides %d, %d in slices of %d, %d",
			rows, m.k, m.n, ldx, ldd, len(x), len(dst)))
	}
	t.dst = unsafe.Pointer(&dst[0])
	if m.codes != nil && m.codes.dots {
		s.prepareDots(p, t, x, ldx)
	} else {
		s.prepare(p, t, x, ldx)
	}
	t.do(p, s)
}

// do multiplies x as it was prepared.
func (t *mulTask) do(p *pool.Pool, s *Scratch) {
	m := t.m
	chunks := t.plan()
	t.tiles = unsafe.Pointer(&alignedSlice(&s.tiles, t.threads*t.tileSize)[0])
	switch {
	case m.codes != nil:
		s.prepareCodes(p, t)
	case t.widen != nil:
		s.prepareWide(t)
	}
	p.Run(t, chunks)
	clear(t.calls)
	clear(t.tileCalls)
	t.clear()
}

// mulTask is a product cut into chunks for a pool: a range of panels times a block of rows each.
type mulTask struct {
	m       *Matrix
	rows    int
	threads int
	kernels *kernelSet
	// panels are those that chunks are cut of: half of the matrix's where gated, if not nil, makes
	// rows of to of the products with two.
	panels int
	gated  func(dst []uint16, gate, up []float32)
	to     *Blocks

	x       unsafe.Pointer
	xStride uintptr // bytes from a row to the next
	xSize   uintptr // bytes of an element
	// blocks is how many blocks of x lie before each piece of K, where it lies in those.
	blocks [maxPieces + 1]int

	dst       unsafe.Pointer
	dstStride uintptr
	dstChunk  uintptr // with apart: from a chunk of K to the next
	apart     bool    // keep the chunks of K apart
	add       unsafe.Pointer
	addStride uintptr

	tiles    unsafe.Pointer
	tileSize int // floats per thread
	// shared says that all tiles of a block use the same: one is finished before the next begins.
	shared bool

	blockRows int // rows of x per block
	perChunk  int // panels per chunk
	width     int // panels of a block
	depth     int // steps of K that all rows of a block are multiplied with before the next
	even      int // of tiles: see evenPieces

	// widen, if not nil, makes panels those that kernels multiply: some steps of some panels, which
	// all rows of a block are multiplied with.
	widen      func(dst, src unsafe.Pointer, pairs int)
	numbers    unsafe.Pointer // widened weights, or those that codes stand for
	numberSize int            // of them per thread
	// For quantised weights.
	calls     []codeCall     // by thread
	tileCalls []amx.CodeCall // likewise
	sums      unsafe.Pointer // of x over the runs, [runs][rows]
	sumRows   int            // 0 without offsets
	looked    unsafe.Pointer // bytes that tiles take for codes of 4 bits, for each thread
}

// clear drops what the task refers to, so that a Scratch keeps no caller's memory alive.
func (t *mulTask) clear() { *t = mulTask{} }

// The plan's figures are rough times of one core. They decide only how work is cut, never a result.
const (
	bytesPerNS = 32 // weights streamed from a cache
	flopsPerNS = 64 // arithmetic
	// ns: less gains nothing; a helper must fetch x and its share of dst crosses back, line by line
	inlineBelow  = 40_000
	chunkAtLeast = 2_000 // ns
	// ns: bounds how long the others wait for the last chunk
	chunkAtMost = 100_000
	// of x that stay in the L2 cache while weights pass by
	blockBytes = 256 << 10
	chunksEach = 6 // chunks per thread, for an even finish
	// tiles, at most, that take turns at pieces of a panel; with more, fetching weights is little
	turnTiles = 4
	// fetchAhead is how many bytes before they are multiplied weights are fetched.
	fetchAhead = 8192
)

// choose picks the kernels, and says how many panels are cut.
func (t *mulTask) choose() {
	k := t.m.kernels
	if t.panels = t.m.panels(); t.gated != nil {
		t.panels /= 2
	}
	t.kernels = k
	if k.many == nil || t.rows < k.from || k.widen != nil && !t.widens() ||
		t.m.codes != nil && !fillsTiles(t.rows) {
		return
	}
	t.kernels, t.widen = k.many, k.widen
}

// plan cuts the product and returns the number of chunks.
func (t *mulTask) plan() int {
	m := t.m
	switch {
	case m.unpacks(t.rows):
		return t.planUnpacked()
	case t.kernels.blocks:
		return t.planBlocks()
	}
	t.planDepth()
	high, nr := t.kernels.high(t.rows), m.kernels.nr
	tiles := ceilDiv(t.rows, high)
	fit := max(blockBytes/(int(t.xSize)*max(min(m.k, t.depth), 1)*high), 2*t.kernels.rows/high)
	blocks := ceilDiv(tiles, fit)
	if t.widen != nil {
		blocks = t.rows / wideRows
	}
	t.blockRows = ceilDiv(tiles, blocks) * high
	blocks = ceilDiv(t.rows, t.blockRows)
	most := min(t.blockRows, t.rows)
	chunks := t.planPanels(blocks)
	t.width = t.kernels.width(most/ceilDiv(most, high), groupSize)
	if tiles == 1 && m.pieces == 1 && m.k <= t.depth && m.codes == nil {
		t.width = t.perChunk // read in the same order, and with fewer calls
	}
	if t.whole() {
		if t.width = t.perChunk; m.pieces > 1 {
			t.width = min(t.width, wholePanels)
		}
	}
	if t.shared = t.widen != nil && m.packed[m.pieces] <= t.depth; t.shared {
		most = high
	}
	t.tileSize = most * t.width * nr * m.pieces
	return chunks
}

// planPanels sets how many panels a chunk has and returns the number of chunks.
func (t *mulTask) planPanels(blocks int) int {
	m, panels := t.m, t.panels
	cost := max(len(m.mem.Bytes())*blocks/bytesPerNS, 2*m.n*m.k*t.rows/t.flopsPerNS())
	// On one thread half of what it may be, for the last block may have few rows.
	each := pool.MostWork / t.flopsPerNS()
	if t.threads > 1 && cost >= inlineBelow {
		each = min(max(cost/(t.threads*chunksEach), chunkAtLeast), chunkAtMost)
	} else if cost <= each*blocks {
		t.perChunk = panels
		return blocks
	}
	t.perChunk = panels * blocks * each / cost
	// Whole groups are fastest; narrower chunks are better than idle threads.
	switch {
	case t.perChunk >= groupSize:
		t.perChunk = min(t.perChunk&^(groupSize-1), panels)
	case t.perChunk >= 2 || panels >= 2*t.threads:
		t.perChunk = 2
	default:
		t.perChunk = 1
	}
	return ceilDiv(panels, t.perChunk) * blocks
}

// planDepth sets how many steps of K all tiles of a block are multiplied with before the next ones.
// Where there are a few tiles, which compute while the memory reads, they are as many as have their
// weights stay in the L1 cache meanwhile.
func (t *mulTask) planDepth() {
	m := t.m
	t.depth = maxSteps
	if t.widen != nil {
		t.depth = wideSteps
		return
	}
	tiles := ceilDiv(t.rows, t.kernels.high(t.rows))
	if tiles == 1 || tiles > turnTiles || m.rounded {
		return
	}
	const weights = 16 << 10 // bytes of them
	if m.codes != nil {
		t.depth = weights * 8 / int(m.codes.form.blockBytes(m.kernels.nr))
		return
	}
	t.depth = weights / m.stepBytes()
}

// Do computes a chunk. Neighbouring chunks share panels, which are then still in a cache.
func (t *mulTask) Do(chunk, thread int) {
	m := t.m
	if m.unpacks(t.rows) {
		t.doUnpacked(chunk, thread)
		return
	}
	begin, first, rows := t.part(chunk)
	end := min(begin+t.perChunk, t.panels)
	for panel := begin; panel < end; panel += t.width {
		b := block{first: first, rows: rows, panel: panel, width: min(t.width, end-panel),
			next: panel + t.width, thread: thread}
		if b.next >= end { // threads take turns, mostly
			b.next, _, _ = t.part(chunk + t.threads)
		}
		t.compute(&b)
	}
}

// part is where a chunk begins, and its rows.
func (t *mulTask) part(chunk int) (panel, first, rows int) {
	if t.kernels.blocks { // it is the rows that are still in a cache
		groups := ceilDiv(t.panels, t.perChunk)
		panel, first = chunk%groups*t.perChunk, chunk/groups*t.blockRows
	} else {
		blocks := ceilDiv(t.rows, t.blockRows)
		panel, first = chunk/blocks*t.perChunk, chunk%blocks*t.blockRows
	}
	return panel, first, min(t.blockRows, t.rows-first)
}

// block is rows of x times some panels, as a thread computes it.
type block struct {
	first, rows, panel, width int
	next                      int // first of the panels that the thread takes next
	cut                       cut // of the rows
	ahead                     int // bytes from weights to those that are fetched meanwhile
	// sums are those over each piece of K: rows stride bytes apart, pieces chunk bytes apart.
	sums          unsafe.Pointer
	stride, chunk uintptr
	direct        bool // the sums are the output
	thread        int
}

// straight tells whether the sums of a block go straight to the output: they are the result, every
// column of the panels exists, and none is read again. Tiles store many rows to close addresses.
func (t *mulTask) straight(b *block) bool {
	m := t.m
	if t.gated != nil || t.depth < min(m.k, maxSteps) ||
		t.kernels.blocks && (m.codes != nil || b.rows > amx.Block) {
		return false
	}
	return (b.panel+b.width)*m.kernels.nr <= m.n && (t.apart || m.pieces == 1 && t.add == nil)
}

// compute computes a block.
func (t *mulTask) compute(b *block) {
	m := t.m
	nr := m.kernels.nr
	b.cut, b.ahead = cutRows(b.rows, t.kernels.high(t.rows)), fetchAhead/min(b.width, maxWidth)
	if t.straight(b) {
		b.sums = unsafe.Add(t.dst, uintptr(b.first)*t.dstStride+uintptr(b.panel*nr)*4)
		b.stride, b.chunk, b.direct = t.dstStride, t.dstChunk, true
	} else {
		b.sums = unsafe.Add(t.tiles, b.thread*t.tileSize*4)
		b.stride = uintptr(b.width*nr) * 4
		if t.gated != nil {
			b.stride *= 2
		}
		b.chunk = b.stride * uintptr(b.rows)
		if t.kernels.blocks {
			b.chunk = b.stride * uintptr(ceilDiv(b.rows, amx.CodeRows)*amx.CodeRows)
		}
		if t.shared {
			b.chunk = b.stride * uintptr(t.kernels.high(t.rows))
		}
	}
	switch {
	case m.codes != nil:
		t.sumCodes(b)
	case t.widen != nil:
		t.sumWide(b)
	case t.kernels.blocks:
		t.sumBlocks(b)
	default:
		t.sum(b)
	}
}

// sumsOf is where the sums of a tile begin, which has rows from the given one on.
func (t *mulTask) sumsOf(b *block, row int) uintptr {
	if t.shared && !b.direct {
		return 0
	}
	return uintptr(row) * b.stride
}

// finish makes the sums of some rows the output. Where it follows each tile its stores overlap with
// the next one.
func (t *mulTask) finish(b *block, row, height int) {
	m := t.m
	at, column := uintptr(b.first+row), uintptr(b.panel*m.kernels.nr)*4
	e := epilogue{dst: unsafe.Add(t.dst, at*t.dstStride+column), dstStride: t.dstStride,
		parts: unsafe.Add(b.sums, t.sumsOf(b, row)), partStride: b.stride,
		chunkStride: b.chunk, chunks: m.pieces, rows: height,
		cols:    min(b.width*m.kernels.nr, m.n-b.panel*m.kernels.nr),
		streams: t.kernels.blocks && 4*t.rows*m.n >= streamBytes,
		wide:    m.kernels.nr == wideNR}
	if t.add != nil {
		e.add, e.addStride = unsafe.Add(t.add, at*t.addStride+column), t.addStride
	}
	if !t.apart {
		e.run(m.kernels.vector)
		return
	}
	e.chunks = 1
	for i := range m.pieces {
		if i > 0 { // not beyond the last one: it may end the memory
			e.dst, e.parts = unsafe.Add(e.dst, t.dstChunk), unsafe.Add(e.parts, b.chunk)
		}
		e.run(m.kernels.vector)
	}
}

// turn is how many pairs of steps, from a step of packed weights on, have what is fetched meanwhile
// in their own panels; later ones have it behind them. Only a single tile turns from there to the
// next panels.
func (b *block) turn(m *Matrix, at int) (pairs int) {
	if b.cut.tiles > 1 {
		return math.MaxInt
	}
	end := m.packed[m.pieces] - b.ahead/m.stepBytes()
	// The order of AMX sums 32 steps in two chains.
	return max(end-at, 0) &^ 31 / 2
}

// sum computes the sums of a block.
func (t *mulTask) sum(b *block) {
	var list [1]steps
	s, size := &list[0], t.m.stepBytes()
	for i := range t.m.pieces {
		for at, length := 0, t.length(i); at == 0 || at < length; at += t.depth {
			t.locate(s, b, i, at, length)
			s.soon, s.soonStep = unsafe.Add(s.w, b.ahead), 2*size
			if b.cut.tiles > 1 && t.m.flags&flagFollows != 0 {
				s.flags |= flagSecond
			}
			if t.depth < maxSteps {
				s.share = ceilDiv(s.count*size, b.cut.tiles)
				s.soon = unsafe.Add(s.w, s.count*size)
				s.soonStep = ceilDiv(s.share, max(s.count/2, 1))
			}
			t.multiply(b, list[:])
		}
	}
}

// length is the steps of a piece of K.
func (t *mulTask) length(piece int) int {
	m := t.m
	if m.rounded { // x is padded as the weights are
		return m.packed[piece+1] - m.packed[piece]
	}
	return m.start[piece+1] - m.start[piece]
}

// locate sets s to steps of a piece of K, of that length, from one on: as many as the block takes
// at a time.
func (t *mulTask) locate(s *steps, b *block, piece, at, length int) {
	m := t.m
	from, packed := m.start[piece]+at, m.packed[piece]+at
	if m.rounded {
		from = packed
	}
	s.count, s.stride, s.turn = min(length-at, t.depth), m.stride, b.turn(m, packed)
	s.x = unsafe.Add(t.x, uintptr(b.first)*t.xStride+uintptr(from)*t.xSize)
	s.w = unsafe.Add(m.base, uintptr(b.panel)*m.stride+uintptr(packed*m.stepBytes()))
	s.sums = unsafe.Add(b.sums, uintptr(piece)*b.chunk)
	s.flags = s.count%2*flagOdd | m.flags
	if at > 0 {
		s.flags |= flagContinue
	}
	s.last = piece == m.pieces-1 && at+s.count == length
}

// steps are some steps of K.
type steps struct {
	count  int
	x      unsafe.Pointer // their columns
	w      unsafe.Pointer // weights of the first panel
	stride uintptr        // bytes from a panel to the next
	turn   int            // pairs before what is fetched is of the next panels
	sums   unsafe.Pointer
	flags  int
	last   bool
	next   unsafe.Pointer // of widened weights, those that are widened next; nil for none
	// What is fetched meanwhile: see kernel. share is the bytes from what a tile fetches to what
	// the next one does; with none the first has fetched all.
	soon            unsafe.Pointer
	soonStep, share int
}

// multiply multiplies steps with the rows of a block, tile after tile. What comes after them is
// fetched meanwhile.
func (t *mulTask) multiply(b *block, list []steps) {
	for tile, row := 0, 0; tile < b.cut.tiles; tile++ {
		height := b.cut.height(tile)
		for i := range list {
			s := &list[i]
			if s.next != nil {
				t.fetchNext(b, s, tile)
			}
			t.tile(b, s, row, height, tile > 0 || t.widen != nil)
			if s.share > 0 {
				s.soon = unsafe.Add(s.soon, s.share)
			} else {
				s.soon, s.soonStep = s.w, 0
			}
		}
		if list[len(list)-1].last && !b.direct {
			t.finish(b, row, height)
		}
		row += height
	}
}

// tile multiplies steps with rows of a tile; cached says that the weights are in a cache.
func (t *mulTask) tile(b *block, s *steps, row, height int, cached bool) {
	m, k := t.m, t.kernels
	x := unsafe.Add(s.x, uintptr(row)*t.xStride)
	sums := unsafe.Add(s.sums, t.sumsOf(b, row))
	for panel := 0; panel < b.width; {
		width := k.width(height, b.width-panel)
		multiply, c := k.kernels[height][width], unsafe.Add(sums, panel*k.nr*4)
		if cached && height == k.square && width == k.width(height, maxWidth) {
			multiply = k.again
		}
		at, pairs := uintptr(panel)*s.stride, s.count/2
		flags := s.flags
		w, x, soon := unsafe.Add(s.w, at), x, unsafe.Add(s.soon, at)
		if s.turn < pairs && b.panel+panel+width < t.panels {
			if s.turn > 0 {
				multiply(w, s.stride, x, t.xStride, s.turn, flags&^flagOdd, c, b.stride, soon,
					uintptr(s.soonStep))
				flags |= flagContinue
			}
			done := 2 * s.turn * m.stepBytes()
			w, x = unsafe.Add(w, done), unsafe.Add(x, 2*s.turn*int(t.xSize))
			soon = unsafe.Add(soon, done+(width-1)*int(m.stride))
			pairs -= s.turn
		}
		multiply(w, s.stride, x, t.xStride, pairs, flags, c, b.stride, soon, uintptr(s.soonStep))
		panel += width
	}
}

// cut is some rows cut into tiles of equal height, give or take one: they cost less than full ones
// and a low rest.
type cut struct{ tiles, low, taller int }

// cutRows cuts rows into as few tiles as have so many at most.
func cutRows(rows, high int) cut {
	if rows <= high {
		return cut{1, rows, 0}
	}
	tiles := ceilDiv(rows, high)
	return cut{tiles, rows / tiles, rows % tiles}
}

// height is that of a tile.
func (c cut) height(tile int) int {
	if tile < c.taller {
		return c.low + 1
	}
	return c.low
}
