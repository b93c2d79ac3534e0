package layout

import "testing"

// TestPieces wants the pieces of a chunk to follow each other, each rank to have its two, and the
// work of the ranks, rows and pairs of rows that attend to each other, to differ by no more than
// the rounding of a cut.
func TestPieces(t *testing.T) {
	for _, l := range []Layout{{}, {TP: 2, PP: 2}, {PCP: 1}, {PCP: 2}, {TP: 2, PCP: 3}, {PCP: 8}} {
		for _, rows := range []int{1, 2, 15, 63, 64, 65, 96, 127, 256, 257, 1001, 8192} {
			n := l.Pieces(rows)
			size := l.Sizes().PCP
			divided := size > 1 && rows >= 32*size
			if divided != (n == 2*size) || !divided != (n == 1) {
				t.Errorf("%v: %d rows in %d pieces", l, rows, n)
			}
			end, count, pairs := 0, make([]int, size), make([]int, size)
			for i := range n {
				p := l.Piece(rows, i)
				if p.From != end || p.To <= p.From {
					t.Errorf("%v: piece %d of %d rows is %+v after row %d", l, i, rows, p, end)
				}
				end = p.To
				if n == 1 {
					if p.PCP != Everyone {
						t.Errorf("%v: %d rows are computed by %d", l, rows, p.PCP)
					}
					continue
				}
				for row := p.From; row < p.To; row++ {
					count[p.PCP]++
					pairs[p.PCP] += row + 1
				}
			}
			if end != rows {
				t.Errorf("%v: %d of %d rows are computed", l, end, rows)
			}
			for r := range count {
				if d := count[r] - count[0]; n > 1 && (d < -2 || d > 2) {
					t.Errorf("%v: of %d rows rank %d has %d, rank 0 %d", l, rows, r, count[r],
						count[0])
				}
				if d := pairs[r] - pairs[0]; n > 1 && (d < -3*rows || d > 3*rows) {
					t.Errorf("%v: of %d rows rank %d has %d pairs, rank 0 %d", l, rows, r, pairs[r],
						pairs[0])
				}
			}
		}
	}
}
