package ptx

import "slices"

// Lanes of a warp that run apart meet again because those that are furthest behind in the code run
// first. That wants an order of the code in which a way never leads back but to the head of a loop,
// and a loop's blocks stand together: else lanes that have left a loop would run on before the
// others do. Compilers nearly always write such an order; where a text has none, the blocks are
// sorted.

// order sorts the blocks of the code if it has to.
func (d *decoder) order() {
	all := d.blocks()
	f := &flow{blocks: all, state: make([]uint8, len(all))}
	f.findLoops()
	if f.ordered() {
		return
	}
	d.rewrite(all, f.sorted())
}

// flow finds the loops of a graph of blocks.
type flow struct {
	blocks []block
	loops  []bitset // members of each
	state  []uint8  // of a walk: 1 on the way, 2 done
}

// step is a block on the way of a walk, and which of its successors is next.
type step struct{ at, next int }

// findLoops collects, for each way back to a block, what lies between.
func (f *flow) findLoops() {
	before := make([][]int, len(f.blocks))
	for k := range f.blocks {
		for _, n := range f.blocks[k].next {
			before[n] = append(before[n], k)
		}
	}
	f.state[0] = 1
	for way := []step{{0, 0}}; len(way) > 0; {
		s := &way[len(way)-1]
		next := f.blocks[s.at].next
		if s.next == len(next) {
			f.state[s.at] = 2
			way = way[:len(way)-1]
			continue
		}
		to := next[s.next]
		s.next++
		switch f.state[to] {
		case 0:
			f.state[to] = 1
			way = append(way, step{to, 0})
		case 1:
			f.loops = append(f.loops, f.loop(before, s.at, to))
		}
	}
}

// loop is all blocks from which the end of a loop is reached without its head, and the head.
func (f *flow) loop(before [][]int, end, head int) bitset {
	in := make(bitset, (len(f.blocks)+63)/64)
	in.set(head)
	for work := []int{end}; len(work) > 0; {
		k := work[len(work)-1]
		work = work[:len(work)-1]
		if in.has(k) {
			continue
		}
		in.set(k)
		work = append(work, before[k]...)
	}
	return in
}

// reached says whether a block can be run at all.
func (f *flow) reached(k int) bool { return f.state[k] == 2 }

// ordered says whether the blocks stand in an order as described above.
func (f *flow) ordered() bool {
	for k := range f.blocks {
		for _, n := range f.blocks[k].next {
			if n <= k && f.reached(k) && !f.shared(k, n) {
				return false
			}
		}
	}
	for _, l := range f.loops {
		first, last := -1, 0
		l.each(func(k int) {
			if first < 0 {
				first = k
			}
			last = k
		})
		for k := first; k <= last; k++ {
			if !l.has(k) && f.reached(k) {
				return false
			}
		}
	}
	return true
}

// shared says whether two blocks are in a loop together.
func (f *flow) shared(a, b int) bool {
	return slices.ContainsFunc(f.loops, func(l bitset) bool { return l.has(a) && l.has(b) })
}

// leaves is how many loops a way leaves.
func (f *flow) leaves(from, to int) (n int) {
	for _, l := range f.loops {
		if l.has(from) && !l.has(to) {
			n++
		}
	}
	return n
}

// sorted is the reverse of the order in which a walk is done with blocks; ways out of loops are
// walked first, and so come last.
func (f *flow) sorted() []int {
	clear(f.state)
	for k := range f.blocks {
		b := &f.blocks[k]
		b.next = slices.Clone(b.next)
		slices.SortStableFunc(b.next, func(x, y int) int { return f.leaves(k, y) - f.leaves(k, x) })
	}
	var done []int
	f.state[0] = 1
	for way := []step{{0, 0}}; len(way) > 0; {
		s := &way[len(way)-1]
		if next := f.blocks[s.at].next; s.next < len(next) {
			to := next[s.next]
			s.next++
			if f.state[to] == 0 {
				f.state[to] = 1
				way = append(way, step{to, 0})
			}
			continue
		}
		done = append(done, s.at)
		way = way[:len(way)-1]
	}
	slices.Reverse(done)
	return done
}

// rewrite writes the code's blocks in another order, with branches where one fell through to what
// is elsewhere now.
func (d *decoder) rewrite(all []block, order []int) {
	code, notes := d.code, d.notes
	d.code, d.notes = nil, nil
	moved := map[int32]int32{}
	for i, k := range order {
		b := &all[k]
		moved[int32(b.first)] = int32(len(d.code))
		d.code = append(d.code, code[b.first:b.end]...)
		d.notes = append(d.notes, notes[b.first:b.end]...)
		if notes[b.end-1].ends || i+1 < len(order) && all[order[i+1]].first == b.end {
			continue
		}
		d.code = append(d.code, inst{exec: execBranch, d: none, a: none, b: none, c: none,
			guard: none, imm: uint64(b.end)})
		d.notes = append(d.notes, note{st: notes[b.end-1].st, ends: true, fix: &fixup{}})
	}
	for i := range d.code {
		if d.notes[i].fix == nil {
			continue
		}
		if d.code[i].ext == nil {
			d.code[i].imm = uint64(moved[int32(d.code[i].imm)])
			continue
		}
		for j, t := range d.code[i].ext.targets {
			d.code[i].ext.targets[j] = moved[t]
		}
	}
}
