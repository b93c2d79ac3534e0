package cuda

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
)

// joined is weights of as many input features and chunks, the output features of which lie beside
// each other, that kernels cannot take for one. It has two at least.
type joined struct {
	d     *Device
	parts []*weight
	out   int
}

// Join makes one weight of several, the output features of which follow each other. Those are not
// to be used any more.
func (d *Device) Join(weights ...compute.Weight) compute.Weight {
	var parts []*weight
	for _, w := range weights {
		if j, ok := w.(*joined); ok {
			parts = append(parts, j.parts...)
		} else {
			parts = append(parts, w.(*weight))
		}
	}
	j := &joined{d: d}
	for len(parts) > 0 {
		n := 1
		for n < len(parts) && parts[0].codes == nil && parts[n].codes == nil {
			n++
		}
		one := d.merge(parts[:n])
		j.parts, j.out, parts = append(j.parts, one), j.out+one.out, parts[n:]
	}
	if len(j.parts) == 1 {
		return j.parts[0]
	}
	return j
}

// merge makes one weight of plain ones.
func (d *Device) merge(weights []*weight) *weight {
	one := weights[0]
	if len(weights) == 1 {
		return one
	}
	bytes := 0
	for _, w := range weights {
		bytes += w.bytes
	}
	all := d.newWeight(bytes)
	all.in, all.chunks, all.padded = one.in, one.chunks, one.padded
	to := all.data
	for _, w := range weights {
		if d.err == nil {
			d.check(d.ctx.Copy(to, w.data, uint64(w.bytes), d.stream))
		}
		all.out += w.out
		to += driver.Ptr(w.bytes)
		w.Free()
	}
	return all
}

// Out implements compute.Weight.
func (j *joined) Out() int { return j.out }

// In implements compute.Weight.
func (j *joined) In() int { return j.parts[0].in }

// Bytes implements compute.Weight.
func (j *joined) Bytes() (n int) {
	for _, w := range j.parts {
		n += w.bytes
	}
	return n
}

// Free implements compute.Weight.
func (j *joined) Free() {
	for _, w := range j.parts {
		w.Free()
	}
}

// Product implements compute.Weight.
func (j *joined) Product(dst, x compute.View, bias compute.Memory) {
	from, b := 0, at(bias)
	for _, w := range j.parts {
		w.multiply(dst.Columns(from, w.out), x, b, 0)
		if from += w.out; b != 0 {
			b += driver.Ptr(4 * w.out)
		}
	}
}

// ProductAdded implements compute.Weight.
func (j *joined) ProductAdded(dst, x compute.View) {
	from := 0
	for _, w := range j.parts {
		w.multiply(dst.Columns(from, w.out), x, 0, 1)
		from += w.out
	}
}

// ProductChunks implements compute.Weight.
func (j *joined) ProductChunks(dst *compute.Tensor, x compute.View) {
	j.d.Resize(dst, j.parts[0].chunks*x.Rows, j.out)
	to := at(dst.Memory)
	for _, w := range j.parts {
		w.launch(gemm{dst: to, ld: j.out, chunk: x.Rows * j.out, x: x, rows: x.Rows})
		to += driver.Ptr(4 * w.out)
	}
}
