package attention

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/amx"
)

// stretch is how many positions have a softmax of their own, from a multiple of it on. A row's
// result is that of the stretches it attends to, joined in their order (the online softmax of
// Milakov and Gimelshein, 2018), so its bits depend on its own positions alone. The keys and values
// of a stretch stay in the core's cache for all queries of a group, and bound the time for which a
// kernel cannot be interrupted.
const (
	stretch      = 512
	stretchTiles = stretch / tile
)

// extra is what a row of an accumulator has beside the padded dimensions of a value: its greatest
// score and its sum of weights, at the first two places; the others keep rows aligned.
const extra = tile

// scoreStride is the distance of two rows of scores: not a power of two, whose rows would share the
// sets of a cache.
const scoreStride = stretch + tile

var negInf = float32(math.Inf(-1))

// ahead is how many tiles before it is read one is fetched: so much is multiplied in the time that
// memory takes. The prefetchers of the hardware do not cross pages, as tiles do.
const ahead = 4

// walk is tiles of a stretch. Kernels are given a tile's place in at, and find those in keys or
// values from there.
type walk struct {
	at [stretchTiles]int // offsets, of head 0
	// bytes from a tile of K, and of V, to the one that is fetched while it is read
	keys, values [stretchTiles]int
}

// scratch is the memory of one thread. It does not grow with the context.
type scratch struct {
	// Those in the stretch of the segment that was mapped last, count of them from first on.
	tiles        walk
	first, count int
	seg, mapped  int

	q      []float32 // [query of the group][HeadDim]
	scores []float32 // [query of the pass][scoreStride], from the first tile of the pass on
	part   []float32 // accumulators of a stretch: [query of the pass and before][padded + extra]
	acc    []float32 // accumulators of those before it: [query of the group][padded + extra]
	// Tiles of V that latents were turned into, and where they lie.
	turned   []byte
	turnedAt walk

	scaling scaling
	tiling  tiling

	_ [128]byte // keeps the scratch of two threads out of one cache line
}

// ScratchBytes is the memory of a thread: for heads of 256 values by tiles, and what it may add to
// the stretches that threads share.
func ScratchBytes() int64 {
	const dim = 256
	queries := tileQueries*(4*2*(dim+extra)+2*dim) + blockQueries*(4*(scoreStride+dim)+2*stretch)
	return int64(queries + 2*2*stretch*dim + mostStored*4)
}

// padded is a dimension rounded up to whole tiles.
func padded(dim int) int { return (dim + tile - 1) / tile * tile }

func grow[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n, n+n/4)
	}
	return s[:n]
}

// group is n queries: those of the rows of a segment from its row first on, for the query heads of
// one of job.heads. Query i is that of row first+i/queries and head i%queries.
type group struct {
	seg            *segment
	head, first, n int
}

// pos is the position of query i.
func (g *group) pos(j *job, i int) int { return g.seg.pos + g.first + i/j.queries }

// query is where the query i lies in a matrix of rows of ld values, of dim for each head.
func (g *group) query(j *job, i, ld, dim int) int {
	return (g.seg.row+g.first+i/j.queries)*ld + (g.head*j.queries+i%j.queries)*dim
}

// stretches are those that the queries attend to: from the first to before the last.
func (g *group) stretches(j *job) (from, until int) {
	return j.from(g.pos(j, 0)) / stretch, (j.until(g.seg, g.pos(j, g.n-1))-1)/stretch + 1
}

// begins is the position of the first tile of a stretch that a segment's rows attend to.
func (j *job) begins(g *segment, st int) int { return max(st*stretch, j.from(g.pos)/tile*tile) }

// mapTiles looks up the tiles of a stretch that a segment's rows attend to.
func (s *scratch) mapTiles(j *job, seg, st int) {
	if s.seg == seg && s.mapped == st {
		return
	}
	s.seg, s.mapped = seg, st
	cfg, g := &j.c.cfg, &j.segments[seg]
	table := j.tables[g.seq]
	begin := j.begins(g, st)
	s.first, s.count = begin%stretch/tile, 0
	for pos := begin; pos < min((st+1)*stretch, g.end()); {
		block, off := int(table[pos/cfg.BlockSize]), pos%cfg.BlockSize
		if block < 0 || block >= j.p.Blocks {
			panic(fmt.Sprintf("attention: position %d of sequence %d lies in block %d of %d",
				pos, g.seq, block, j.p.Blocks))
		}
		at := j.p.tileOffset(block, off)
		for ; off < cfg.BlockSize && pos < (st+1)*stretch; off += tile {
			s.tiles.at[pos%stretch/tile] = at
			at += j.p.tile
			pos += tile
			s.count++
		}
	}
	// A block, and a panel, may begin with a tile that no row attends to: any of this cache is as
	// good.
	if t := s.first; t%panelTiles > 0 {
		s.tiles.at[t-1] = s.tiles.at[t]
	}
}

