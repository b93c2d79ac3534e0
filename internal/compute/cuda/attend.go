package cuda

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// What attend.cu computes in: positions of a tile and of a segment, query rows of a warp, which few
// are, and the warps of a block: of many rows, and of few, whose segments it has all of. One that
// has some is a warp.
const (
	tilePositions    = 64
	segmentPositions = 128
	warpRows         = 16
	manyWarps        = 4
	fewWarps         = 4
)

// sharing is how kernels of attention share rows of a sequence that lie side by side among blocks,
// units with all heads of a group each. Few are so many at most, or one row: their positions may be
// those of several blocks. Of more a block has so many.
type sharing struct{ group, limit, block int }

// isFew says whether so many rows of a sequence are few.
func (y sharing) isFew(rows int) bool { return rows == 1 || rows*y.group <= y.limit }

// items are what there is to compute of a batch.
type items struct {
	sharing
	few, many int // how many there are
	rows      int // of few
	// Where they are in the list that they were added to, then on the device.
	fromFew, fromMany, fromRows int
	fewAt, manyAt, rowsAt       driver.Ptr
}

// addItems adds the items of a batch to a list of integers.
func addItems(list []int32, b *compute.Batch, s sharing) ([]int32, items) {
	y := items{sharing: s}
	runs := func(visit func(row, rows int)) {
		for from := 0; from < len(b.Seq); {
			to := from + 1
			for to < len(b.Seq) && b.Seq[to] == b.Seq[from] {
				to++
			}
			visit(from, to-from)
			from = to
		}
	}
	y.fromFew = len(list)
	runs(func(row, rows int) {
		if s.isFew(rows) {
			list = append(list, int32(row), int32(rows), b.Seq[row], b.Position[row+rows-1])
			y.few++
		}
	})
	y.fromMany = len(list)
	each := max(1, s.block/s.group)
	runs(func(row, rows int) {
		if s.isFew(rows) {
			return
		}
		for at := 0; at < rows; at += each {
			n := min(rows-at, each)
			list = append(list, int32(row+at), int32(n), b.Seq[row], b.Position[row+at+n-1])
			y.many++
		}
	})
	y.fromRows = len(list)
	runs(func(row, rows int) {
		if s.isFew(rows) {
			for i := range rows {
				list = append(list, int32(row+i))
				y.rows++
			}
		}
	})
	return list, y
}

// placed is where the items are, with the list they were added to at a place.
func (y items) placed(list driver.Ptr) items {
	at := func(i int) driver.Ptr { return list + driver.Ptr(4*i) }
	y.fewAt, y.manyAt, y.rowsAt = at(y.fromFew), at(y.fromMany), at(y.fromRows)
	return y
}

// itemsOf are the items of the batch at hand. A way to share that the device has not met is known
// from the next batch on.
func (d *Device) itemsOf(b *compute.Batch, as sharing) items {
	s := &d.step
	for _, y := range s.items {
		if y.sharing == as {
			return y
		}
	}
	s.shared = append(s.shared, as)
	list, y := addItems(nil, b, as)
	return y.placed(d.integers(list))
}

// byTensorCores says whether attend.cu computes a layer's attention.
func (d *Device) byTensorCores(y *cache, l *compute.CacheLayer, args *compute.AttentionArgs) bool {
	return d.dtype != compute.Float32 && y.shape.DType == d.dtype &&
		(l.Dim == 64 || l.Dim == 128) && l.Kind == compute.KeysValues && args.Ahead == 0 &&
		args.Heads/args.KVHeads <= warpRows
}

// attendShared is the dynamic shared memory of a block for many rows: queries, and two stages of a
// tile of keys and values.
func attendShared(dim int) int { return 2 * dim * (manyWarps*warpRows + 4*tilePositions) }

// fewShared is that of a block for few that has all segments: of each warp two pieces, halves of a
// tile of keys or of values, and what it finds. segmentsShared is that of one that has some: four.
func fewShared(dim int) int      { return fewWarps * (2*dim*tilePositions + 4*dim*warpRows) }
func segmentsShared(dim int) int { return 4 * dim * tilePositions }

