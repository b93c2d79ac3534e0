package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
)

// joined is matrices of as many input features and chunks, the output features of which lie beside
// each other. It has two at least.
type joined struct {
	d     *Device
	parts []*weight
	out   int
}

// Join makes one weight of weights of this device, the output features of which follow each other.
// They have as many input features, in as many chunks, and are not to be used, nor freed, by
// themselves any more.
func (d *Device) Join(weights ...compute.Weight) compute.Weight {
	j := &joined{d: d}
	for _, w := range weights {
		for _, m := range w.(packed).matrices() {
			j.parts = append(j.parts, &weight{d: d, Matrix: m})
			j.out += m.N()
		}
	}
	if len(j.parts) == 1 {
		return j.parts[0]
	}
	return j
}

// Out implements compute.Weight.
func (j *joined) Out() int { return j.out }

// In implements compute.Weight.
func (j *joined) In() int { return j.parts[0].In() }

// Product implements compute.Weight.
func (j *joined) Product(dst, x compute.View, bias compute.Memory) {
	at, b := 0, floats(bias)
	for _, w := range j.parts {
		var part []float32
		if b != nil {
			part = b[at : at+w.Out()]
		}
		to := dst.Columns(at, w.Out())
		w.Mul(j.d.pool, &j.d.gemm, view(to), to.Stride, view(x), x.Stride, x.Rows, part)
		at += w.Out()
	}
}

// ProductAdded implements compute.Weight.
func (j *joined) ProductAdded(dst, x compute.View) {
	at := 0
	for _, w := range j.parts {
		w.ProductAdded(dst.Columns(at, w.Out()), x)
		at += w.Out()
	}
}

// ProductChunks implements compute.Weight.
func (j *joined) ProductChunks(dst *compute.Tensor, x compute.View) {
	chunks := j.parts[0].Chunks()
	j.d.Resize(dst, chunks*x.Rows, j.out)
	at := 0
	for _, w := range j.parts {
		w.MulChunks(j.d.pool, &j.d.gemm, floats(dst.Memory)[at:], j.out, view(x), x.Stride, x.Rows)
		at += w.Out()
	}
}

// Bytes implements compute.Weight.
func (j *joined) Bytes() (n int) {
	for _, w := range j.parts {
		n += w.Bytes()
	}
	return n
}

// Free implements compute.Weight.
func (j *joined) Free() {
	for _, w := range j.parts {
		w.Free()
	}
}

// matrices implements packed.
func (j *joined) matrices() (list []*gemm.Matrix) {
	for _, w := range j.parts {
		list = append(list, w.Matrix)
	}
	return list
}