// begin prepares for a stretch.
func (s *scratch) begin(j *job, seg int, g *group, st int) {
	s.mapTiles(j, seg, st)
	if j.tiled() {
		s.beginTiles(j, g, st)
		return
	}
	s.aim(j, g, st)
}

// aim sets which tiles are fetched while those of a stretch are read: keys, then values, then the
// first keys of the next stretch, or of the next head's first one.
func (s *scratch) aim(j *job, g *group, st int) {
	var order [2*stretchTiles + ahead]int
	n := copy(order[:], s.tiles.at[s.first:s.first+s.count])
	if j.p.Kind == compute.KeysValues {
		for i := range s.count {
			order[n] = order[i] + j.p.values
			n++
		}
	}
	from, until := g.stretches(j)
	pos, way := (st+1)*stretch, 0
	if st+1 == until && g.head+1 < j.heads {
		pos, way = j.begins(g.seg, from), j.keys(g.head+1)-j.keys(g.head)
	}
	table, size := j.tables[g.seg.seq], j.c.cfg.BlockSize
	for i := range ahead {
		order[n+i] = order[n-1+i] // which has been fetched
		if pos < g.seg.end() {
			order[n+i] = j.p.tileOffset(int(table[pos/size]), pos%size) + way
			pos += tile
		}
	}
	for i := range s.count {
		s.tiles.keys[s.first+i] = order[i+ahead] - order[i]
	}
	for i := s.count; i < n; i++ {
		s.tiles.values[s.first+i-s.count] = order[i+ahead] - order[i]
	}
}

// keys is where the keys of a head, one of job.heads, lie from the offset of a tile on.
func (j *job) keys(head int) int { return head >> j.cut * j.p.head }

// load copies the queries of a group side by side.
func (s *scratch) load(j *job, g *group) {
	if j.tiled() {
		s.loadTiles(j, g)
		return
	}
	dim := j.args.HeadDim
	s.q = grow(s.q, g.n*dim)
	s.scores = grow(s.scores, j.pass*scoreStride)
	for i := range g.n {
		copy(s.q[i*dim:(i+1)*dim], j.q[g.query(j, i, j.ldq, dim):])
	}
}

// group computes a group. seg is the index of its segment.
func (s *scratch) group(j *job, seg int, g *group) {
	s.load(j, g)
	w := j.width()
	s.part, s.acc = grow(s.part, (amx.Block+j.pass)*w), grow(s.acc, g.n*w)
	from, until := g.stretches(j)
	for st := from; st < until; st++ {
		s.begin(j, seg, g, st)
		for i := 0; i < g.n; i += j.pass {
			i0, n := j.active(g, st, i, min(j.pass, g.n-i))
			if st == from { // there is nothing to join
				s.attend(j, g, st, i0, n, s.acc[i0*w:])
				continue
			}
			part := s.part[i0%amx.Block*w:]
			s.attend(j, g, st, i0, n, part)
			for k := range n {
				s.join(j, g, st, i0+k, part[k*w:(k+1)*w])
			}
		}
	}
	for i := range g.n {
		s.finish(j, g, i)
	}
}

// stretches computes some stretches of a group on their own, from the first to before the last, to
// accumulators at to: [stretch][query].
func (s *scratch) stretches(j *job, seg int, g *group, from, until int, to []float32) {
	s.load(j, g)
	w := j.width()
	for st := from; st < until; st++ {
		s.begin(j, seg, g, st)
		for i := 0; i < g.n; i += j.pass {
			i0, n := j.active(g, st, i, min(j.pass, g.n-i))
			s.attend(j, g, st, i0, n, to[i0*w:])
		}
		to = to[g.n*w:]
	}
}

// joinAll makes the result of a group of the accumulators of its stretches.
func (s *scratch) joinAll(j *job, g *group, stored []float32) {
	w := j.width()
	s.acc = grow(s.acc, g.n*w)
	first, _ := g.stretches(j)
	for i := range g.n {
		pos := g.pos(j, i)
		for st := j.from(pos) / stretch; st*stretch < j.until(g.seg, pos); st++ {
			at := ((st-first)*g.n + i) * w
			s.join(j, g, st, i, stored[at:at+w])
		}
		s.finish(j, g, i)
	}
}

// width is the length of an accumulator.
func (j *job) width() int { return padded(j.p.ValueDim()) + extra }

