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
	for first, end := range alike(sources) {
		m, err := gemm.PackCodes(d.pool, opt, sources[first:end]...)
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
	for first, end := range alike(sources) {
		part, err := gemm.CodesBytes(chunks, p.DType != compute.Float32,
			sources[first:end]...)
		if err != nil {
			return 0, fmt.Errorf("source %d: %w", first, err)
		}
		n += part
	}
	return n, nil
}

// alike visits the sources by those that one matrix can be made of.
func alike(sources []compute.Codes) func(yield func(first, end int) bool) {
	return func(yield func(first, end int) bool) {
		for first := 0; first < len(sources); {
			end := first + 1
			for end < len(sources) && gemm.Alike(&sources[first], &sources[end]) {
				end++
			}
			if !yield(first, end) {
				return
			}
			first = end
		}
	}
}
