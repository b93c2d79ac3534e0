package cuda

import (
	"math"

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
	scale       float64
	table       scratch
	pages       int // there are
	page        []float32
}

// Rotary makes the angles of a rotary embedding of 2·len(frequencies) dimensions, whose cosines and
// sines are multiplied by scale.
func (d *Device) Rotary(frequencies []float32, scale float64, _ int) compute.Rotary {
	return &rotary{d: d, frequencies: frequencies, scale: scale}
}

// Angles implements compute.Rotary.
func (y *rotary) Angles(dst *compute.Tensor, positions []int32) {
	width := 2 * len(y.frequencies)
	y.d.Resize(dst, len(positions), width)
	most := int32(0)
	for _, p := range positions {
		most = max(most, p)
	}
	y.reach(int(most))
	n := len(positions) * width
	elements(y.d, kernels.Angles, n, kernels.AnglesParams{Table: y.table.p,
		Positions: y.d.integers(positions), Y: at(dst.Memory), Rows: int32(len(positions)),
		Width: int32(width)})
}

// reach computes the angles of positions up to one.
func (y *rotary) reach(position int) {
	need := position/rotaryPage + 1
	if need <= y.pages || y.d.err != nil {
		return
	}
	bytes := rotaryPage * 2 * len(y.frequencies) * 4
	if need*bytes > y.table.bytes {
		// Twice as many, so that a long text moves them seldom.
		y.table.grow(y.d, max(need, 2*y.pages)*bytes)
		y.pages = 0
	}
	for ; y.pages < need; y.pages++ {
		at := y.table.p + driver.Ptr(y.pages*bytes)
		y.d.check(y.d.upload(at, floatBytes(y.compute(y.pages))))
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
		row := y.page[i*2*half:]
		for j, f := range y.frequencies {
			angle := float64(float32(page*rotaryPage+i) * f)
			row[j] = float32(math.Cos(angle) * y.scale)
			row[half+j] = float32(math.Sin(angle) * y.scale)
		}
	}
	return y.page
}
