package cuda

import (
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// pending is a sum that waits to be made: of the chunks of a product, or of what is added to the
// residual stream. A norm of it, which commonly follows, does so in one launch with its own work.
// Whatever else is asked of the device makes it first.
type pending struct {
	x                   *memory // which gets the sums, all of it; nil for nothing pending
	parts               driver.Ptr
	chunks, rows, width int
	add                 int32 // to what x has
}

// flush makes the sum that is pending.
func (d *Device) flush() {
	p := d.pending
	if p.x == nil {
		return
	}
	d.pending = pending{}
	elements(d, kernels.SumChunks, p.rows*p.width, kernels.SumChunksParams{Parts: p.parts,
		Y: p.x.values, Chunks: int32(p.chunks), Rows: int32(p.rows), Width: int32(p.width),
		LDY: int32(p.width), Add: p.add})
}

// addNorm makes the sum that is pending and normalises it; false says that none is, of x.
func (d *Device) addNorm(x, y *memory, weight driver.Ptr, eps float32) bool {
	p := d.pending
	if p.x == nil || p.x != x {
		return false
	}
	d.pending = pending{}
	launch(d, kernels.AddNorm, [3]uint32{uint32(p.rows), 1, 1}, [3]uint32{rowBlock, 1, 1}, 0,
		kernels.AddNormParams{Parts: p.parts, X: x.values, Weight: weight, Y: y.values,
			Half: y.half(true), Chunks: int32(p.chunks), Rows: int32(p.rows),
			Width: int32(p.width), LDX: int32(p.width), Add: p.add, Type: d.half(), Eps: eps})
	return true
}
