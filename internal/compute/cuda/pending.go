package cuda

import (
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// pending is a sum that waits to be made: of the chunks of a product, of the parts that ranks have,
// and with what is added to the residual stream. A norm of it, which commonly follows, does so in
// one launch with its own work. Whatever else is asked of the device makes it first.
type pending struct {
	sums, onto          *memory // which get the sums, and have them added; one of them is not nil
	parts               driver.Ptr
	chunks, rows, width int
	cut                 bool  // the parts are the high ones of all rows, then the low ones
	ranks               *Comm // whose parts are sums' too; nil for this device's alone
}

// taken is the sum that is pending, which is the caller's to make.
func (d *Device) taken() pending {
	p := d.pending
	d.pending = pending{}
	return p
}

// flush makes the sum that is pending.
func (d *Device) flush() {
	p := d.taken()
	if p.ranks != nil {
		p.ranks.launch(kernels.SumRanks, p.ofRanks(), p.rows*p.width)
		return
	}
	if p.sums != nil {
		d.sumChunks(&p, p.sums, 0)
	}
	if p.onto != nil {
		d.sumChunks(&p, p.onto, 1)
	}
}

// ofRanks are the parameters of a sum over ranks.
func (p *pending) ofRanks() kernels.RanksParams {
	return kernels.RanksParams{Parts: p.parts, Y: p.sums.values, X: p.onto.at(),
		Chunks: int32(p.chunks), Cut: flag(p.cut)}
}

// flag is how kernels take a condition.
func flag(set bool) int32 {
	if set {
		return 1
	}
	return 0
}

// sumChunks adds the chunks of a sum, to what is there with add.
func (d *Device) sumChunks(p *pending, to *memory, add int32) {
	elements(d, kernels.SumChunks, p.rows*p.width, kernels.SumChunksParams{Parts: p.parts,
		Y: to.values, Chunks: int32(p.chunks), Rows: int32(p.rows), Width: int32(p.width),
		LDY: int32(p.width), Add: add, Cut: flag(p.cut)})
}

// addLater has x added to sum, of the same shape, with the sum that x waits for.
func (d *Device) addLater(sum, x *memory, rows, width int) {
	if p := &d.pending; p.sums == x && p.onto == nil {
		p.onto = sum
		return
	}
	d.flush()
	d.pending = pending{onto: sum, parts: x.values, chunks: 1, rows: rows, width: width}
}

// addNorm makes the sum that is pending and normalises it; false says that none is, of x.
func (d *Device) addNorm(x, y *memory, weight driver.Ptr, eps float32) bool {
	if p := &d.pending; x != p.onto && (x != p.sums || p.onto != nil) {
		return false
	}
	if c := d.pending.ranks; c != nil {
		return c.norm(y, weight, eps)
	}
	p := d.taken()
	launch(d, kernels.AddNorm, [3]uint32{uint32(p.rows), 1, 1}, normBlock(p.width), 0,
		kernels.AddNormParams{Parts: p.parts, Sums: p.sums.at(), X: p.onto.at(), Weight: weight,
			Y: y.values, Half: y.half(true), Chunks: int32(p.chunks), Rows: int32(p.rows),
			Width: int32(p.width), Type: d.half(), Eps: eps})
	return true
}
