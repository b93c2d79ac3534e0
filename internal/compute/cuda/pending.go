package cuda

import (
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// pending is a product whose chunks are computed and wait to be added to the residual stream: a
// norm of that, which commonly follows, does so in one launch with its own work. Whatever else is
// asked of the device adds them first.
type pending struct {
	x                   *memory // what they are added to, all of it; nil for nothing pending
	parts               driver.Ptr
	chunks, rows, width int
}

// flush adds what is pending.
func (d *Device) flush() {
	p := d.pending
	if p.x == nil {
		return
	}
	d.pending = pending{}
	elements(d, kernels.SumChunks, p.rows*p.width, kernels.SumChunksParams{Parts: p.parts,
		Y: p.x.values, Chunks: int32(p.chunks), Rows: int32(p.rows), Width: int32(p.width),
		LDY: int32(p.width), Add: 1})
}

// addNorm adds what is pending to x and normalises that; false says that nothing is, of x.
func (d *Device) addNorm(x, y *memory, weight driver.Ptr, eps float32) bool {
	p := d.pending
	if p.x == nil || p.x != x {
		return false
	}
	d.pending = pending{}
	launch(d, kernels.AddNorm, [3]uint32{uint32(p.rows), 1, 1}, [3]uint32{rowBlock, 1, 1}, 0,
		kernels.AddNormParams{Parts: p.parts, X: x.values, Weight: weight, Y: y.values,
			Half: y.half(true), Chunks: int32(p.chunks), Rows: int32(p.rows),
			Width: int32(p.width), LDX: int32(p.width), Type: d.half(), Eps: eps})
	return true
}
