package cpu

import "github.com/eagleray/eagleray/internal/compute"

// Over is a tensor of rows of v, in its memory.
func Over(v []float32, rows, width int) *compute.Tensor {
	return &compute.Tensor{Memory: &memory{data: v}, Rows: rows, Width: width}
}

// AddWeighted is addWeighted.
func (d *Device) AddWeighted(dst []float64, parts, weight []float32, at []int32, chunks, width int,
) {
	d.addWeighted(dst, parts, weight, at, chunks, width)
}

// CutFixed is cut, JoinFixed join.
func (d *Device) CutFixed(dst []float32, sums []float64, rows, width int) {
	d.cut(dst, sums, rows, width)
}

func (d *Device) JoinFixed(dst []float32, rows, width int) { d.join(dst, rows, width) }
