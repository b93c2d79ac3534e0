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
	"math"
	"math/bits"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
	"github.com/eagleray/eagleray/internal/sys/offheap"
)

// tile is the number of positions, and of head dimensions, that lie together.
const tile = compute.CacheTile

// Cache holds keys and values in blocks of positions, outside the Go heap. Its memory is backed
// page by page when it is first written. It has small pages: with huge ones a few short requests
// take 2 MiB in each layer (the built-in model 6 MB more after nine requests), although long
// contexts are read some 15 % faster.
//
// Each block of each layer holds, for K and then for V, one tile of 16 positions after the other of
// the first head, then of the next. A tile of K is transposed, [dimension][16 positions]; a tile of
// V is cut into slices of 16 dimensions, [slice][16 positions][16 dimensions]. So both kernels read
// rows of 16 elements in the order of memory. The elements of a row are permuted by lane.
//
// Concurrent calls of Write must write different slots, and none may run beside an Attention.Run
// that reads them.
type Cache struct {
	cfg    compute.CacheShape
	ops    *vec.Ops
	memory offheap.Memory
	data   []byte // the memory's, nil after Free

	// In bytes.
	tileBytes  int // a tile of K or of V
	headBytes  int // the tiles of one head in a block
	valueBytes int // from the K of a head to its V
	blockBytes int // one block of one layer
	layerBytes int
}

// NewCache maps the memory of a cache. An error names what is wrong with the configuration, or that
// the system refused the mapping.
func NewCache(cfg compute.CacheShape) (*Cache, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	size := uint64(1)
	for _, n := range []int{cfg.Layers, cfg.Blocks, 2, cfg.KVHeads, cfg.BlockSize,
		cfg.PaddedDim(), cfg.DType.Size()} {
		var over uint64
		if over, size = bits.Mul64(size, uint64(n)); over != 0 || size > math.MaxInt {
			return nil, fmt.Errorf("kv cache of %+v does not fit the address space", cfg)
		}
	}
	memory, err := offheap.Map(int(size), offheap.HugePages)
	if err != nil {
		return nil, fmt.Errorf("kv cache: %w", err)
	}
	c := &Cache{cfg: cfg, ops: vec.New(isa.Best()), memory: memory, data: memory.Bytes()}
	c.tileBytes = tile * cfg.PaddedDim() * cfg.DType.Size()
	c.headBytes = c.tileBytes * (cfg.BlockSize / tile)
	c.valueBytes = c.headBytes * cfg.KVHeads
	c.blockBytes = 2 * c.valueBytes
	c.layerBytes = c.blockBytes * cfg.Blocks
	return c, nil
}

// Config returns the shape the cache was made with.
func (c *Cache) Config() compute.CacheShape { return c.cfg }

// Heads is the memory of the keys (values: false) or values of some heads in a block of a layer,
// from the first head to before the last, in the order of the heads. It panics outside of the
// cache.
func (c *Cache) Heads(layer, block int, values bool, from, to int) []byte {
	if c.data == nil {
		panic(errFreed)
	}
	cfg := &c.cfg
	if layer < 0 || layer >= cfg.Layers || block < 0 || block >= cfg.Blocks || from < 0 ||
		from > to || to > cfg.KVHeads {
		panic(fmt.Sprintf("attention: heads %d to %d in layer %d, block %d of a kv cache of %+v",
			from, to, layer, block, *cfg))
	}
	at := c.tileOffset(layer, block, 0)
	if values {
		at += c.valueBytes
	}
	return c.data[at+from*c.headBytes : at+to*c.headBytes]
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

// tileOffset is the offset of the K tile that position offset off of a block belongs to, for head
// 0.
func (c *Cache) tileOffset(layer, block, off int) int {
	return layer*c.layerBytes + block*c.blockBytes + off/tile*c.tileBytes
}

// Write stores the keys and values of rows rows in the layer: row r is k[r*ld:] and v[r*ld:],
// KVHeads·HeadDim values each, and goes to slots[r], which is block·BlockSize + offset. A negative
// slot leaves the row out. It panics if a slot or the layer lies outside the cache or a slice is
// too short.
func (c *Cache) Write(layer, rows int, k, v []float32, ld int, slots []int32) {
	if c.data == nil {
		panic(errFreed)
	}
	cfg := &c.cfg
	if layer < 0 || layer >= cfg.Layers {
		panic(fmt.Sprintf("attention: layer %d of a kv cache of %d", layer, cfg.Layers))
	}
	width := cfg.KVHeads * cfg.HeadDim
	for r := range rows {
		slot := int(slots[r])
		if slot < 0 {
			continue
		}
		block, off := slot/cfg.BlockSize, slot%cfg.BlockSize
		if block >= cfg.Blocks {
			panic(fmt.Sprintf("attention: slot %d lies in block %d of %d", slot, block, cfg.Blocks))
		}
		at := c.tileOffset(layer, block, off)
		kr, vr := k[r*ld:r*ld+width], v[r*ld:r*ld+width]
		for h := range cfg.KVHeads {
			kt := c.data[at : at+c.tileBytes]
			vt := c.data[at+c.valueBytes : at+c.valueBytes+c.tileBytes]
			kh, vh := kr[h*cfg.HeadDim:(h+1)*cfg.HeadDim], vr[h*cfg.HeadDim:(h+1)*cfg.HeadDim]
			if cfg.DType == compute.Float32 {
				writeKey(cast[float32](kt), kh, off%tile)
				writeValue32(cast[float32](vt), vh, off%tile)
			} else {
				c.write16(cast[uint16](kt), cast[uint16](vt), kh, vh, off%tile)
			}
			at += c.headBytes
		}
	}
}

// cast views bytes as elements; tiles are aligned to more than an element.
func cast[E uint16 | float32](b []byte) []E {
	size := int(unsafe.Sizeof(*new(E)))
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/size)
}

// write16 rounds one position of one head piece by piece and stores it.
func (c *Cache) write16(kt, vt []uint16, k, v []float32, pos int) {
	kind := c.cfg.DType
	column := lane(kind, pos)
	var buf [128]uint16
	for d := 0; d < len(k); d += len(buf) {
		n := min(len(buf), len(k)-d)
		c.narrow(buf[:n], k[d:d+n])
		writeKey(kt[d*tile:], buf[:n], column)
		c.narrow(buf[:n], v[d:d+n])
		for j := 0; j < n; j += tile {
			row := vt[(d+j)*tile+pos*tile:]
			row = row[:tile]
			if kind == compute.Float16 {
				copy(row, buf[j:min(j+tile, n)])
				continue
			}
			for i, x := range buf[j:min(j+tile, n)] {
				row[i&7<<1|i>>3] = x
			}
		}
	}
}

func (c *Cache) narrow(dst []uint16, x []float32) {
	if c.cfg.DType == compute.BFloat16 {
		c.ops.ToBF16(dst, x)
		return
	}
	c.ops.ToF16(dst, x)
}

// writeKey puts one position's elements into column lane of a transposed tile.
func writeKey[E uint16 | float32](t []E, k []E, lane int) {
	t = t[:len(k)*tile]
	for d, x := range k {
		t[d*tile+lane] = x
	}
}

func writeValue32(t, v []float32, pos int) {
	for d := 0; d < len(v); d += tile {
		copy(t[d*tile+pos*tile:d*tile+pos*tile+tile], v[d:])
	}
}
