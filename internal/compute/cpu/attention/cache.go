// Package attention holds the paged key/value cache of the CPU backend and attention over it.
//
// The result of a row and head depends only on its query, on the keys and values of its own
// sequence at the positions it attends to, on the element kind of the cache and on the instruction
// set. It has the same bits whether the row is computed while decoding or in a prefill chunk of any
// size, beside any other rows, on any number of threads, with any block size and any placement of
// the blocks. This holds because every score, every sum of exponentials and every output element is
// summed in an order that is counted from absolute positions: scores along the head's dimension,
// exponentials in the lanes of vec.Ops.ExpSum from the 16-position tile on in which the window
// begins, values position by position. So it is, too, where rows attend to each other in both
// directions and to nothing before (Among).
package attention

import (
	"errors"
	"fmt"
	"iter"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// tile is the number of positions, and of head dimensions, that lie together.
const tile = compute.CacheTile

// Cache holds keys and values in blocks of positions, outside the Go heap. Its memory is backed
// page by page when it is first written, by huge pages where the system has them.
//
// Layers lie as CacheShape.Lay has them. A block of a layer holds, for K and then for V, one tile
// of 16 positions after the other of the first head, then of the next. A tile of K is transposed,
// [dimension][16 positions]; a tile of V is cut into slices of 16 dimensions, [slice][16
// positions][16 dimensions]. So both kernels read rows of 16 elements in the order of memory. The
// elements of a row are permuted by lane. Behind the elements of a tile lie the scales of its 16
// positions, where vectors have one. Latents are kept as K only. A layer of states has them one
// after the other, each of float32 values.
//
// Concurrent calls of Write must write different slots, and none may run beside an Attention.Run
// that reads them.
type Cache struct {
	cfg    compute.CacheShape
	ops    *vec.Ops
	memory offheap.Memory
	data   []byte // the memory's, nil after Free

	layers []place
}

// place is what a layer keeps, and where, in bytes.
type place struct {
	compute.CacheLayer
	compute.LayerPlace
	tile   int // a tile of K or of V
	scales int // from its begin to the scales of its positions
	head   int // the tiles of one head in a block
	values int // from the K of a head to its V
	block  int // one block
}

// tileOffset is the offset of the K tile that position off of a block belongs to, for head 0.
func (p *place) tileOffset(block, off int) int { return p.At + block*p.block + off/tile*p.tile }

// NewCache maps the memory of a cache. An error names what is wrong with the configuration, or that
// the system refused the mapping.
func NewCache(cfg compute.CacheShape) (*Cache, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	places, size, err := cfg.Lay(1)
	if err != nil {
		return nil, err
	}
	layers := make([]place, len(cfg.Layers))
	element, scale := cfg.DType.Size(), cfg.DType.ScaleSize()
	for i, l := range cfg.Layers {
		p := place{CacheLayer: l, LayerPlace: places[i], scales: tile * l.PaddedDim() * element}
		p.tile = p.scales + tile*scale
		p.head = p.tile * (cfg.BlockSize / tile)
		p.values = p.head * l.Heads
		p.block = l.Bytes(cfg.BlockSize, cfg.DType)
		layers[i] = p
	}
	memory, err := offheap.Map(size, offheap.HugePages)
	if err != nil {
		return nil, fmt.Errorf("kv cache: %w", err)
	}
	return &Cache{cfg: cfg, ops: vec.New(isa.Best()), memory: memory, data: memory.Bytes(),
		layers: layers}, nil
}

// Config returns the shape the cache was made with.
func (c *Cache) Config() compute.CacheShape { return c.cfg }

// heads is the memory of a span, in the order of the heads. It panics outside of the cache.
func (c *Cache) heads(s compute.Span) []byte {
	if c.data == nil {
		panic(errFreed)
	}
	cfg := &c.cfg
	if s.Layer < 0 || s.Layer >= len(c.layers) || s.Block < 0 || s.Block >= cfg.Blocks ||
		s.From < 0 || s.From > s.To || s.To > c.layers[s.Layer].Heads {
		panic(fmt.Sprintf("attention: %+v of a kv cache of %+v", s, *cfg))
	}
	p := &c.layers[s.Layer]
	at := p.tileOffset(s.Block*p.Factor, 0)
	if s.Values {
		at += p.values
	}
	return c.data[at+s.From*p.head : at+s.To*p.head]
}

// Read implements compute.Cache, without a copy: f is given the cache's own memory.
func (c *Cache) Read(spans iter.Seq[compute.Span], f func(b []byte) error) error {
	for s := range spans {
		if err := f(c.heads(s)); err != nil {
			return err
		}
	}
	return nil
}

// Fill implements compute.Cache, as Read does.
func (c *Cache) Fill(spans iter.Seq[compute.Span], f func(b []byte) error) error {
	return c.Read(spans, f)
}

// Group implements compute.Cache.
func (c *Cache) Group(layer int) int { return c.cfg.Layers[layer].Group }

// State is the numbers that a layer keeps of a request, Heads·Dim. It panics outside of the cache.
func (c *Cache) State(layer, slot int) []float32 {
	if c.data == nil {
		panic(errFreed)
	}
	if layer < 0 || layer >= len(c.layers) || c.layers[layer].Kind != compute.State || slot < 0 ||
		slot >= c.cfg.States {
		panic(fmt.Sprintf("attention: state %d of layer %d of a kv cache of %+v", slot, layer,
			c.cfg))
	}
	p := &c.layers[layer]
	at := p.At + slot*p.StateBytes()
	return cast[float32](c.data[at : at+4*p.Heads*p.Dim])
}

// CopyState makes the states that layers have in slot to those in slot from.
func (c *Cache) CopyState(to, from int) {
	for i := range c.layers {
		if c.layers[i].Kind == compute.State {
			copy(c.State(i, to), c.State(i, from))
		}
	}
}

// Free unmaps the memory. The cache may not be used afterwards; a second call does nothing.
func (c *Cache) Free() error {
	c.data = nil
	if err := c.memory.Free(); err != nil {
		return fmt.Errorf("kv cache: %w", err)
	}
	return nil
}

// lane is where element j of a row of 16 lies. Rows of bfloat16 hold elements j and j+8 side by
// side, in the halves of a 32-bit word: a shift and a mask widen eight of them each.
func lane(k compute.DType, j int) int {
	if k == compute.BFloat16 {
		return j&7<<1 | j>>3
	}
	return j
}

var errFreed = errors.New("attention: the kv cache has been freed")

// Write stores the keys and values of rows rows in the layer: row r is k[r*ld:] and v[r*ld:],
// Heads·Dim values each, and goes to slots[r], which is block·BlockSize + offset. A negative slot
// leaves the row out. A layer that keeps latents reads no v. It panics if a slot or the layer lies
// outside the cache or a slice is too short.
func (c *Cache) Write(layer, rows int, k, v []float32, ld int, slots []int32,
	scales compute.CacheScales) {
	if c.data == nil {
		panic(errFreed)
	}
	cfg := &c.cfg
	if layer < 0 || layer >= len(c.layers) {
		panic(fmt.Sprintf("attention: layer %d of a kv cache of %d", layer, len(c.layers)))
	}
	p := &c.layers[layer]
	var buf buffer
	for r := range rows {
		slot := int(slots[r])
		if slot < 0 {
			continue
		}
		block, off := slot/cfg.BlockSize, slot%cfg.BlockSize
		if block >= p.Blocks {
			panic(fmt.Sprintf("attention: slot %d lies in block %d of %d", slot, block, p.Blocks))
		}
		at := p.tileOffset(block, off)
		for h := range p.Heads {
			head := r*ld + h*p.Dim
			c.writeKey(p, c.data[at:at+p.tile], k[head:head+p.Dim], off%tile, &buf,
				scaleOf(scales.Keys, h))
			if p.Kind == compute.KeysValues {
				vt := at + p.values
				c.writeValue(p, c.data[vt:vt+p.tile], v[head:head+p.Dim], off%tile, &buf,
					scaleOf(scales.Values, h))
			}
			at += p.head
		}
	}
}

// scaleOf is the scale of a head, 0 where each vector has its own.
func scaleOf(scales []float32, head int) float32 {
	if scales == nil {
		return 0
	}
	return scales[head]
}

// cast views bytes as elements; tiles are aligned to more than an element.
func cast[E uint16 | float32](b []byte) []E {
	size := int(unsafe.Sizeof(*new(E)))
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/size)
}

