package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/attention"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
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
	at, rows int         // as those of deltaTask
	scratch  [][]float32 // of each thread: the input, the sum and a product
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
	t.scratch[thread] = grow(t.scratch[thread], 3*n)
	s, v := t.scratch[thread], t.d.vec
	input, sum, product := s[:n], s[n:2*n], s[2*n:]
	weights := floats(a.Weights)[part*a.Kernel*n:][:a.Kernel*n]
	x := view(t.x)[part*n:]
	for r := from; r < to; r++ {
		row := x[r*t.x.Stride:]
		b, c, u := row[:n], row[a.Out():][:n], row[2*a.Out():][:n]
		copy(input, b)
		v.Mul(input, u)
		convolve(v, sum, product, weights, state, input)
		if a.Bias != nil {
			v.Add(sum, sum, floats(a.Bias)[part*n:][:n])
		}
		v.Mul(sum, c)
		copy(t.dst[r*a.Out()+part*n:][:n], sum)
		if kept := t.batch.Kept; len(kept) > 0 && kept[r] >= 0 {
			copy(t.cache.State(t.layer, int(kept[r]))[part*size:][:size], state)
		}
	}
}

// convolve makes sum the sum of the inputs of a window, the earliest first, and of the row's, each
// multiplied by the weights of its place, and moves the window on. It computes in product.
func convolve(v *vec.Ops, sum, product, weights, window, row []float32) {
	n := len(sum)
	clear(sum)
	for at := 0; at <= len(window); at += n {
		copy(product, weights[at:at+n])
		if at < len(window) {
			v.Mul(product, window[at:at+n])
		} else {
			v.Mul(product, row)
		}
		v.Add(sum, sum, product)
	}
	if last := len(window) - n; last >= 0 {
		copy(window, window[n:])
		copy(window[last:], row)
	}
}

// runs are where the sequences begin among the rows of a batch, and their end.
type runs []int32

// find makes them those of a batch, and returns how many rows the longest has.
func (r *runs) find(b *compute.Batch) (longest int) {
	*r = (*r)[:0]
	for i, seq := range b.Seq {
		if i == 0 || b.Seq[i-1] != seq {
			*r = append(*r, int32(i))
		}
		longest = max(longest, i+1-int((*r)[len(*r)-1]))
	}
	*r = append(*r, int32(b.Rows()))
	return longest
}