// active are those of n queries, from i on, that attend to a stretch: consecutive ones, as later
// rows attend from no earlier position and until no earlier one.
func (j *job) active(g *group, st, i, n int) (i0, count int) {
	for n > 0 && j.until(g.seg, g.pos(j, i)) <= st*stretch {
		i, n = i+1, n-1
	}
	for n > 0 && j.from(g.pos(j, i+n-1)) >= (st+1)*stretch {
		n--
	}
	return i, n
}

// attend computes what n queries of a group, from i0 on, find in a stretch to the accumulators at
// acc. Those before, back to a multiple of amx.Block, are there too, and may be written where their
// queries do not attend to the stretch.
func (s *scratch) attend(j *job, g *group, st, i0, n int, acc []float32) {
	switch {
	case n == 0:
		return
	case j.tiled():
		s.attendTiles(j, g, st, i0, n, acc)
		return
	}
	w := j.width()
	begin, end := st*stretch, (st+1)*stretch
	firstPos, lastPos := g.pos(j, i0), g.pos(j, i0+n-1)
	t0 := max(begin, j.from(firstPos)) / tile
	tiles := (min(end, j.until(g.seg, lastPos))-1)/tile + 1 - t0
	s.score(j, g.head, i0, n, t0%stretchTiles, tiles)
	scaled := j.c.cfg.DType.Scaled()
	if scaled {
		s.mapScales(j, g.head, t0%stretchTiles, 0, tiles)
	}

	acc = acc[:n*w]
	clear(acc)
	for i := range n {
		pos := g.pos(j, i0+i)
		from, until := max(begin, j.from(pos)), min(end, j.until(g.seg, pos))
		first := from / tile * tile
		row := s.scores[i*scoreStride+first-t0*tile : i*scoreStride+until-t0*tile]
		if scaled {
			j.a.ops.Mul(row, s.scaling.keys[first-t0*tile:])
		}
		acc[(i+1)*w-extra], acc[(i+1)*w-extra+1] = j.weigh(row, from-first)
		if scaled {
			j.a.ops.Mul(row, s.scaling.values[first-t0*tile:])
		}
	}

	// The positions all rows attend to are added for all queries at once; those before and after,
	// row by row.
	common, commonEnd := max(begin, j.from(lastPos)), min(end, j.until(g.seg, firstPos))
	if common >= commonEnd {
		common, commonEnd = math.MaxInt, math.MaxInt
	}
	for i := 0; i < n; {
		pos, same := g.pos(j, i0+i), min(n-i, j.queries-(i0+i)%j.queries)
		s.values(j, g.head, i, same, t0, max(begin, j.from(pos)),
			min(common, end, j.until(g.seg, pos)), acc)
		i += same
	}
	if common < commonEnd {
		s.values(j, g.head, 0, n, t0, common, commonEnd, acc)
	}
	for i := 0; i < n && commonEnd < min(end, j.until(g.seg, lastPos)); {
		pos, same := g.pos(j, i0+i), min(n-i, j.queries-(i0+i)%j.queries)
		s.values(j, g.head, i, same, t0, commonEnd, min(end, j.until(g.seg, pos)), acc)
		i += same
	}
}

// weigh makes the scores of a row weights, so many at its begin zero. It returns the greatest
// score, and the sum of the weights.
func (j *job) weigh(row []float32, hidden int) (top, sum float32) {
	ops := j.a.ops
	if limit := j.args.Cap; limit > 0 {
		ops.TanhCap(row, limit)
	}
	for k := range row[:hidden] {
		row[k] = negInf
	}
	top = ops.Max(row)
	base := top
	if base == negInf {
		base = 0 // no position weighs anything, rather than minus infinity less itself
	}
	return top, ops.ExpSum(row, base)
}

// join adds the accumulator of a stretch to that of query i of the group, which has those before.
func (s *scratch) join(j *job, g *group, st, i int, part []float32) {
	n := len(part) - extra
	acc := s.acc[i*len(part) : (i+1)*len(part)]
	if st == j.from(g.pos(j, i))/stretch {
		copy(acc, part)
		return
	}
	top, sum := acc[n], acc[n+1]
	if top >= part[n] {
		f := weight(part[n], top)
		j.a.ops.Axpy(acc[:n], f, part[:n])
		acc[n+1] = sum + float32(f*part[n+1])
		return
	}
	f := weight(top, part[n])
	j.a.ops.Scale(acc[:n], acc, f)
	j.a.ops.Add(acc[:n], acc[:n], part[:n])
	acc[n], acc[n+1] = part[n], float32(f*sum)+part[n+1]
}

