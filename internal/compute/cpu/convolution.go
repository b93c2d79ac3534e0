package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// convolutionTask is a gated short convolution in flight. A chunk is one part of one sequence.
type convolutionTask struct {
	d        *Device
	args     *compute.ConvolutionArgs
	cache    *attention.Cache
	layer    int
	batch    *compute.Batch
	dst      []float32
	x        compute.View
	runs     runs
	at, rows int         // as those of recurrenceTask
	scratch  [][]float32 // of each thread: the input and the sum
}

func (t *convolutionTask) init(d *Device) {
	t.d, t.scratch = d, make([][]float32, d.pool.Threads())
}

// Convolve makes dst what a gated short convolution makes of the rows of x (see
// compute.ConvolutionArgs).
func (d *Device) Convolve(c compute.Cache, layer int, b *compute.Batch,
	args *compute.ConvolutionArgs, dst *compute.Tensor, x compute.View) {
	t := &d.convolution
	t.args, t.cache, t.layer, t.batch = args, c.(*attention.Cache), layer, b
	t.dst, t.x = floats(dst.Memory), x
	longest := t.runs.find(b)
	t.rows = max(1, pool.MostWork/(args.Kernel*args.Channels))
	for t.at = 0; t.at < longest; t.at += t.rows {
		d.pool.Run(t, (len(t.runs)-1)*args.Parts)
	}
	// Keep no reference to the caller's memory.
	t.args, t.cache, t.batch, t.dst, t.x = nil, nil, nil, nil, compute.View{}
}

// Do computes some rows of a part of a sequence.
func (t *convolutionTask) Do(chunk, thread int) {
	a := t.args
	run, part := chunk/a.Parts, chunk%a.Parts
	from, end := int(t.runs[run])+t.at, int(t.runs[run+1])
	to := min(end, from+t.rows)
	if from >= to {
		return
	}
	n, size := a.Channels, a.Floats()
	state := t.cache.State(t.layer, int(t.batch.States[t.batch.Seq[from]]))[part*size:][:size]
	if t.batch.Position[from] == 0 {
		clear(state)
	}
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
		if kept := t.batch.Kept; len(kept) > 0 && kept[r] >= 0 {
			copy(t.cache.State(t.layer, int(kept[r]))[part*size:][:size], state)
		}
	}
}
