package cpu

import (
	"errors"
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
)

// PackCodes makes a weight of stacked quantised rectangles. Those that lie beside each other and
// are alike are one matrix. Unless models run in float32, inputs of integers are rounded to int8.
func (d *Device) PackCodes(chunks int, sources ...compute.Codes) (compute.Weight, error) {
	opt := gemm.Options{Chunks: chunks, ISA: d.isa, Rounded: d.dtype != compute.Float32,
		Spare: &d.spare}
	var parts []compute.Weight
	for first, some := range compute.Alike(sources) {
		m, err := gemm.PackCodes(d.pool, opt, some...)
		if err != nil {
			for _, w := range parts {
				w.Free()
			}
			if bad := (*gemm.NotFinite)(nil); errors.As(err, &bad) {
				return nil, &compute.NotFinite{Source: first + bad.Source, Err: bad}
			}
			return nil, err
		}
		parts = append(parts, &weight{d: d, Matrix: m})
	}
	return d.Join(parts...), nil
}

// CodesBytes is the memory that PackCodes takes, at most; of the sources only types and shapes are
// looked at.
func (p Planner) CodesBytes(chunks int, sources ...compute.Codes) (n int64, err error) {
	for first, some := range compute.Alike(sources) {
		part, err := gemm.CodesBytes(chunks, p.DType != compute.Float32, some...)
		if err != nil {
			return 0, fmt.Errorf("source %d: %w", first, err)
		}
		n += part
	}
	return n, nil
}
