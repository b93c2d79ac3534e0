package cuda

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// What attend.cu computes in: positions of a tile and of a segment, and query rows of a warp.
const (
	tilePositions    = 64
	segmentPositions = 128
	warpRows         = 16
	manyWarps        = 4
)

// items are what blocks of attend compute: rows of a sequence that lie side by side, with all heads
// of a group. Few have a warp, many four, or warp groups.
type items struct {
	group     int
	few, many int // how many there are
	rows      int // of few
	// Where they are in the list that they were added to, then on the device.
	fromFew, fromMany, fromRows int
	fewAt, manyAt, rowsAt       driver.Ptr
}

// addItems adds the items of a batch, for groups of so many heads, to a list of integers. Blocks
// that compute many have so many units: rows times heads of a group.
func addItems(list []int32, b *compute.Batch, group, units int) ([]int32, items) {
	y := items{group: group}
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
		if rows*group <= warpRows {
			list = append(list, int32(row), int32(rows), b.Seq[row], b.Position[row+rows-1])
			y.few++
		}
	})
	y.fromMany = len(list)
	each := max(1, units/group)
	runs(func(row, rows int) {
		if rows*group <= warpRows {
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
		if rows*group <= warpRows {
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

// itemsOf are the items of the batch at hand. A group that the device has not met is known from the
// next batch on.
func (d *Device) itemsOf(b *compute.Batch, group int) items {
	s := &d.step
	for _, y := range s.items {
		if y.group == group {
			return y
		}
	}
	s.groups = append(s.groups, group)
	list, y := addItems(nil, b, group, d.manyUnits())
	return y.placed(d.integers(list))
}

// byTensorCores says whether attend computes a layer's attention.
func (d *Device) byTensorCores(y *cache, l *compute.CacheLayer, args *compute.AttentionArgs) bool {
	return d.dtype != compute.Float32 && y.shape.DType == d.dtype &&
		(l.Dim == 64 || l.Dim == 128) && l.Kind == compute.KeysValues && args.Ahead == 0 &&
		args.Heads/args.KVHeads <= warpRows
}

// attendShared is the dynamic shared memory of a block of attend: queries, and two stages of a tile
// of keys and values.
func attendShared(warps, dim int) int { return 2 * dim * (warps*warpRows + 4*tilePositions) }

// attendByTensorCores makes dst what the queries of q find, sixteen rows at a time.
func (d *Device) attendByTensorCores(b *compute.Batch, y *cache, layer int,
	args *compute.AttentionArgs, dst *compute.Tensor, q compute.View) {
	m, it := of(dst.Memory), d.itemsOf(b, args.Heads/args.KVHeads)
	m.written()
	s := &d.step
	p := kernels.AttendParams{Q: first(q), Cache: y.layers[layer],
		Positions: d.integers(b.Position), Tables: s.tables, Sinks: at(args.Sinks), Y: m.values,
		Half: m.half(true), Heads: int32(args.Heads), KvHeads: int32(args.KVHeads),
		Ldq: int32(q.Stride), LDY: int32(dst.Width), BlockSize: int32(y.shape.BlockSize),
		TableStride: int32(s.shape.table), Window: int32(args.Window), Scale: args.Scale * log2e,
		Cap: args.Cap * log2e}
	if it.many > 0 {
		p.Items = it.manyAt
		grid := [3]uint32{uint32(it.many), uint32(args.KVHeads), 1}
		if d.groups.on {
			d.attendGroups(y, layer, p, args.HeadDim, grid)
		} else {
			d.launchAttend(p, args, grid, manyWarps)
		}
	}
	if it.few == 0 {
		return
	}
	p.Items = it.fewAt
	// As many as the blocks of a sequence may have, not as there are: a graph has them, too.
	segments := (s.shape.table*y.shape.BlockSize + segmentPositions - 1) / segmentPositions
	if segments == 1 || it.few*args.KVHeads >= 2*d.info.Multiprocessors {
		d.launchAttend(p, args, [3]uint32{uint32(it.few), uint32(args.KVHeads), 1}, 1)
		return
	}
	units := q.Rows * args.Heads * segments
	p.Parts = d.segments.grow(d, 4*units*(args.HeadDim+2))
	p.Limits = p.Parts + driver.Ptr(4*units*args.HeadDim)
	p.Segments = int32(segments)
	d.launchAttend(p, args, [3]uint32{uint32(it.few), uint32(args.KVHeads), uint32(segments)}, 1)
	launch(d, kernels.Fold, [3]uint32{uint32(args.Heads), uint32(it.rows), 1},
		[3]uint32{uint32(args.HeadDim), 1, 1}, 0, kernels.FoldParams{Parts: p.Parts,
			Limits: p.Limits, Rows: it.rowsAt, Positions: p.Positions, Sinks: p.Sinks, Y: p.Y,
			Half: p.Half, Heads: p.Heads, Dim: int32(args.HeadDim), Segments: p.Segments,
			Window: p.Window, LDY: p.LDY, Type: d.half()})
}

func (d *Device) launchAttend(p kernels.AttendParams, args *compute.AttentionArgs, grid [3]uint32,
	warps int) {
	kernel := kernels.Attend64BF16
	if args.HeadDim == 128 {
		kernel = kernels.Attend128BF16
	}
	if d.dtype == compute.Float16 {
		kernel += kernels.Attend64F16 - kernels.Attend64BF16
	}
	launch(d, kernel, grid, [3]uint32{uint32(32 * warps), 1, 1}, attendShared(warps, args.HeadDim),
		p)
}

// log2e turns scores into those of powers of two.
const log2e = 1.4426950408889634
