package attention

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
)

// Among lays out the keys and values of a step whose rows attend to each other and to nothing
// before: in a cache of one layer that every layer of every step overwrites, sequence after
// sequence, each from a tile of its own on. So they have the kernels, and the bits, of paged
// attention. Its memory grows to that of the largest step.
type Among struct {
	cache  *Cache
	batch  compute.Batch
	slots  []int32
	blocks []int32 // their own numbers, of which tables are parts
	tables [][]int32
}

// Lay returns the cache for the heads of a layer, the batch with the tables of it, and the slot of
// each row. Rows of a sequence lie side by side, from position 0 on; it panics where they do not,
// or when the system refuses the memory.
func (a *Among) Lay(b *compute.Batch, kvHeads, headDim int,
	dtype compute.DType) (*Cache, *compute.Batch, []int32) {
	a.slots, a.tables = grow(a.slots, b.Rows()), grow(a.tables, len(b.Tables))
	clear(a.tables)
	next := int32(0) // slot, where the next sequence begins
	for row := 0; row < b.Rows(); {
		first, seq := row, b.Seq[row]
		for ; row < b.Rows() && b.Seq[row] == seq; row++ {
			if b.Position[row] != int32(row-first) || a.tables[seq] != nil {
				panic(fmt.Sprintf("attention: row %d at position %d of sequence %d: it is not "+
					"whole and in order", row, b.Position[row], seq))
			}
			a.slots[row] = next + int32(row-first)
		}
		end := (a.slots[row-1] + tile) / tile
		for int32(len(a.blocks)) < end {
			a.blocks = append(a.blocks, int32(len(a.blocks)))
		}
		a.tables[seq] = a.blocks[next/tile : end]
		next = end * tile
	}
	a.fit(compute.CacheShape{Layers: 1, Blocks: max(1, int(next/tile)), BlockSize: tile,
		KVHeads: kvHeads, HeadDim: headDim, DType: dtype})
	a.batch = compute.Batch{Position: b.Position, Seq: b.Seq, Tables: a.tables}
	return a.cache, &a.batch, a.slots
}

// fit makes a cache of a shape, or of more blocks, unless there is one.
func (a *Among) fit(shape compute.CacheShape) {
	if a.cache != nil {
		have := a.cache.cfg
		have.Blocks = shape.Blocks
		if have == shape && shape.Blocks <= a.cache.cfg.Blocks {
			return
		}
	}
	err := a.Free()
	if err == nil {
		shape.Blocks += shape.Blocks / 4
		a.cache, err = NewCache(shape)
	}
	if err != nil {
		panic(err)
	}
}

// Free gives the memory back.
func (a *Among) Free() error {
	if a.cache == nil {
		return nil
	}
	c := a.cache
	a.cache = nil
	return c.Free()
}
