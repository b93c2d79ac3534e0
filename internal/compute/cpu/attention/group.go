package attention

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
)

// piece is how many tiles one call of a kernel covers: it keeps the keys and values that several
// kernels read in turn in the cache of the core, and the time for which a call cannot be
// interrupted short. A multiple of four.
const piece = 32

var negInf = float32(math.Inf(-1))

// scratch is the memory of one thread.
type scratch struct {
	// Offsets of the K tiles of the current segment's head 0, from tile firstTile on.
	tiles     []int
	firstTile int

	q      []float32 // [query][HeadDim]
	scores []float32 // [query][stride], from the first tile of the group on
	acc    []float32 // [query][padded dimension of a value]
	sum    [maxQueries]float32
	// Tiles of V that latents were turned into, and where they lie.
	turned   []byte
	turnedAt []int

	_ [128]byte // keeps the scratch of two threads out of one cache line
}

// ScratchBytes is the memory of a thread that attends to so many positions at most.
func ScratchBytes(positions int) int64 {
	tiles := int64(positions)/tile + 4
	return maxQueries*tiles*tile*4 + tiles*8
}

// padded is a dimension rounded up to whole tiles.
func padded(dim int) int { return (dim + tile - 1) / tile * tile }

func grow[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n, n+n/4)
	}
	return s[:n]
}

// mapTiles looks up the tiles a segment's rows attend to.
func (s *scratch) mapTiles(j *job, seg *segment) {
	cfg := &j.c.cfg
	table := j.b.Tables[seg.seq]
	s.firstTile = j.from(seg.pos) / tile
	last := (seg.end() - 1) / tile
	s.tiles = grow(s.tiles, last-s.firstTile+1)
	for t := range s.tiles {
		pos := (s.firstTile + t) * tile
		block := int(table[pos/cfg.BlockSize])
		if block < 0 || block >= cfg.Blocks {
			panic(fmt.Sprintf("attention: position %d of sequence %d lies in block %d of %d",
				pos, seg.seq, block, cfg.Blocks))
		}
		s.tiles[t] = j.p.tileOffset(block, pos%cfg.BlockSize)
	}
}

// keys is where the keys of a head, one of job.heads, lie from the offset of a tile on.
func (j *job) keys(head int) int { return head >> j.cut * j.p.head }

// group computes rows rows of a segment, from its row first on, for the query heads of one
// of job.heads. Query i is that of row i/queries and head i%queries.
func (s *scratch) group(j *job, seg *segment, head, first, rows int) {
	n := rows * j.queries
	for lo := 0; lo < n; lo += maxQueries {
		s.attend(j, seg, head, first*j.queries+lo, min(maxQueries, n-lo))
	}
}

// attend computes n queries of a segment, from query q0 on.
func (s *scratch) attend(j *job, seg *segment, head, q0, n int) {
	dim, valueDim := j.args.HeadDim, j.p.ValueDim()
	padded := padded(valueDim)
	firstPos, lastPos := seg.pos+q0/j.queries, seg.pos+(q0+n-1)/j.queries
	t0 := j.from(firstPos) / tile
	tiles := (j.until(seg, lastPos)-1)/tile + 1 - t0
	stride := (tiles + 3) &^ 3 * tile

	s.q = grow(s.q, n*dim)
	for i := range n {
		row, h := seg.row+(q0+i)/j.queries, head*j.queries+(q0+i)%j.queries
		copy(s.q[i*dim:(i+1)*dim], j.q[row*j.ldq+h*dim:])
	}
	s.scores = grow(s.scores, n*stride)
	for t := 0; t < tiles; t += piece {
		s.score(j, head, n, t0-s.firstTile+t, min(piece, tiles-t), s.scores[t*tile:], stride)
	}

	for i := range n {
		pos := seg.pos + (q0+i)/j.queries
		from := j.from(pos)
		begin := from / tile * tile
		row := s.scores[i*stride+begin-t0*tile : i*stride+j.until(seg, pos)-t0*tile]
		if limit := j.args.Cap; limit > 0 {
			j.a.ops.TanhCap(row, limit)
		}
		for k := range row[:from-begin] {
			row[k] = negInf
		}
		top := j.a.ops.Max(row)
		if j.args.Sinks == nil {
			s.sum[i] = j.a.ops.ExpSum(row, top)
			continue
		}
		sink := j.args.Sinks[head*j.queries+(q0+i)%j.queries]
		top = max(top, sink)
		s.sum[i] = j.a.ops.ExpSum(row, top) + float32(math.Exp(float64(sink-top)))
	}

	// The positions all rows attend to are added for all queries at once; those before and after,
	// row by row.
	s.acc = grow(s.acc, n*padded)
	clear(s.acc)
	common, commonEnd := j.from(lastPos), j.until(seg, firstPos)
	if common >= commonEnd {
		common, commonEnd = math.MaxInt, math.MaxInt
	}
	for i := 0; i < n; {
		pos := seg.pos + (q0+i)/j.queries
		same := min(n, j.queries-(q0+i)%j.queries+i) - i
		s.values(j, head, i, same, t0, stride, j.from(pos), min(common, j.until(seg, pos)))
		i += same
	}
	if common < commonEnd {
		s.values(j, head, 0, n, t0, stride, common, commonEnd)
	}
	for i := 0; i < n && commonEnd < j.until(seg, lastPos); {
		pos := seg.pos + (q0+i)/j.queries
		same := min(n, j.queries-(q0+i)%j.queries+i) - i
		s.values(j, head, i, same, t0, stride, commonEnd, j.until(seg, pos))
		i += same
	}

	for i := range n {
		row, h := seg.row+(q0+i)/j.queries, head*j.queries+(q0+i)%j.queries
		out := j.dst[row*j.ldd+h*valueDim : row*j.ldd+(h+1)*valueDim]
		copy(out, s.acc[i*padded:])
		j.a.ops.Scale(out, 1/s.sum[i])
	}
}

