package cpu

import "github.com/eagleray/eagleray/internal/compute"

// Over is a tensor of rows of v, in its memory.
func Over(v []float32, rows, width int) *compute.Tensor {
	return &compute.Tensor{Memory: &memory{data: v}, Rows: rows, Width: width}
}

// AddWeighted is addWeighted.
func (d *Device) AddWeighted(dst, parts, weight []float32, at []int32, chunks, width int) {
	d.addWeighted(dst, parts, weight, at, chunks, width)
}

// SumChunks is sumChunks.
func (d *Device) SumChunks(dst, parts []float32, rows, chunks, width int) {
	d.sumChunks(dst, parts, rows, chunks, width)
}
