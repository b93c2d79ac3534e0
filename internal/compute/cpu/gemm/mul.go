package gemm

import (
	"fmt"
	"unsafe"

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
	numbers, sums []float32
}

// Mul computes dst[r·ldd+n] = Σ_k x[r·ldx+k]·W[n][k] (+ bias[n], added last) for the given number
// of rows of x. bias is nil or has N elements. dst must not overlap x. The pool may be nil. It
// panics if a slice is too short.
func (m *Matrix) Mul(p *pool.Pool, s *Scratch, dst []float32, ldd int,
	x []float32, ldx, rows int, bias []float32) {
	t := &s.mul
	*t = mulTask{dstStride: uintptr(ldd) * 4}
	if bias != nil {
		t.add = unsafe.Pointer(&bias[:m.n][0])
	}
	m.run(p, s, dst, ldd, x, ldx, rows)
}

// MulAdd computes dst[r·ldd+n] += Σ_k x[r·ldx+k]·W[n][k]; the sum over k is complete before it is
// added. Otherwise it is like Mul.
func (m *Matrix) MulAdd(p *pool.Pool, s *Scratch, dst []float32, ldd int,
	x []float32, ldx, rows int) {
	t := &s.mul
	*t = mulTask{dstStride: uintptr(ldd) * 4}
	t.add, t.addStride = unsafe.Pointer(unsafe.SliceData(dst)), t.dstStride
	m.run(p, s, dst, ldd, x, ldx, rows)
}

// MulChunks computes the sum over each chunk of K apart: dst is [Chunks][rows][ldd], of which the
// first N columns are written. TreeSum over its chunks is what Mul computes. Otherwise it is like
// Mul.
func (m *Matrix) MulChunks(p *pool.Pool, s *Scratch, dst []float32, ldd int,
	x []float32, ldx, rows int) {
	t := &s.mul
	*t = mulTask{dstStride: uintptr(ldd) * 4, apart: true,
		dstChunk: uintptr(rows) * uintptr(ldd) * 4}
	if rows > 0 {
		dst = dst[:(m.pieces*rows-1)*ldd+m.n]
	}
	m.run(p, s, dst, ldd, x, ldx, rows)
}

// run completes the task in s, whose output fields are set, and runs it.
func (m *Matrix) run(p *pool.Pool, s *Scratch, dst []float32, ldd int,
	x []float32, ldx, rows int) {
	if rows <= 0 {
		return
	}
	if ldd < m.n || ldx < m.k || len(dst) < (rows-1)*ldd+m.n || len(x) < (rows-1)*ldx+m.k {
		panic(fmt.Sprintf("gemm: %d rows of %d -> %d with strides %d, %d in slices of %d, %d",
			rows, m.k, m.n, ldx, ldd, len(x), len(dst)))
	}
	t := &s.mul
	t.m, t.rows, t.kernels = m, rows, m.kernels
	if rows > m.kernels.rows && m.kernels.many != nil {
		t.kernels = m.kernels.many
	}
	t.dst = unsafe.Pointer(&dst[0])
	if m.codes != nil && m.codes.dots {
		s.prepareDots(p, t, x, ldx)
	} else {
		s.prepare(p, t, x, ldx)
	}
	t.tileSize = m.kernels.tileFloats() * m.pieces
	chunks := t.plan(p.Threads())
	t.tiles = unsafe.Pointer(&alignedSlice(&s.tiles, p.Threads()*t.tileSize)[0])
	if m.codes != nil {
		s.prepareCodes(p, t)
	}
	p.Run(t, chunks)
	clear(t.calls)
	t.clear()
}

// mulTask is a product cut into chunks for a pool: a range of panels times a block of rows each.
type mulTask struct {
	m       *Matrix
	rows    int
	kernels *kernelSet

	x       unsafe.Pointer
	xStride uintptr // bytes from a row to the next
	xSize   uintptr // bytes of an element

	dst       unsafe.Pointer
	dstStride uintptr
	dstChunk  uintptr // with apart: from a chunk of K to the next
	apart     bool    // keep the chunks of K apart
	add       unsafe.Pointer
	addStride uintptr

	tiles    unsafe.Pointer
	tileSize int // floats per thread

	blockRows int // rows of x per block
	blocks    int
	perChunk  int // panels per chunk

	// For quantised weights.
	calls      []codeCall     // by thread
	numbers    unsafe.Pointer // that codes stand for
	numberSize int            // of them per thread
	sums       unsafe.Pointer // of x over the runs, [runs][rows]
	sumRows    int            // 0 without offsets
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
	// ns: on one thread; half of what it may be, for the last block may have few rows
	chunkAlone = pool.MostWork / flopsPerNS
	// of x that stay in the L2 cache while weights pass by
	blockBytes = 256 << 10
	chunksEach = 6 // chunks per thread, for an even finish
)

