package proof

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// convolutionCases are of the gated short convolution.
func convolutionCases() (list []Case) {
	for _, c := range []struct {
		args compute.ConvolutionArgs
		bias bool
		cost Cost
	}{
		{compute.ConvolutionArgs{Parts: 2, Channels: 40, Kernel: 3}, true, Small},
		{compute.ConvolutionArgs{Parts: 8, Channels: 5, Kernel: 2}, false, Full},
		{compute.ConvolutionArgs{Parts: 4, Channels: 256, Kernel: 7}, false, Full},
	} {
		a, bias := c.args, c.bias
		list = append(list, Case{Name: fmt.Sprintf("short convolution, %d parts of %d, kernel %d",
			a.Parts, a.Channels, a.Kernel), cost: c.cost,
			Kernels: []kernels.ID{kernels.Convolve}, run: func(s *subject) {
				convolution(s, a, bias)
			}})
	}
	return list
}

// convolved is a gated short convolution in float64; inputs are the rows of each sequence so far.
type convolved struct {
	args          *compute.ConvolutionArgs
	weights, bias []float32
	inputs        map[int32][][]float64
}

// convolution computes rows of sequences that begin and that go on, cut in two steps, and goes back
// to states that were kept among them and computes the rows after those again.
func convolution(s *subject, args compute.ConvolutionArgs, bias bool) {
	const tolerance = 1e-6
	ref := convolved{args: &args, inputs: map[int32][][]float64{}}
	args.Weights, ref.weights = s.vector(args.Parts * args.Kernel * args.Channels)
	if bias {
		args.Bias, ref.bias = s.vector(args.Out())
	}
	before, step, blocks := layOut([]sequence{{5, 3}, {0, 4}, {2, 1}})
	cache, err := s.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{{
		Kind: compute.State, Heads: args.Parts, Dim: args.Floats()}}, Blocks: blocks,
		BlockSize: blockSize, DType: s.dtype, States: 5})
	if err != nil {
		s.check(err)
		return
	}
	defer cache.Free()
	// The states after the first row of the first sequence and after the second one of the next.
	step.Kept = []int32{3, -1, -1, -1, 4, -1, -1, -1}
	again, took := stepAfter(step, []int{1, 5})
	var inputs, found []float32
	read := 3 * args.Out()
	for i, b := range []*compute.Batch{before, step} {
		s.Begin(b, nil)
		x, v := s.tensor(b.Rows(), read+7)
		y := s.poisoned(b.Rows(), args.Out())
		s.Convolve(cache, 0, b, &args, y, x.Columns(0, read))
		var want []float64
		for r, seq := range b.Seq {
			want = append(want, ref.row(seq, doubles(v[r*(read+7):][:read]))...)
		}
		name := fmt.Sprintf("step %d", i)
		s.report(name, y.Floats(), want, tolerance)
		if y.Width <= mostIdentity {
			s.halves(name, y)
		}
		inputs, found = v, append([]float32(nil), y.Floats()...)
	}
	cache.CopyState(int(step.States[0]), 3)
	cache.CopyState(int(step.States[1]), 4)
	s.Begin(again, nil)
	more := s.poisoned(again.Rows(), args.Out())
	s.Convolve(cache, 0, again, &args, more, s.filled(again.Rows(), read+7,
		picked(inputs, read+7, took)).Columns(0, read))
	s.report("after states that were kept", more.Floats(),
		doubles(picked(found, more.Width, took)), 0)
}

// row computes a row of a sequence.
func (c *convolved) row(seq int32, x []float64) []float64 {
	a := c.args
	n := a.Out()
	input, out := make([]float64, n), make([]float64, n)
	for i := range input {
		input[i] = x[i] * x[2*n+i]
	}
	rows := append(c.inputs[seq], input)
	c.inputs[seq] = rows
	for i := range out {
		if c.bias != nil {
			out[i] = float64(c.bias[i])
		}
		part, at := i/a.Channels, i%a.Channels
		for j := range min(a.Kernel, len(rows)) {
			w := c.weights[(part*a.Kernel+a.Kernel-1-j)*a.Channels+at]
			out[i] += float64(w) * rows[len(rows)-1-j][i]
		}
		out[i] *= x[n+i]
	}
	return out
}
