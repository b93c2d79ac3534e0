package proof

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
)

// recurrence is a layer that keeps states, in float64.
type recurrence struct {
	args                            *compute.Recurrence
	convolution, bias, decay, shift []float32
	// inputs are the last rows of each sequence and key head, matrices those of each value head.
	inputs   map[int32][][][]float64
	matrices map[int32][][]float64
}

// newRecurrence gives args, but its decays, random weights.
func newRecurrence(s *subject, args *compute.Recurrence) recurrence {
	c := recurrence{args: args, inputs: map[int32][][][]float64{},
		matrices: map[int32][][]float64{}}
	args.Convolution, c.convolution = s.vector(args.KeyHeads * args.Kernel * args.Channels())
	args.Shift, c.shift = s.vector(args.ValueHeads)
	for h := range args.ValueHeads {
		c.decay = append(c.decay, -float32(h+1)/4)
	}
	args.Decay = s.Vector(c.decay)
	return c
}

// begin makes the states of a sequence that has none.
func (c *recurrence) begin(seq int32) {
	if c.inputs[seq] == nil {
		c.inputs[seq] = make([][][]float64, c.args.KeyHeads)
		for range c.args.ValueHeads {
			c.matrices[seq] = append(c.matrices[seq],
				make([]float64, c.args.KeyDim*c.args.ValueDim))
		}
	}
}

// prove computes rows of sequences that begin and that go on, cut in two steps, goes back to states
// that were kept among them and computes the rows after those again, then rows that have no state.
// Rows are so wide; row is the layer's formula.
func (c *recurrence) prove(s *subject, width int,
	layer func(cache compute.Cache, b *compute.Batch, dst *compute.Tensor, x compute.View),
	row func(seq int32, x []float64) []float64) {
	const tolerance = 2e-5
	args := c.args
	before, step, blocks := layOut([]sequence{{5, 3}, {0, 4}, {2, 1}})
	cache, err := s.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{{
		Kind: compute.State, Heads: args.KeyHeads, Dim: args.Floats()}}, Blocks: blocks,
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
	for i, b := range []*compute.Batch{before, step} {
		s.Begin(b, nil)
		x, v := s.tensor(b.Rows(), width+7)
		y := s.poisoned(b.Rows(), args.ValueHeads*args.ValueDim)
		layer(cache, b, y, x.Columns(0, width))
		var want []float64
		for r, seq := range b.Seq {
			want = append(want, row(seq, doubles(v[r*(width+7):][:width]))...)
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
	more := s.poisoned(again.Rows(), args.ValueHeads*args.ValueDim)
	layer(cache, again, more, s.filled(again.Rows(), width+7,
		picked(inputs, width+7, took)).Columns(0, width))
	s.report("after states that were kept", more.Floats(),
		doubles(picked(found, more.Width, took)), 0)
	for i := range step.States {
		step.States[i] = -1
	}
	step.Kept = nil
	s.Begin(step, nil)
	x, _ := s.tensor(step.Rows(), width)
	y := s.poisoned(step.Rows(), args.ValueHeads*args.ValueDim)
	layer(cache, step, y, x.All())
	s.report("rows without a state", y.Floats(), make([]float64, y.Rows*y.Width), 0)
}

// convolved is the sum of a key head's last inputs by the weights of their channels, through SiLU.
func (c *recurrence) convolved(seq int32, head int, input []float64) []float64 {
	a := c.args
	last := append(c.inputs[seq][head], input)
	if len(last) > a.Kernel {
		last = last[1:]
	}
	c.inputs[seq][head] = last
	y := make([]float64, a.Channels())
	if c.bias != nil {
		copy(y, doubles(c.bias[head*a.Channels():][:a.Channels()]))
	}
	for i, row := range last {
		w := c.convolution[(head*a.Kernel+a.Kernel-len(last)+i)*a.Channels():]
		for j, v := range row {
			y[j] += float64(w[j]) * v
		}
	}
	for j, v := range y {
		y[j] = silu(v)
	}
	return y
}
