package layout

// pieceRows is the least number of rows of a piece of a divided chunk: with fewer, what ranks save
// is less than their exchange of keys and values costs.
const pieceRows = 16

// Everyone stands for every rank of a PCP group.
const Everyone = -1

// Piece is rows From to To-1 of a chunk, the rows that one request has in a step, and the place
// (PCP) of the rank that computes them.
type Piece struct{ From, To, PCP int }

// Pieces is the number of pieces in which a PCP group computes a chunk of rows rows. Long chunks
// have two for each rank; a short one, as that of a request that decodes, is one piece that every
// rank computes. It depends on nothing but the sizes, so that all ranks agree.
func (l Layout) Pieces(rows int) int {
	if n := 2 * l.PCP; n > 2 && rows >= n*pieceRows {
		return n
	}
	return 1
}

// Piece is the i-th piece of a chunk of rows rows, in order of position. Each rank has one from the
// front and the one as far from the back: later rows attend to more positions, and so all ranks
// have equally much to do.
func (l Layout) Piece(rows, i int) Piece {
	n := l.Pieces(rows)
	if n == 1 {
		return Piece{To: rows, PCP: Everyone}
	}
	return Piece{From: rows * i / n, To: rows * (i + 1) / n, PCP: min(i, n-1-i)}
}