// attendByTensorCores makes dst what the queries of q find, sixteen rows at a time.
func (d *Device) attendByTensorCores(b *compute.Batch, y *cache, layer int,
	args *compute.AttentionArgs, dst *compute.Tensor, q compute.View) {
	it := d.itemsOf(b, sharing{args.Heads / args.KVHeads, warpRows, d.manyUnits()})
	p := d.attended(b, y, layer, args, dst, q)
	if it.many > 0 {
		p.Items = it.manyAt
		grid := [3]uint32{uint32(it.many), uint32(args.KVHeads), 1}
		if d.groups.on {
			d.attendGroups(y, layer, p, args.HeadDim, grid)
		} else {
			launch(d, d.typed(attendKernel(kernels.Attend64BF16, args.HeadDim)), grid,
				[3]uint32{32 * manyWarps, 1, 1}, attendShared(args.HeadDim), p)
		}
	}
	if it.few == 0 {
		return
	}
	p.Items = it.fewAt
	segments := d.segmentsOf(y, segmentPositions)
	apart := d.apart(it.few*args.KVHeads, segments, segmentBlocks,
		partBytes(q.Rows, args.Heads, segments, args.HeadDim))
	grid := [3]uint32{uint32(it.few), uint32(args.KVHeads), uint32(apart)}
	if apart == 1 {
		launch(d, d.typed(attendKernel(kernels.AttendFew64BF16, args.HeadDim)), grid,
			[3]uint32{32 * fewWarps, 1, 1}, fewShared(args.HeadDim), p)
		return
	}
	d.inParts(&p, q.Rows, segments, args.HeadDim)
	launch(d, d.typed(attendKernel(kernels.AttendSegments64BF16, args.HeadDim)), grid,
		[3]uint32{32, 1, 1}, segmentsShared(args.HeadDim), p)
	d.fold(&p, it, args.HeadDim, segmentPositions)
}

// attended is what kernels that compute by tensor cores have in common.
func (d *Device) attended(b *compute.Batch, y *cache, layer int, args *compute.AttentionArgs,
	dst *compute.Tensor, q compute.View) kernels.AttendParams {
	m, s := of(dst.Memory), &d.step
	m.written()
	return kernels.AttendParams{Q: first(q), Cache: y.layers[layer],
		Positions: d.integers(b.Position), Tables: s.tablesOf(b, y.Group(layer)),
		Sinks: at(args.Sinks), Y: m.values,
		Half: m.half(true), Heads: int32(args.Heads), KvHeads: int32(args.KVHeads),
		Ldq: int32(q.Stride), LDY: int32(dst.Width), BlockSize: int32(y.shape.BlockSize),
		TableStride: int32(s.shape.table), Window: int32(args.Window), Scale: args.Scale * log2e,
		Cap: args.Cap * log2e}
}

// segmentsOf is how many segments of so many positions a sequence has: as many as its blocks may
// have, not as there are, since a graph has them, too.
func (d *Device) segmentsOf(y *cache, positions int) int {
	return ceil(d.step.shape.table*y.shape.BlockSize, positions)
}

// partBytes are those that a segment of rows is kept in until it is folded, of so many dimensions.
func partBytes(rows, heads, segments, dim int) int {
	return 4 * rows * heads * segments * (dim + 2)
}

// inParts has segments of rows kept.
func (d *Device) inParts(p *kernels.AttendParams, rows, segments, dim int) {
	bytes := partBytes(rows, int(p.Heads), segments, dim)
	p.Parts = d.segments.grow(d, bytes)
	p.Limits = p.Parts + driver.Ptr(bytes/(dim+2)*dim)
	p.Segments = int32(segments)
}

// foldWidth is how many dimensions a block of fold has at most.
const foldWidth = 128

// fold folds the segments that were kept, of so many positions each.
func (d *Device) fold(p *kernels.AttendParams, it items, dim, positions int) {
	blocks := ceil(dim, foldWidth)
	warps := ceil(dim, 32*blocks)
	launch(d, kernels.Fold, [3]uint32{uint32(p.Heads), uint32(it.rows), uint32(blocks)},
		[3]uint32{uint32(32 * warps), 1, 1}, 0, kernels.FoldParams{Parts: p.Parts,
			Limits: p.Limits, Rows: it.rowsAt, Positions: p.Positions, Sinks: p.Sinks, Y: p.Y,
			Half: p.Half, Heads: p.Heads, Dim: int32(dim), Segments: p.Segments,
			Segment: int32(positions), Window: p.Window, LDY: p.LDY, Type: d.half()})
}

// segmentBlocks is how many blocks a multiprocessor may be given that have some segments: more than
// it has room for at once, as those of short sequences are done before others.
const segmentBlocks = 24

// mostParts bounds the memory in bytes that segments of rows are kept in.
const mostParts = 1 << 30

// apart is how many blocks have the segments of a sequence and a head of keys, of so many of both.
// It is one where there are enough of these for all multiprocessors and none is long alone, or
// where what segments find takes too many bytes; else a multiprocessor has most blocks at most.
func (d *Device) apart(sequences, segments, most, bytes int) int {
	const short = 16
	room := d.info.Multiprocessors
	if segments == 1 || sequences >= 2*room || segments <= short && sequences >= room-room/16 ||
		bytes > mostParts {
		return 1
	}
	return min(segments, max(1, most*room/sequences))
}

// attendKernel is the kernel for a layer's heads, of that for 64 dimensions.
func attendKernel(k kernels.ID, dim int) kernels.ID {
	if dim == 128 {
		k++
	}
	return k
}

// log2e turns scores into those of powers of two.
const log2e = 1.4426950408889634
