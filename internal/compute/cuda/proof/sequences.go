package proof

import "github.com/eagleray/eagleray/internal/compute"

// blockSize is the number of positions of a block of the caches of cases.
const blockSize = 16

// sequence is a run of one sequence's rows: those from a position on are computed, the ones before
// are in the cache.
type sequence struct{ cached, rows int }

// layOut makes steps of sequences: before has the cached rows, step the ones to be computed. Blocks
// of a sequence descend, and so do states, so that nothing is where it would be by chance.
func layOut(list []sequence) (before, step *compute.Batch, blocks int) {
	before, step = new(compute.Batch), new(compute.Batch)
	for q, y := range list {
		n := (y.cached + y.rows + blockSize - 1) / blockSize
		var table []int32
		for i := range n {
			table = append(table, int32(blocks+n-1-i))
		}
		blocks += n
		for p := range y.cached + y.rows {
			b := before
			if p >= y.cached {
				b = step
			}
			addRow(b, q, p, table)
		}
		for _, b := range []*compute.Batch{before, step} {
			b.Tables = append(b.Tables, table)
			b.States = append(b.States, int32(len(list)-1-q))
		}
	}
	return before, step, blocks
}

func addRow(b *compute.Batch, seq, position int, table []int32) {
	b.Tokens = append(b.Tokens, 0)
	b.Position = append(b.Position, int32(position))
	b.Seq = append(b.Seq, int32(seq))
	b.Slots = append(b.Slots, table[position/blockSize]*blockSize+int32(position%blockSize))
}

// stepAfter is the rows of a step's sequences from the given ones on, and which of the step's rows
// those are.
func stepAfter(step *compute.Batch, from []int) (b *compute.Batch, rows []int) {
	b = &compute.Batch{Tables: step.Tables, States: step.States}
	for r, q := range step.Seq {
		if int(q) < len(from) && r >= from[q] {
			addRow(b, int(q), int(step.Position[r]), step.Tables[q])
			rows = append(rows, r)
		}
	}
	return b, rows
}

// picked are some rows of numbers.
func picked(v []float32, width int, rows []int) (some []float32) {
	for _, r := range rows {
		some = append(some, v[r*width:(r+1)*width]...)
	}
	return some
}

// history is what the rows of sequences left in a cache, in the order of their positions: of each
// row all heads' keys, and values, as the cache has them.
type history struct {
	keys, values [][][]float64
}

// add adds the rows of a batch: their keys, and values where they are not the keys.
func (h *history) add(b *compute.Batch, keys, values []float64) {
	rows := b.Rows()
	for len(h.keys) < len(b.Tables) {
		h.keys, h.values = append(h.keys, nil), append(h.values, nil)
	}
	for r, q := range b.Seq {
		n := len(keys) / rows
		k := keys[r*n : (r+1)*n]
		v := k
		if values != nil {
			v = values[r*n : (r+1)*n]
		}
		h.keys[q], h.values[q] = append(h.keys[q], k), append(h.values[q], v)
	}
}
