package runner

import "fmt"

// caching is how a batch finds what the layers of one group keep (compute.Batch.Groups).
type caching struct {
	// factor is the group's of Options.Factors.
	factor int32
	slots  []int32   // of the batch's rows
	tables [][]int32 // of its sequences
	// own are the tables of slots, where they are not those that plans say: those list a block of
	// each group in turn, and of the cache, not of a layer.
	own [][]int32
}

func newCaching(factors []int, slots int) []caching {
	if len(factors) < 2 {
		return []caching{{factor: 1}}
	}
	all := make([]caching, len(factors))
	for g, f := range factors {
		all[g] = caching{factor: int32(f), own: make([][]int32, slots)}
	}
	return all
}

// tableOf is the group's table of a slot.
func (c *caching) tableOf(id uint32, s *slot) []int32 {
	if c.own == nil {
		return s.table
	}
	return c.own[id]
}

// extendTable appends blocks to the table of a slot.
func (r *Runner) extendTable(id uint32, blocks []uint32) error {
	s, groups := &r.slots[id], len(r.caches)
	if len(blocks)%groups > 0 {
		return fmt.Errorf("slot %d is given %d blocks, of %d groups of layers", id, len(blocks),
			groups)
	}
	for i, b := range blocks {
		block := int32(b)
		s.table = append(s.table, block)
		if c := &r.caches[i%groups]; c.own != nil {
			if block >= 0 {
				block *= c.factor
			}
			c.own[id] = append(c.own[id], block)
		}
	}
	return nil
}

// cutTable leaves a slot the blocks of so many parts of BlockSize positions at most.
func (r *Runner) cutTable(id uint32, parts int) {
	s := &r.slots[id]
	s.table = s.table[:min(len(s.table), parts*len(r.caches))]
	for g := range r.caches {
		if own := r.caches[g].own; own != nil {
			own[id] = own[id][:min(len(own[id]), parts)]
		}
	}
}

// reach is how many positions a slot has blocks of.
func (r *Runner) reach(s *slot) int { return len(s.table) / len(r.caches) * r.opt.BlockSize }

// slotOf is where a position of a request is kept by the layers of a group.
func (r *Runner) slotOf(s *slot, pos, group int) (int32, error) {
	size, c := r.opt.BlockSize, &r.caches[group]
	block := s.table[pos/size*len(r.caches)+group]
	if block < 0 || int(block) >= r.opt.Blocks {
		return 0, fmt.Errorf("block %d of %d", block, r.opt.Blocks)
	}
	return block*c.factor*int32(size) + int32(pos%size), nil
}
