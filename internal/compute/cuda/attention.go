package cuda

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// cache is a KV cache in the device's memory: layers as CacheShape.Lay has them, a block of one
// [key, value][head][position][dimension], of codes with the scales of its positions behind each
// head; of a layer of states those.
type cache struct {
	d      *Device
	shape  compute.CacheShape
	places []compute.LayerPlace
	layers []driver.Ptr // where those are in memory
	memory driver.Ptr
	// maps are those that have rows for copies of warp groups, box of them at a time.
	maps  []driver.TensorMap
	box   int
	given map[*float32]compute.Memory // scales of checkpoints
}

// mostValues is how many dimensions of values a block computes at most: four of each thread.
const mostValues = 4 * 128

// NewCache makes a KV cache.
func (d *Device) NewCache(shape compute.CacheShape) (compute.Cache, error) {
	if err := shape.Check(); err != nil {
		return nil, err
	}
	places, size, err := shape.Lay(ringAlign)
	if err != nil {
		return nil, err
	}
	c := &cache{d: d, shape: shape, places: places, layers: make([]driver.Ptr, len(places)),
		given: map[*float32]compute.Memory{}}
	for i, l := range shape.Layers {
		if l.Vectors() > 0 && l.ValueDim() > mostValues {
			return nil, fmt.Errorf("layer %d: %v: a GPU computes values of %d dimensions at most",
				i, l, mostValues)
		}
	}
	d.reclaim()
	c.memory = d.alloc(size, "the KV cache")
	if d.err != nil {
		return nil, d.err
	}
	for i, p := range places {
		c.layers[i] = c.memory + driver.Ptr(p.At)
	}
	c.mapLayers()
	return c, d.err
}

// Group implements compute.Cache.
func (c *cache) Group(layer int) int { return c.shape.Layers[layer].Group }

// CopyState implements compute.Cache.
func (c *cache) CopyState(to, from int) {
	c.d.flush()
	for i, l := range c.shape.Layers {
		n := l.StateBytes()
		if n == 0 || c.d.err != nil {
			continue
		}
		at := func(slot int) driver.Ptr { return c.layers[i] + driver.Ptr(slot*n) }
		c.d.check(c.d.ctx.Copy(at(to), at(from), uint64(n), c.d.stream))
	}
}

// Free implements compute.Cache.
func (c *cache) Free() error {
	if c.memory != 0 {
		c.d.wait()
		c.d.free(c.memory)
		c.memory = 0
	}
	return c.d.err
}

// headBytes are those of a head in a block.
func (c *cache) headBytes(l *compute.CacheLayer) int {
	return c.shape.BlockSize * (l.PaddedDim()*c.shape.DType.Size() + c.shape.DType.ScaleSize())
}

// scales are what a checkpoint gives for a layer's heads, where the device has them; 0 for nothing,
// and for a cache that does not need them.
func (c *cache) scales(of []float32) driver.Ptr {
	if len(of) == 0 || !c.shape.DType.Scaled() {
		return 0
	}
	m := c.given[&of[0]]
	if m == nil {
		m = c.d.Vector(of)
		c.given[&of[0]] = m
	}
	return at(m)
}

// WriteCache stores the keys and values of k's and v's rows: row r goes to slots[r], unless that is
// negative.
func (d *Device) WriteCache(c compute.Cache, layer int, k, v compute.View,
	scales compute.CacheScales, slots []int32) {
	d.writeCache(c.(*cache), layer, k, v, scales, d.integers(slots))
}

