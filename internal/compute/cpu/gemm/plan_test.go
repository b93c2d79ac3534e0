package gemm

import (
	"testing"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// TestChunksAreBounded wants every panel of every row in one chunk, and no chunk of more work than
// one may have but for one of the fewest panels, however wide the matrix is and however many
// threads there are.
func TestChunksAreBounded(t *testing.T) {
	for _, set := range isa.All() {
		for _, shape := range [][2]int{{64, 64}, {28672, 8192}, {8192, 28672}, {256000, 8192}} {
			for _, rows := range []int{1, 12, 100, 8192} {
				for _, threads := range []int{1, 2, 64} {
					m := &Matrix{n: shape[0], k: shape[1], pieces: 1, kind: BF16,
						kernels: kernelsFor(Options{Kind: BF16, ISA: set})}
					task := &mulTask{m: m, rows: rows, threads: threads, xSize: 4}
					task.choose()
					chunks := task.plan()
					work := min(task.perChunk*m.kernels.nr, m.n) * m.k * min(task.blockRows, rows)
					if work > pool.MostWork && task.perChunk > groupSize {
						t.Errorf("%v, %v by %d rows, %d threads: a chunk of %d multiply-adds", set,
							shape, rows, threads, work)
					}
					if chunks != ceilDiv(m.panels(), task.perChunk)*ceilDiv(rows, task.blockRows) {
						t.Errorf("%v, %v by %d rows, %d threads: %d chunks of %d panels by %d rows",
							set, shape, rows, threads, chunks, task.perChunk, task.blockRows)
					}
				}
			}
		}
	}
}

// TestUnpackedChunksAreBounded wants the same of products of quantised weights with many rows: a
// chunk of more work has the fewest panels and rows.
func TestUnpackedChunksAreBounded(t *testing.T) {
	for _, set := range isa.All() {
		for _, shape := range [][2]int{{64, 64}, {28672, 8192}, {8192, 28672}, {256000, 8192}} {
			for _, rows := range []int{13, 100, 8192} {
				for _, threads := range []int{1, 2, 64} {
					c := &codes{}
					m := &Matrix{n: shape[0], k: shape[1], pieces: 1, codes: c}
					m.kernels = c.choose(set, &compute.Codes{Type: compute.Code8}, false)
					task := &mulTask{m: m, rows: rows, threads: threads, xSize: 4}
					chunks := task.plan()
					work := min(task.perChunk*m.kernels.nr, m.n) * m.k * min(task.blockRows, rows)
					if work > pool.MostWork && (task.perChunk > 1 ||
						task.blockRows > unpackRows/4) {
						t.Errorf("%v, %v by %d rows, %d threads: a chunk of %d multiply-adds", set,
							shape, rows, threads, work)
					}
					if chunks != ceilDiv(m.panels(), task.perChunk)*ceilDiv(rows, task.blockRows) {
						t.Errorf("%v, %v by %d rows, %d threads: %d chunks of %d panels by %d rows",
							set, shape, rows, threads, chunks, task.perChunk, task.blockRows)
					}
				}
			}
		}
	}
}
