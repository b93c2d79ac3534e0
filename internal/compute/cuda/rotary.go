package cuda

import (
	"math"
	"math/bits"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// rotaryPage is the number of positions whose angles are computed together, when the first of them
// is used.
const rotaryPage = 1024

// rotary keeps cosines and sines in the device's memory, computed by the host: a kernel would need
// double precision for them.
type rotary struct {
	d           *Device
	frequencies []float32
	scale       func(position int) float64
	table       *weight // nil for none
	page        []float32
}

// rotaryPages is how many pages of angles there are once a step has had positions: a power of two,
// so that a long text moves them seldom. Steps of one shape have the same, as one that is done
// again computes none.
func rotaryPages(positions []int32) int {
	most := int32(0)
	for _, p := range positions {
		most = max(most, p)
	}
	return 1 << bits.Len(uint(most/rotaryPage))
}

// Rotary makes the angles of a rotary embedding of 2·len(frequencies) dimensions, whose cosines and
// sines are multiplied by the scale of their position.
func (d *Device) Rotary(frequencies []float32, scale func(position int) float64,
	_ int) compute.Rotary {
	return &rotary{d: d, frequencies: frequencies, scale: scale}
}

// Angles implements compute.Rotary.
func (y *rotary) Angles(dst *compute.Tensor, positions []int32) {
	width := 2 * len(y.frequencies)
	y.d.Resize(dst, len(positions), width)
	y.reach(rotaryPages(positions))
	n := len(positions) * width
	elements(y.d, kernels.Angles, n, kernels.AnglesParams{Table: y.table.data,
		Positions: y.d.integers(positions), Y: at(dst.Memory), Rows: int32(len(positions)),
		Width: int32(width)})
}

// reach computes the angles of so many pages at least.
func (y *rotary) reach(pages int) {
	bytes := rotaryPage * 2 * len(y.frequencies) * 4
	if y.table != nil {
		if pages*bytes <= y.table.bytes {
			return
		}
		y.table.Free()
	}
	y.table = y.d.newWeight(pages * bytes)
	for i := 0; i < pages && y.d.err == nil; i++ {
		at := y.table.data + driver.Ptr(i*bytes)
		y.d.check(y.d.upload(at, floatBytes(y.compute(i))))
	}
}

// compute is the cosines, then the sines, of a page's positions. As in transformers the angle is a
// float32 product and its cosine and sine are scaled by the attention factor.
func (y *rotary) compute(page int) []float32 {
	half := len(y.frequencies)
	if y.page == nil {
		y.page = make([]float32, rotaryPage*2*half)
	}
	for i := range rotaryPage {
		row, position := y.page[i*2*half:], page*rotaryPage+i
		scale := y.scale(position)
		for j, f := range y.frequencies {
			angle := float64(float32(position) * f)
			row[j] = float32(math.Cos(angle) * scale)
			row[half+j] = float32(math.Sin(angle) * scale)
		}
	}
	return y.page
}