func (d *Device) writeCache(y *cache, layer int, k, v compute.View, scales compute.CacheScales,
	slots driver.Ptr) {
	l := &y.shape.Layers[layer]
	p := kernels.WriteCacheParams{K: first(k), Slots: slots, Cache: y.layers[layer],
		KScales: y.scales(scales.Keys), VScales: y.scales(scales.Values), Rows: int32(k.Rows),
		Heads: int32(l.Heads), Dim: int32(l.Dim), Padded: int32(l.PaddedDim()),
		Ldk: int32(k.Stride), Ldv: int32(v.Stride), BlockSize: int32(y.shape.BlockSize),
		Type: typeOf(y.shape.DType), Bytes: int32(y.headBytes(l))}
	if l.Kind == compute.KeysValues {
		p.V = first(v)
	}
	if y.shape.DType.Scaled() {
		grid, block := headBlocks(k.Rows, l.Heads*l.Vectors())
		launch(d, kernels.WriteCodes, grid, block, 0, p)
		return
	}
	elements(d, kernels.WriteCache, k.Rows*l.Heads*l.PaddedDim(), p)
}

// StoreHeads does to the heads of queries and of keys what Heads does, and stores keys and values
// as WriteCache does.
func (d *Device) StoreHeads(c compute.Cache, layer int, q, k, v compute.View,
	args compute.HeadArgs, slots []int32) {
	y := c.(*cache)
	l := &y.shape.Layers[layer]
	heads := q.Width / args.Dim
	p := kernels.StoreHeadsParams{Q: first(q), K: first(k), V: first(v),
		QWeight: at(args.QueryNorm), KWeight: at(args.KeyNorm), Slots: d.integers(slots),
		Cache: y.layers[layer], Rows: int32(q.Rows), Heads: int32(heads),
		KvHeads: int32(l.Heads), Dim: int32(args.Dim), Padded: int32(l.PaddedDim()),
		Ld: int32(q.Stride), BlockSize: int32(y.shape.BlockSize), Type: typeOf(y.shape.DType),
		Eps: args.Eps, KScales: y.scales(args.Scales.Keys), VScales: y.scales(args.Scales.Values),
		Bytes: int32(y.headBytes(l))}
	if args.Angles != nil {
		p.Angles, p.Turned = at(args.Angles.Memory), int32(args.Angles.Width)
	}
	grid, block := headBlocks(q.Rows, heads+2*l.Heads)
	kernel := kernels.StoreHeads
	if y.shape.DType.Scaled() {
		kernel = kernels.StoreHeadsCodes
	}
	launch(d, kernel, grid, block, 0, p)
	of(q.Memory).written()
}

// attentionBlock is how many threads compute a head of a row, mostBlocks how many blocks a grid may
// have in its second dimension.
const (
	attentionBlock = 128
	mostBlocks     = 1<<16 - 1
)

// Attention makes dst what the queries of q find among cached keys and values.
func (d *Device) Attention(c compute.Cache, layer int, b *compute.Batch,
	args compute.AttentionArgs, dst *compute.Tensor, q compute.View) {
	s, y := &d.step, c.(*cache)
	l := &y.shape.Layers[layer]
	if args.Chunked {
		d.check(fmt.Errorf("attention in chunks of %d positions is not computed on CUDA devices",
			args.Window))
		return
	}
	if d.byTensorCores(y, l, &args) {
		d.attendByTensorCores(b, y, layer, &args, dst, q)
		return
	}
	if k := d.splits(y, l, &args); k != nil {
		d.attendSplit(k, b, y, layer, &args, dst, q)
		return
	}
	d.attend(y, layer, args, dst, q, places{positions: d.integers(b.Position),
		sequences: d.integers(b.Seq), tables: s.tablesOf(b, l.Group), stride: s.shape.table,
		last: s.last})
}

// places are where the rows of a batch are, and the blocks of their sequences.
type places struct {
	positions, sequences, tables, last driver.Ptr
	stride                             int
}

