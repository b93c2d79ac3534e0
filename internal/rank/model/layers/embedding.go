package layers

import "github.com/eagleray/eagleray/internal/rank/model/checkpoint"

// Embedding is a table looked up by row, the same on every rank. It stays in the checkpoint's own
// memory: only rows in use become resident.
type Embedding struct {
	*rank
	table checkpoint.Tensor
	width int
}

// Embedding makes the layer of a module whose weight is [rows][width].
func (l *Loader) Embedding(module string, rows, width int) *Embedding {
	return &Embedding{rank: l.rank, table: l.table(module+".weight", rows, width), width: width}
}

// Lookup makes dst the table's rows of ids.
func (y *Embedding) Lookup(dst *Tensor, ids []int32) {
	dst.Resize(len(ids), y.width)
	for i, id := range ids {
		y.lookup(dst.Row(i), int(id))
	}
}

// Add adds the table's rows of id + offset, for each of ids, to the rows of x.
func (y *Embedding) Add(x *Tensor, ids []int32, offset int) {
	rows := &y.normed
	rows.Resize(len(ids), y.width)
	for i, id := range ids {
		y.lookup(rows.Row(i), int(id)+offset)
	}
	y.dev.Add(x.data, rows.data, x.rows, x.width)
}

func (y *Embedding) lookup(dst []float32, id int) {
	// The dtype was checked when the table was opened, so this cannot fail.
	_ = y.toFloat32(dst, y.table, id*y.width)
}
