package cpu

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
)

// table is looked up where its source lies.
type table struct {
	d *Device
	s compute.Source
}

// Table is a table of the source's rows, which it keeps using.
func (d *Device) Table(s compute.Source) compute.Table { return &table{d: d, s: s} }

// Lookup implements compute.Table.
func (t *table) Lookup(dst *compute.Tensor, ids []int32, offset int) {
	t.d.Resize(dst, len(ids), t.s.Cols)
	for i, id := range ids {
		row := (int(id) + offset) * t.s.Cols * t.s.DType.Size()
		v, raw := dst.Row(i), unsafe.Pointer(&t.s.Data[row])
		switch t.s.DType {
		case compute.BFloat16:
			t.d.vec.FromBF16(v, unsafe.Slice((*uint16)(raw), len(v)))
		case compute.Float16:
			t.d.vec.FromF16(v, unsafe.Slice((*uint16)(raw), len(v)))
		default:
			copy(v, unsafe.Slice((*float32)(raw), len(v)))
		}
	}
}

// Free implements compute.Table: the rows are the source's.
func (t *table) Free() {}
