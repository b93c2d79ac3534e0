package layers

import "github.com/eagleray/eagleray/internal/compute"

// Embedding is a table looked up by row, the same on every rank. It stays in the checkpoint's own
// memory where that is the device's: only rows in use become resident.
type Embedding struct {
	*rank
	table compute.Table
}

// Embedding makes the layer of a module whose weight is [rows][width].
func (l *Loader) Embedding(module string, rows, width int) *Embedding {
	return &Embedding{rank: l.rank, table: l.table(module+".weight", rows, width)}
}

// Lookup makes dst the table's rows of ids.
func (y *Embedding) Lookup(dst *Tensor, ids []int32) { y.table.Lookup(dst, ids, 0) }

// Add adds the table's rows of id + offset, for each of ids, to the rows of x.
func (y *Embedding) Add(x *Tensor, ids []int32, offset int) {
	y.table.Lookup(&y.normed, ids, offset)
	y.dev.Add(x, &y.normed)
}