// rounded is how many elements are rounded at a time, a multiple of tile.
const rounded = 128

// buffer has elements on their way to a tile.
type buffer struct {
	halves [rounded]uint16
	codes  [rounded]byte
}

// writeKey stores one position of one head in a transposed tile.
func (c *Cache) writeKey(p *place, t []byte, k []float32, pos int, buf *buffer, scale float32) {
	if c.cfg.DType == compute.Float32 {
		putColumn(cast[float32](t), k, pos)
		return
	}
	r := c.rounding(k, scale)
	for d := 0; d < len(k); d += rounded {
		n := min(rounded, len(k)-d)
		if c.cfg.DType.Scaled() {
			c.encode(buf.codes[:n], k[d:d+n], r)
			putColumn(t[d*tile:], buf.codes[:n], pos)
			continue
		}
		c.narrow(buf.halves[:n], k[d:d+n])
		putColumn(cast[uint16](t)[d*tile:], buf.halves[:n], lane(c.cfg.DType, pos))
	}
	p.putScale(t, pos, r)
}

// writeValue stores one position of one head in the slices of a tile.
func (c *Cache) writeValue(p *place, t []byte, v []float32, pos int, buf *buffer, scale float32) {
	switch c.cfg.DType {
	case compute.Float32:
		to := cast[float32](t)
		for d := 0; d < len(v); d += tile {
			copy(to[(d+pos)*tile:][:tile], v[d:])
		}
	case compute.BFloat16:
		c.ops.ToBF16Pairs(cast[uint16](t)[pos*tile:], tile*tile, v)
	case compute.Float16:
		to := cast[uint16](t)[pos*tile:]
		for d := 0; d < len(v); d += tile {
			c.ops.ToF16(to[d*tile:][:min(tile, len(v)-d)], v[d:])
		}
	default:
		r := c.rounding(v, scale)
		for d := 0; d < len(v); d += rounded {
			n := min(rounded, len(v)-d)
			c.encode(buf.codes[:n], v[d:d+n], r)
			for s := 0; s < n; s += tile {
				copy(t[(d+s+pos)*tile:][:tile], buf.codes[s:n])
			}
		}
		p.putScale(t, pos, r)
	}
}

func (c *Cache) narrow(dst []uint16, x []float32) {
	if c.cfg.DType == compute.BFloat16 {
		c.ops.ToBF16(dst, x)
		return
	}
	c.ops.ToF16(dst, x)
}

// putColumn puts one position's elements into column lane of a transposed tile.
func putColumn[E byte | uint16 | float32](t []E, k []E, lane int) {
	t = t[:len(k)*tile]
	for d, x := range k {
		t[d*tile+lane] = x
	}
}