// plan cuts the product and returns the number of chunks.
func (t *mulTask) plan(threads int) int {
	m := t.m
	if m.unpacks(t.rows) {
		return t.planUnpacked(threads)
	}
	high := t.kernels.rows
	tiles := ceilDiv(t.rows, high)
	fit := max(blockBytes/(int(t.xSize)*max(m.k, 1)*high), 2)
	t.blocks = ceilDiv(tiles, fit)
	t.blockRows = ceilDiv(tiles, t.blocks) * high
	t.blocks = ceilDiv(t.rows, t.blockRows)

	panels := m.panels()
	cost := max(len(m.mem.Bytes())*t.blocks/bytesPerNS, 2*m.n*m.k*t.rows/flopsPerNS)
	each := chunkAlone
	if threads > 1 && cost >= inlineBelow {
		each = min(max(cost/(threads*chunksEach), chunkAtLeast), chunkAtMost)
	} else if cost <= each*t.blocks {
		t.perChunk = panels
		return t.blocks
	}
	t.perChunk = panels * t.blocks * each / cost
	// Whole groups are fastest; narrower chunks are better than idle threads.
	switch {
	case t.perChunk >= groupSize:
		t.perChunk = min(t.perChunk&^(groupSize-1), panels)
	case t.perChunk >= 2 || panels >= 2*threads:
		t.perChunk = 2
	default:
		t.perChunk = 1
	}
	return ceilDiv(panels, t.perChunk) * t.blocks
}

// Do computes a chunk. Neighbouring chunks share panels, which are then still in a cache.
func (t *mulTask) Do(chunk, thread int) {
	m := t.m
	if t.numbers != nil {
		t.doUnpacked(chunk, thread)
		return
	}
	begin, block := chunk/t.blocks*t.perChunk, chunk%t.blocks
	end := min(begin+t.perChunk, m.panels())
	first := block * t.blockRows
	rows := min(t.blockRows, t.rows-first)
	// Tiles of equal height, give or take one, cost less than full ones and a low rest.
	tiles := ceilDiv(rows, t.kernels.rows)
	low, taller := rows/tiles, rows%tiles
	step := t.kernels.width(low, groupSize)
	tile := unsafe.Add(t.tiles, thread*t.tileSize*4)
	for panel := begin; panel < end; panel += step {
		row := first
		for i := range tiles {
			height := low
			if i < taller {
				height++
			}
			for at, stop := panel, min(panel+step, end); at < stop; {
				width := t.kernels.width(height, stop-at)
				t.tile(row, height, at, width, tile, thread)
				at += width
			}
			row += height
		}
	}
}

// tile computes height rows of x times width panels. The sums go straight to the output where they
// are the result and every column of the panels exists, else through the thread's tile.
func (t *mulTask) tile(row, height, panel, width int, tile unsafe.Pointer, thread int) {
	m := t.m
	nr := m.kernels.nr
	column := uintptr(panel*nr) * 4
	dst := unsafe.Add(t.dst, uintptr(row)*t.dstStride+column)
	cols := min(width*nr, m.n-panel*nr)
	if cols == width*nr && (t.apart || m.pieces == 1 && t.add == nil) {
		t.sum(row, height, panel, width, dst, t.dstStride, t.dstChunk, thread)
		return
	}
	stride := uintptr(width*nr) * 4
	chunk := stride * uintptr(height)
	t.sum(row, height, panel, width, tile, stride, chunk, thread)
	e := epilogue{dst: dst, dstStride: t.dstStride, parts: tile, partStride: stride,
		chunkStride: chunk, chunks: m.pieces, rows: height, cols: cols}
	if t.add != nil {
		e.add, e.addStride = unsafe.Add(t.add, uintptr(row)*t.addStride+column), t.addStride
	}
	if !t.apart {
		e.run(m.kernels.vector)
		return
	}
	e.chunks = 1
	for i := range m.pieces {
		e.dst = unsafe.Add(dst, uintptr(i)*t.dstChunk)
		e.parts = unsafe.Add(tile, uintptr(i)*chunk)
		e.run(m.kernels.vector)
	}
}

// sum writes the sums over each piece of K to out: rows stride bytes apart, pieces chunk bytes
// apart.
func (t *mulTask) sum(row, height, panel, width int, out unsafe.Pointer, stride, chunk uintptr,
	thread int) {
	m := t.m
	if m.codes != nil {
		t.sumCodes(row, height, panel, width, out, stride, chunk, thread)
		return
	}
	run := t.kernels.kernels[height][width]
	w := unsafe.Add(m.base, uintptr(panel)*m.stride)
	x := unsafe.Add(t.x, uintptr(row)*t.xStride)
	step := m.kernels.nr * m.kind.Size() // bytes of weights per step of K
	for i := range m.pieces {
		from, length := m.start[i], m.start[i+1]-m.start[i]
		if m.rounded { // x is padded as the weights are
			from, length = m.packed[i], m.packed[i+1]-m.packed[i]
		}
		c := unsafe.Add(out, uintptr(i)*chunk)
		flags := height << flagRows
		for at := 0; at == 0 || at < length; at += maxSteps {
			steps := min(length-at, maxSteps)
			if steps%2 != 0 {
				flags |= flagOdd
			}
			run(unsafe.Add(w, (m.packed[i]+at)*step), m.stride,
				unsafe.Add(x, uintptr(from+at)*t.xSize), t.xStride, steps/2, flags, c, stride)
			flags |= flagContinue
		}
	}
}
