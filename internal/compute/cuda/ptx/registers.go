package ptx

import (
	"math/bits"
	"slices"
)

// A kernel's text has a register for each value. Those whose lives do not overlap share one of the
// warp's, so that a warp's registers stay in the host's cache. That lanes run apart does no harm:
// each has its own part of each register, and runs the code by itself.

// block is instructions that run one after the other; next are the blocks that may follow.
type block struct {
	first, end int
	next       []int
	in, out    bitset // registers that are needed at its begin and end
}

type bitset []uint64

func (b bitset) has(i int) bool { return b[i>>6]>>(i&63)&1 != 0 }
func (b bitset) set(i int)      { b[i>>6] |= 1 << (i & 63) }
func (b bitset) clear(i int)    { b[i>>6] &^= 1 << (i & 63) }

// each calls f for all members.
func (b bitset) each(f func(i int)) {
	for w, v := range b {
		for ; v != 0; v &= v - 1 {
			f(w*64 + bits.TrailingZeros64(v))
		}
	}
}

// jumps are the instructions that an instruction may branch to.
func (d *decoder) jumps(i int) []int32 {
	switch {
	case d.notes[i].fix == nil:
		return nil
	case d.code[i].ext != nil:
		return d.code[i].ext.targets
	}
	return []int32{int32(d.code[i].imm)}
}

// blocks cuts the code where ways part or meet.
func (d *decoder) blocks() []block {
	n := len(d.code)
	starts := make([]bool, n+1)
	starts[0], starts[n] = true, true
	for i := range d.code {
		to := d.jumps(i)
		for _, t := range to {
			starts[t] = true
		}
		if to != nil || d.notes[i].ends {
			starts[i+1] = true
		}
	}
	number := make([]int, n+1)
	var all []block
	for i := range n {
		if starts[i] {
			all = append(all, block{first: i})
		}
		number[i] = len(all) - 1
		all[len(all)-1].end = i + 1
	}
	for k := range all {
		b := &all[k]
		for _, t := range d.jumps(b.end - 1) {
			b.next = append(b.next, number[t])
		}
		if !d.notes[b.end-1].ends && b.end < n {
			b.next = append(b.next, number[b.end])
		}
	}
	return all
}

// index is a virtual register's number among those of all banks.
func (d *decoder) index(r int32) int {
	at := int(r & regMask)
	for b := range bankOf(r) {
		at += int(d.count[b])
	}
	return at
}

// live finds the registers that are needed at the borders of blocks.
func (d *decoder) live(all []block) {
	total := 0
	for _, n := range d.count {
		total += int(n)
	}
	words := (total + 63) / 64
	for k := range all {
		all[k].in, all[k].out = make(bitset, words), make(bitset, words)
	}
	work := make([]int, len(all))
	queued := make([]bool, len(all))
	before := make([][]int, len(all))
	for k := range all {
		work[k], queued[k] = k, true // popped from the end: last blocks first
		for _, n := range all[k].next {
			before[n] = append(before[n], k)
		}
	}
	for len(work) > 0 {
		k := work[len(work)-1]
		work = work[:len(work)-1]
		queued[k] = false
		if !d.liveIn(all, k) {
			continue
		}
		for _, p := range before[k] {
			if !queued[p] {
				work, queued[p] = append(work, p), true
			}
		}
	}
}

// liveIn works out what a block needs, and says whether that has grown.
func (d *decoder) liveIn(all []block, k int) bool {
	b := &all[k]
	for _, n := range b.next {
		for w, v := range all[n].in {
			b.out[w] |= v
		}
	}
	need := slices.Clone(b.out)
	for i := b.end - 1; i >= b.first; i-- {
		if d.code[i].guard == none {
			for _, r := range d.notes[i].defs {
				need.clear(d.index(r))
			}
		}
		for _, r := range d.notes[i].uses {
			need.set(d.index(r))
		}
	}
	if slices.Equal(need, b.in) {
		return false
	}
	b.in = need
	return true
}

// life is from where to where a register is needed: instruction i reads at 2i and writes at 2i+1.
type life struct {
	reg        int32
	begin, end int
}

func (l *life) extend(at int) {
	l.begin, l.end = min(l.begin, at), max(l.end, at)
}

// lives are those of all registers that instructions write.
func (d *decoder) lives() []life {
	var all []life
	for b := range bank(banks) {
		for n := range d.count[b] {
			all = append(all, life{int32(b)<<bankShift | n, 1 << 30, -1})
		}
	}
	blocks := d.blocks()
	d.live(blocks)
	for k := range blocks {
		b := &blocks[k]
		b.in.each(func(r int) { all[r].extend(2 * b.first) })
		b.out.each(func(r int) { all[r].extend(2 * b.end) })
		for i := b.first; i < b.end; i++ {
			for _, r := range d.notes[i].uses {
				all[d.index(r)].extend(2 * i)
			}
			for _, r := range d.notes[i].defs {
				all[d.index(r)].extend(2*i + 1)
			}
		}
	}
	fixed := map[int32]bool{}
	for _, c := range d.kernel.constants {
		fixed[c.reg] = true
	}
	for _, s := range d.kernel.specials {
		fixed[s.reg] = true
	}
	all = slices.DeleteFunc(all, func(l life) bool { return l.end < 0 || fixed[l.reg] })
	slices.SortStableFunc(all, func(a, b life) int { return a.begin - b.begin })
	return all
}

// allocate maps virtual registers to those of a warp; constants and special registers follow the
// shared ones. It returns how many each bank has.
func (d *decoder) allocate() (places map[int32]int32, count [banks]int32) {
	places = map[int32]int32{}
	var free [banks][]int32
	var busy [banks][]life // their reg is the place
	for _, l := range d.lives() {
		b := bankOf(l.reg)
		busy[b] = slices.DeleteFunc(busy[b], func(o life) bool {
			if o.end >= l.begin {
				return false
			}
			free[b] = append(free[b], o.reg)
			return true
		})
		at := count[b]
		if n := len(free[b]); n > 0 {
			at = free[b][n-1]
			free[b] = free[b][:n-1]
		} else {
			count[b]++
		}
		places[l.reg] = at
		busy[b] = append(busy[b], life{at, l.begin, l.end})
	}
	d.kernel.poisoned32, d.kernel.poisoned64 = int(count[bank32]), int(count[bank64])
	fixed := func(r int32) {
		b := bankOf(r)
		places[r] = count[b]
		count[b]++
	}
	for _, c := range d.kernel.constants {
		fixed(c.reg)
	}
	for _, s := range d.kernel.specials {
		fixed(s.reg)
	}
	return places, count
}