// score writes the scaled scores of all n queries with tiles tiles, from the t-th of the segment
// on, to out, a row of stride elements for each query.
func (s *scratch) score(j *job, head, n, t, tiles int, out []float32, stride int) {
	dim := j.args.HeadDim
	offs := s.tiles[t : t+tiles]
	k := j.a.simd[j.c.cfg.DType]
	if k == nil {
		scorePortable(j.c, j.keys(head), offs, s.q, n, dim, j.args.Scale, out, stride)
		return
	}
	base := unsafe.Pointer(&j.c.data[j.keys(head)])
	for i := 0; i < n; {
		f, took := k.qk1, 1
		switch left := n - i; {
		case left >= 6:
			f, took = k.qk6, 6
		case left >= 4:
			f, took = k.qk4, 4
		case left >= 2:
			f, took = k.qk2, 2
		}
		f(base, &offs[0], tiles, &s.q[i*dim], dim*4, dim, j.args.Scale, &out[i*stride], stride*4)
		i += took
	}
}

// values adds the values at positions begin to end-1, times their weights, to the accumulators of n
// queries from i0 on. The rows of weights begin at tile t0.
func (s *scratch) values(j *job, head, i0, n, t0, stride, begin, end int) {
	most := piece
	if j.p.Kind == compute.Latent {
		most = latentPiece
	}
	for begin < end {
		stop := min(end, (begin/tile+most)*tile)
		s.valuePiece(j, head, i0, n, begin/tile-s.firstTile, begin%tile, stop-begin,
			s.scores[begin-t0*tile:], stride)
		begin = stop
	}
}

func (s *scratch) valuePiece(j *job, head, i0, n, t, first, count int, p []float32, stride int) {
	kind, padded := j.c.cfg.DType, padded(j.p.ValueDim())
	data, offs := j.c.data[j.p.values+j.keys(head):], s.tiles[t:]
	if j.p.Kind == compute.Latent {
		data, offs = s.turn(j, t, (first+count-1)/tile+1)
	}
	k := j.a.simd[kind]
	if k == nil {
		valuePortable(kind, data, offs, first, count, p[i0*stride:], stride,
			s.acc[i0*padded:(i0+n)*padded], padded)
		return
	}
	sliceBytes := tile * tile * kind.Size()
	slices := padded / tile
	for i := i0; i < i0+n; {
		f, took, multiple := k.pv1x4, 1, 4
		switch left := i0 + n - i; {
		case left >= 6:
			f, took, multiple = k.pv6, 6, 1
		case left >= 4:
			f, took, multiple = k.pv4, 4, 1
		case left >= 2:
			f, took, multiple = k.pv2x2, 2, 2
		}
		whole := slices / multiple * multiple
		if whole > 0 {
			f(unsafe.Pointer(&data[0]), &offs[0], first, count, whole,
				&p[i*stride], stride*4, &s.acc[i*padded], padded*4)
		}
		if rest := slices - whole; rest > 0 {
			f = k.pv1x1
			if rest == 2 {
				f = k.pv1x2
			}
			for q := i; q < i+took; q++ {
				f(unsafe.Pointer(&data[whole*sliceBytes]), &offs[0], first, count, rest,
					&p[q*stride], stride*4, &s.acc[q*padded+whole*tile], padded*4)
			}
		}
		i += took
	}
}
