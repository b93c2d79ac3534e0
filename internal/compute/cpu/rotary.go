package cpu

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
)

// rotaryPage is the number of positions whose angles are computed together, when the first of them
// is used.
const rotaryPage = 64

// rotary keeps cosines and sines page by page as positions come into use, so that a long context
// limit costs nothing until it is reached.
type rotary struct {
	d           *Device
	frequencies []float32
	scale       func(position int) float64
	pages       [][]float32
}

// Rotary makes the angles of a rotary embedding of 2·len(frequencies) dimensions, whose cosines and
// sines are multiplied by the scale of their position.
func (d *Device) Rotary(frequencies []float32, scale func(position int) float64,
	maxPositions int) compute.Rotary {
	return &rotary{d: d, frequencies: frequencies, scale: scale,
		pages: make([][]float32, (maxPositions+rotaryPage)/rotaryPage+1)}
}

// RotaryBytes is the memory of the angles of all positions below a bound, dim of each.
func (p Planner) RotaryBytes(dim, positions int) int64 {
	pages := (int64(positions) + rotaryPage - 1) / rotaryPage
	return pages * (rotaryPage*4*int64(dim) + 24)
}

// Angles implements compute.Rotary.
func (y *rotary) Angles(dst *compute.Tensor, positions []int32) {
	y.d.Resize(dst, len(positions), 2*len(y.frequencies))
	for i, p := range positions {
		copy(dst.Row(i), y.row(int(p)))
	}
}

// row returns the cosines, then the sines, of a position. As in transformers the angle is a float32
// product and its cosine and sine are scaled by the attention factor.
func (y *rotary) row(pos int) []float32 {
	n, w := pos/rotaryPage, 2*len(y.frequencies)
	for n >= len(y.pages) {
		y.pages = append(y.pages, nil)
	}
	if y.pages[n] == nil {
		page := make([]float32, rotaryPage*w)
		for i := range rotaryPage {
			position := n*rotaryPage + i
			scale := y.scale(position)
			for j, f := range y.frequencies {
				angle := float64(float32(position) * f)
				page[i*w+j] = float32(math.Cos(angle) * scale)
				page[i*w+len(y.frequencies)+j] = float32(math.Sin(angle) * scale)
			}
		}
		y.pages[n] = page
	}
	i := pos % rotaryPage
	return y.pages[n][i*w : (i+1)*w]
}
