package gemm

import (
	"fmt"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// Blocks are rows of x as tiles read them: rounded to bfloat16, in blocks (see amx). The zero value
// is ready; it grows to the largest product, and allocates nothing after that.
type Blocks struct {
	rows, width int
	halves      []uint16
	memory      []uint16
}

// resize makes room for rows of so many numbers, a multiple of a block's.
func (b *Blocks) resize(rows, width int) {
	b.rows, b.width = rows, width
	across := width / amx.Block
	b.halves = alignedSlice(&b.memory, amx.Row(ceilDiv(rows, amx.Block)*amx.Block, across))
}

// TakesBlocks tells whether x may be so many rows of Blocks, with the bits of the same rows of
// float32.
func (m *Matrix) TakesBlocks(rows int) bool {
	for _, at := range m.start[:m.pieces+1] {
		if at%amx.Block != 0 {
			return false
		}
	}
	return m.byTiles(rows)
}

// Gates tells whether MulGated multiplies so many rows.
func (m *Matrix) Gates(rows int) bool {
	return m.byTiles(rows) && m.pieces == 1 && m.n%(2*m.kernels.nr) == 0
}

func (m *Matrix) byTiles(rows int) bool {
	t := mulTask{m: m, rows: rows, threads: 1}
	t.choose()
	return t.kernels.blocks && m.codes == nil
}

// MulGated makes dst what gated makes of halves of each row of x·Wᵀ, gate before up, some columns
// at a time, which it may change: rows as amx.Round has them. The matrix is one, and the rows are
// so many, that Gates is true. Otherwise it is like Mul.
func (m *Matrix) MulGated(p *pool.Pool, s *Scratch, dst *Blocks, x []float32, ldx, rows int,
	gated func(dst []uint16, gate, up []float32)) {
	if ldx < m.k || len(x) < (rows-1)*ldx+m.k {
		panic(fmt.Sprintf("gemm: %d rows of %d with stride %d in a slice of %d", rows, m.k, ldx,
			len(x)))
	}
	dst.resize(rows, m.n/2)
	t := &s.mul
	*t = mulTask{m: m, rows: rows, threads: p.Threads(), gated: gated, to: dst}
	t.choose()
	s.prepareBlocks(p, t, x, ldx)
	t.do(p, s)
}

// MulBlocks is Mul of x for which TakesBlocks is true.
func (m *Matrix) MulBlocks(p *pool.Pool, s *Scratch, dst []float32, ldd int, x *Blocks,
	bias []float32) {
	m.plain(s, ldd, bias)
	m.runBlocks(p, s, dst, ldd, x)
}

// MulAddBlocks is MulAdd of x for which TakesBlocks is true.
func (m *Matrix) MulAddBlocks(p *pool.Pool, s *Scratch, dst []float32, ldd int, x *Blocks) {
	m.added(s, dst, ldd)
	m.runBlocks(p, s, dst, ldd, x)
}

// MulChunksBlocks is MulChunks of x for which TakesBlocks is true.
func (m *Matrix) MulChunksBlocks(p *pool.Pool, s *Scratch, dst []float32, ldd int, x *Blocks) {
	m.runBlocks(p, s, m.chunked(s, dst, ldd, x.rows), ldd, x)
}

func (m *Matrix) runBlocks(p *pool.Pool, s *Scratch, dst []float32, ldd int, x *Blocks) {
	if x.width != m.k || ldd < m.n || len(dst) < (x.rows-1)*ldd+m.n {
		panic(fmt.Sprintf("gemm: %d rows of %d blocks for %d -> %d with stride %d in a slice of %d",
			x.rows, x.width/amx.Block, m.k, m.n, ldd, len(dst)))
	}
	t := &s.mul
	t.m, t.rows, t.threads = m, x.rows, p.Threads()
	t.choose()
	t.dst = unsafe.Pointer(&dst[0])
	t.cutBlocks()
	t.liesIn(x.halves)
	t.do(p, s)
}

// gate makes the rows of blocks of the sums of a block, in each row of which those of up lie behind
// those of gate.
func (t *mulTask) gate(b *block, up uintptr) {
	n := b.width * t.m.kernels.nr
	across := t.to.width / amx.Block
	for r := range b.rows {
		sums := unsafe.Add(b.sums, uintptr(r)*b.stride)
		at := amx.Row(b.first+r, across) + b.panel*amx.Block*amx.Block
		t.gated(t.to.halves[at:], unsafe.Slice((*float32)(sums), n),
			unsafe.Slice((*float32)(unsafe.Add(sums, up)), n))
	}
}
