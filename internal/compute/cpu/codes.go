package cpu

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
)

// PackCodes makes a weight of stacked quantised rectangles.
func (d *Device) PackCodes(chunks int, sources ...compute.Codes) (compute.Weight, error) {
	plain := make([]compute.Source, len(sources))
	for i := range sources {
		c := &sources[i]
		if err := c.Check(); err != nil {
			return nil, fmt.Errorf("source %d: %w", i, err)
		}
		groups := c.Groups()
		data := make([]byte, 4*c.Rows*c.Cols)
		for r := range c.Rows {
			for col := range c.Cols {
				g := 0
				if c.Group > 0 {
					g = (c.Lead + col) / c.Group
				}
				v := c.Number(c.Code[r*c.Cols+col]) * c.Scale[r*groups+g]
				if c.Offset != nil {
					v += c.Offset[r*groups+g]
				}
				to := col
				if c.Order != nil {
					to = int(c.Order[col])
				}
				putFloat(data[4*(r*c.Cols+to):], v)
			}
		}
		plain[i] = compute.Source{DType: compute.Float32, Data: data, Rows: c.Rows, RowHi: c.Rows,
			Cols: c.Cols, ColHi: c.Cols}
	}
	return d.Pack(chunks, plain...)
}

func putFloat(dst []byte, v float32) {
	b := math.Float32bits(v)
	dst[0], dst[1], dst[2], dst[3] = byte(b), byte(b>>8), byte(b>>16), byte(b>>24)
}

// CodesBytes is the memory that PackCodes takes, at most; of the sources only types and shapes are
// looked at.
func (p Planner) CodesBytes(chunks int, sources ...compute.Codes) (n int64, err error) {
	list := make([]gemm.Source, len(sources))
	for i, c := range sources {
		if err := c.Check(); err != nil {
			return 0, fmt.Errorf("source %d: %w", i, err)
		}
		list[i] = gemm.Source{Kind: gemm.F32, Rows: c.Rows, RowHi: c.Rows, Cols: c.Cols,
			ColHi: c.Cols}
	}
	dequantised := gemm.F32
	if p.DType != compute.Float32 {
		dequantised = kind(p.DType)
	}
	return gemm.PackedBytes(dequantised, chunks, list...)
}