// weight is e^(x-top), 1 for infinities that are equal.
func weight(x, top float32) float32 {
	if x == top {
		return 1
	}
	return float32(math.Exp(float64(x - top)))
}

// finish writes the result of query i of a group.
func (s *scratch) finish(j *job, g *group, i int) {
	dim, w := j.p.ValueDim(), j.width()
	acc := s.acc[i*w : (i+1)*w]
	top, sum := acc[w-extra], acc[w-extra+1]
	if j.args.Sinks != nil {
		sink := j.args.Sinks[g.head*j.queries+i%j.queries]
		if sink > top {
			f := weight(top, sink)
			j.a.ops.Scale(acc[:dim], acc, f)
			sum = float32(f*sum) + 1
		} else {
			sum += weight(sink, top)
		}
	}
	j.a.ops.Scale(j.dst[g.query(j, i, j.ldd, dim):][:dim], acc, 1/sum)
}

// score writes the scaled scores of n queries of the group, from i0 on, with tiles tiles, from the
// t-th of the stretch on.
func (s *scratch) score(j *job, head, i0, n, t, tiles int) {
	dim := j.args.HeadDim
	offs, q := s.tiles.at[t:t+tiles], s.q[i0*dim:]
	k := j.a.simd[j.c.cfg.DType]
	if k == nil {
		scorePortable(j.c, j.keys(head), offs, q, n, dim, j.args.Scale, s.scores, scoreStride)
		return
	}
	base := unsafe.Pointer(&j.c.data[j.keys(head)])
	for i := 0; i < n; {
		f, took := k.qk1, 1
		switch left := n - i; {
		case left >= 12 && k.qk12 != nil:
			f, took = k.qk12, 12
		case left >= 6:
			f, took = k.qk6, 6
		case left >= 4:
			f, took = k.qk4, 4
		case left >= 2:
			f, took = k.qk2, 2
		}
		f(base, &offs[0], tiles, &q[i*dim], dim*4, dim, j.args.Scale, &s.scores[i*scoreStride],
			scoreStride*4)
		i += took
	}
}

// values adds the values at positions begin to end-1 of a stretch, times their weights, to the
// accumulators of n queries of the pass from i on. The rows of weights begin at tile t0.
func (s *scratch) values(j *job, head, i, n, t0, begin, end int, acc []float32) {
	most := stretchTiles
	if j.p.Kind == compute.Latent {
		most = latentPiece
	}
	for begin < end {
		stop := min(end, (begin/tile+most)*tile)
		s.valuePiece(j, head, i, n, begin/tile%stretchTiles, begin%tile, stop-begin,
			s.scores[begin-t0*tile:], acc)
		begin = stop
	}
}

func (s *scratch) valuePiece(j *job, head, i0, n, t, first, count int, p, acc []float32) {
	kind, w := j.c.cfg.DType, j.width()
	data, offs := j.c.data[j.p.values+j.keys(head):], s.tiles.at[t:]
	if j.p.Kind == compute.Latent {
		data, offs = s.turn(j, t, (first+count-1)/tile+1)
	}
	k := j.a.simd[kind]
	if k == nil {
		valuePortable(kind, data, offs, first, count, p[i0*scoreStride:], scoreStride,
			acc[i0*w:(i0+n)*w], w, w-extra)
		return
	}
	sliceBytes := tile * tile * kind.Size()
	slices := w/tile - 1
	for i := i0; i < i0+n; {
		f, took, multiple := k.pv1x4, 1, 4
		switch left := i0 + n - i; {
		case left >= 12 && k.pv12 != nil:
			f, took, multiple = k.pv12x2, 12, 2
		case left >= 6:
			f, took, multiple = k.pv6, 6, k.wide
		case left >= 4:
			f, took, multiple = k.pv4, 4, k.wide
		case left >= 2:
			f, took, multiple = k.pv2, 2, k.pair
		}
		whole := slices / multiple * multiple
		if whole > 0 {
			f(unsafe.Pointer(&data[0]), &offs[0], first, count, whole,
				&p[i*scoreStride], scoreStride*4, &acc[i*w], w*4)
		}
		if rest := slices - whole; rest > 0 {
			f, each := k.pv1x1, 1
			switch {
			case took == 12:
				f, each = k.pv12, 12
			case rest == 2:
				f = k.pv1x2
			}
			for q := i; q < i+took; q += each {
				f(unsafe.Pointer(&data[whole*sliceBytes]), &offs[0], first, count, rest,
					&p[q*scoreStride], scoreStride*4, &acc[q*w+whole*tile], w*4)
			}
		}
		i += took
	}
}
