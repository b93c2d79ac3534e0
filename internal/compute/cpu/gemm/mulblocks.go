package gemm

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
)

// Products by tiles of AMX take all rows of a block with several panels in a call of amx.Multiply.
const (
	// residentBytes are those of x that stay in the L2 cache while panels pass by, and sumBytes
	// those of sums, beside them.
	residentBytes, sumBytes = 768 << 10, 256 << 10
	// mostRows are those of a block: more cut a prompt into too few pieces for the threads.
	mostRows = 256
	// callWork is how many steps of rows a call multiplies with panels: tens of microseconds.
	callWork = 1 << 20
	// tileFlopsPerNS is flopsPerNS of tiles.
	tileFlopsPerNS = 1024
	// streamBytes are those of an output that is written past the caches. It is read when all of
	// it is there, and writing it would read it from memory first.
	streamBytes = 4 << 20
)

// planBlocks is plan for tiles.
func (t *mulTask) planBlocks() int {
	m := t.m
	t.width = groupSize
	rowSums := 4 * t.width * m.kernels.nr * m.pieces
	if t.gated != nil {
		rowSums *= 2
	}
	if t.rows*rowSums > sumBytes {
		narrower := min(t.width, m.pieces)
		t.width, rowSums = t.width/narrower, rowSums/narrower
	}
	fit := min(residentBytes/(int(t.xSize)*max(m.k, 1)), sumBytes/rowSums, mostRows)
	blocks := ceilDiv(t.rows, max(fit, amx.Block))
	t.blockRows = ceilDiv(ceilDiv(t.rows, blocks), amx.Block) * amx.Block
	chunks := t.planPanels(ceilDiv(t.rows, t.blockRows))
	t.depth, t.even = maxSteps, m.evenPieces()
	t.tileSize = min(t.blockRows, ceilDiv(t.rows, amx.CodeRows)*amx.CodeRows) * rowSums / 4
	return chunks
}

// sumBlocks is sum for tiles.
func (t *mulTask) sumBlocks(b *block) {
	t.multiplyBlocks(b, b.panel, b.sums)
	if t.gated != nil {
		half := uintptr(b.width*t.m.kernels.nr) * 4
		t.multiplyBlocks(b, t.panels+b.panel, unsafe.Add(b.sums, half))
		t.gate(b, half)
		return
	}
	if !b.direct {
		t.finish(b, 0, b.rows)
	}
}

// multiplyBlocks writes the sums of a block, whose first panel is the given one.
func (t *mulTask) multiplyBlocks(b *block, first int, sums unsafe.Pointer) {
	m := t.m
	x := unsafe.Add(t.x, uintptr(b.first/amx.Block)*t.xStride)
	// A few rows take panels by two, which a call has of one piece.
	if steps := t.even; steps > 0 && b.rows > amx.Block/2 {
		for panel := range b.width {
			amx.Multiply(unsafe.Add(m.base, uintptr(first+panel)*m.stride), steps*m.stepBytes(),
				m.pieces, x, int(t.xStride), steps/2, b.rows,
				unsafe.Add(sums, 4*panel*m.kernels.nr), int(b.stride), 0, steps*2*amx.Block,
				int(b.chunk))
		}
		return
	}
	for i := range m.pieces {
		for at, length := 0, t.length(i); at == 0 || at < length; at += maxSteps {
			count := min(length-at, maxSteps)
			each := max(1, callWork/(b.rows*max(count, 1)))
			for panel := 0; panel < b.width; panel += each {
				w := unsafe.Add(m.base, uintptr(first+panel)*m.stride+
					uintptr((m.packed[i]+at)*m.stepBytes()))
				c := unsafe.Add(sums, uintptr(i)*b.chunk+uintptr(4*panel*m.kernels.nr))
				amx.Multiply(w, int(m.stride), min(each, b.width-panel),
					unsafe.Add(x, (t.blocks[i]*amx.Block+at)*2*amx.Block), int(t.xStride),
					count/2, b.rows, c, int(b.stride), at, 0, 4*amx.Block)
			}
		}
	}
}

// evenPieces is how many steps each piece of K has where there are several, all alike, and blocks
// of x and of panels lie one behind the other; else 0.
func (m *Matrix) evenPieces() int {
	steps := m.packed[1]
	if m.pieces == 1 || steps%amx.Block != 0 || m.k > maxSteps {
		return 0
	}
	for i := range m.pieces {
		if m.packed[i+1]-m.packed[i] != steps || m.start[i+1]-m.start[i] != steps {
			return 0
		}
	}
	return steps
}

// flopsPerNS is the rate of the task's kernels.
func (t *mulTask) flopsPerNS() int {
	if t.kernels.blocks {
		return tileFlopsPerNS
	}
	return flopsPerNS
}
