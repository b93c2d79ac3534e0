package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
)

// convolutionTask is a gated short convolution in flight.
type convolutionTask struct {
	d    *Device
	args *compute.ConvolutionArgs
	stateRows
	dst     []float32
	x       compute.View
	scratch [][]float32 // of each thread: the input and the sum
}

func (t *convolutionTask) init(d *Device) {
	t.d, t.scratch = d, make([][]float32, d.pool.Threads())
}

// Convolve makes dst what a gated short convolution makes of the rows of x (see
// compute.ConvolutionArgs).
func (d *Device) Convolve(c compute.Cache, layer int, b *compute.Batch,
	args *compute.ConvolutionArgs, dst *compute.Tensor, x compute.View) {
	t := &d.convolution
	t.args, t.dst, t.x = args, floats(dst.Memory), x
	t.run(d.pool, t, stateRows{cache: c.(*attention.Cache), layer: layer, batch: b,
		parts: args.Parts, floats: args.Floats()}, args.Kernel*args.Channels)
	// Keep no reference to the caller's memory.
	t.args, t.dst, t.x = nil, nil, compute.View{}
}

// Do computes some rows of a part of a sequence.
func (t *convolutionTask) Do(chunk, thread int) {
	part, from, to := t.chunk(chunk)
	if from >= to {
		return
	}
	a, n, state := t.args, t.args.Channels, t.state(part, from)
	t.scratch[thread] = grow(t.scratch[thread], 2*n)
	s, v := t.scratch[thread], t.d.vec
	input, sum := s[:n], s[n:]
	weights := floats(a.Weights)[part*a.Kernel*n:][:a.Kernel*n]
	var bias []float32
	if a.Bias != nil {
		bias = floats(a.Bias)[part*n:]
	}
	x := view(t.x)[part*n:]
	for r := from; r < to; r++ {
		row := x[r*t.x.Stride:]
		b, c, u := row[:n], row[a.Out():][:n], row[2*a.Out():][:n]
		copy(input, b)
		v.Mul(input, u)
		convolve(v, sum, weights, bias, state, input)
		v.Mul(sum, c)
		copy(t.dst[r*a.Out()+part*n:][:n], sum)
		t.copyOut(part, r, state)
	}
}
