package cuda

import "github.com/eagleray/eagleray/internal/compute"

// bucket is how many rows a step is computed of that has so many, each of another sequence: one
// graph does for all of them. From 8 on it is a multiple of 8, as kernels of products have it.
func bucket(rows int) int {
	for _, few := range [...]int{1, 2, 4} {
		if rows <= few {
			return few
		}
	}
	return (rows + 7) / 8 * 8
}

// Pad returns the batch that a step is to compute in the place of b, valid until the next call: b
// itself, or with rows behind its own that fill its bucket, where that lets the step be a graph.
//
// Such a row is a copy of the one with the least to attend to, as a sequence of its own. It reads
// what is read anyway (keys, values, the weights of experts), writes no keys and no values, has no
// state and no adapter.
func (d *Device) Pad(b *compute.Batch) *compute.Batch {
	rows := b.Rows()
	fill := bucket(rows)
	if room := roomOf(b); room <= 2*fill { // else few steps are like this one
		fill = max(fill, room)
	}
	more := fill - rows
	groups := max(1, b.Groups)
	if rows == 0 || more == 0 || d.graphs.off || !d.enqueues() ||
		len(b.Tables) != groups*rows || len(b.Tokens) != rows || len(b.Slots) != groups*rows ||
		len(b.States) != rows || len(b.Types) > 0 || b.Split.Share > 0 {
		return b
	}
	least := 0
	for i, seq := range b.Seq {
		if int(seq) != i {
			return b
		}
		if b.Position[i] < b.Position[least] {
			least = i
		}
	}
	p := &d.padded
	add := func(to *[]int32, list []int32, value int32) {
		*to = append(*to, list...)
		for range more {
			*to = append(*to, value)
		}
	}
	extend := func(to *[]int32, list []int32, value int32) {
		*to = (*to)[:0]
		add(to, list, value)
	}
	extend(&p.Tokens, b.Tokens, b.Tokens[least])
	p.Groups, p.Slots, p.Tables = b.Groups, p.Slots[:0], p.Tables[:0]
	for g := range groups {
		add(&p.Slots, b.SlotsOf(g), -1)
		tables := b.TablesOf(g)
		p.Tables = append(p.Tables, tables...)
		for range more {
			p.Tables = append(p.Tables, tables[least])
		}
	}
	extend(&p.Position, b.Position, b.Position[least])
	extend(&p.States, b.States, -1)
	p.Adapters, p.Kept, p.Turn = b.Adapters, p.Kept[:0], b.Turn
	p.Split.Places = b.Split.Places
	if len(b.Kept) > 0 {
		extend(&p.Kept, b.Kept, -1)
	}
	d.filled = more
	p.Seq = append(p.Seq[:0], b.Seq...)
	for i := range more {
		p.Seq = append(p.Seq, int32(rows+i))
	}
	return p
}

// enqueues says that no host takes part in exchanges.
func (d *Device) enqueues() bool {
	for _, c := range d.comms {
		if !c.enqueues() {
			return false
		}
	}
	return true
}

// padding is how many of a batch's rows Pad has added.
func (d *Device) padding(b *compute.Batch) int {
	if b != &d.padded {
		return 0
	}
	return d.filled
}