func (d *Device) attend(y *cache, layer int, args compute.AttentionArgs, dst *compute.Tensor,
	q compute.View, b places) {
	sinks := at(args.Sinks)
	l, m := &y.shape.Layers[layer], of(dst.Memory)
	m.written()
	p := kernels.AttentionParams{Q: first(q), Cache: y.layers[layer], Positions: b.positions,
		Sequences: b.sequences, Tables: b.tables, Sinks: sinks, Y: m.values,
		Half: m.half(true), Heads: int32(args.Heads), KvHeads: int32(args.KVHeads),
		Dim: int32(args.HeadDim), Padded: int32(l.PaddedDim()), Values: int32(l.ValueDim()),
		Ldq: int32(q.Stride), LDY: int32(dst.Width), BlockSize: int32(y.shape.BlockSize),
		TableStride: int32(b.stride), Window: int32(args.Window),
		CacheType: typeOf(y.shape.DType), Type: d.half(), Bytes: int32(y.headBytes(l)),
		Scale: args.Scale, Cap: args.Cap}
	if l.Kind == compute.Latent {
		p.Latent = 1
	}
	if args.Ahead > 0 {
		p.Last, p.Ahead = b.last, int32(args.Ahead)
	}
	kernel := kernels.Attention
	if y.shape.DType.Scaled() {
		kernel = kernels.AttentionCodes
	}
	for left := q.Rows; left > 0; left -= mostBlocks {
		rows := min(left, mostBlocks)
		launch(d, kernel, [3]uint32{uint32(args.Heads), uint32(rows), 1},
			[3]uint32{attentionBlock, 1, 1}, 4*l.PaddedDim(), p)
		p.Q += driver.Ptr(4 * rows * q.Stride)
		p.Y += driver.Ptr(4 * rows * dst.Width)
		p.Half += driver.Ptr(2 * rows * dst.Width)
		p.Positions += driver.Ptr(4 * rows)
		p.Sequences += driver.Ptr(4 * rows)
	}
}

// among is the cache that rows attend to each other in.
type among struct {
	cache         *cache
	slots, tables []int32
	of            []int // how many blocks each sequence has
}

// AttentionAmong makes dst what the queries of q find among the rows of their own sequence: keys
// and values are laid into a cache of their own, each sequence from a block on.
func (d *Device) AttentionAmong(b *compute.Batch, args compute.AttentionArgs, dst *compute.Tensor,
	q, k, v compute.View) {
	a := &d.among
	layer := compute.CacheLayer{Heads: args.KVHeads, Dim: args.HeadDim}
	stride, blocks := a.lay(b, compute.CacheTile)
	if c := a.cache; c == nil || c.shape.Blocks < blocks || c.shape.Layers[0] != layer {
		if a.cache != nil {
			d.check(a.cache.Free())
		}
		made, err := d.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{layer},
			Blocks: blocks + blocks/4, BlockSize: compute.CacheTile, DType: d.dtype})
		if err != nil {
			d.check(err)
			return
		}
		a.cache = made.(*cache)
	}
	d.writeCache(a.cache, 0, k, v, compute.CacheScales{}, d.integers(a.slots))
	d.attend(a.cache, 0, args, dst, q, places{positions: d.integers(b.Position),
		sequences: d.integers(b.Seq), tables: d.integers(a.tables), stride: stride,
		last: d.step.last})
}

// lay has each sequence in as many blocks as it needs, and says how many entries its table has and
// how many blocks there are.
func (a *among) lay(b *compute.Batch, blockSize int) (stride, blocks int) {
	a.of, a.slots, a.tables = a.of[:0], a.slots[:0], a.tables[:0]
	for i, seq := range b.Seq {
		for len(a.of) <= int(seq) {
			a.of = append(a.of, 0)
		}
		a.of[seq] = max(a.of[seq], int(b.Position[i])/blockSize+1)
		stride = max(stride, a.of[seq])
	}
	for _, n := range a.of {
		for i := range stride {
			a.tables = append(a.tables, int32(blocks+min(i, n-1)))
		}
		blocks += n
	}
	for i, seq := range b.Seq {
		at := int(b.Position[i])
		block := a.tables[int(seq)*stride+at/blockSize]
		a.slots = append(a.slots, block*int32(blockSize)+int32(at%blockSize))
	}
	return stride, blocks
}
