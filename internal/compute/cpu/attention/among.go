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
	a.fit(compute.CacheLayer{Heads: kvHeads, Dim: headDim}, max(1, int(next/tile)), dtype)
	a.batch = compute.Batch{Position: b.Position, Seq: b.Seq, Tables: a.tables}
	return a.cache, &a.batch, a.slots
}

// fit makes a cache of a layer with so many blocks, or more, unless there is one.
func (a *Among) fit(layer compute.CacheLayer, blocks int, dtype compute.DType) {
	if a.cache != nil {
		if have := &a.cache.cfg; have.Layers[0] == layer && have.DType == dtype &&
			blocks <= have.Blocks {
			return
		}
	}
	err := a.Free()
	if err == nil {
		a.cache, err = NewCache(compute.CacheShape{Layers: []compute.CacheLayer{layer},
			Blocks: blocks + blocks/4, BlockSize: tile, DType: dtype})
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
