package proof

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// deltaCases are of the gated delta rule.
func deltaCases() (list []Case) {
	for _, c := range []struct {
		args compute.Recurrence
		cost Cost
	}{
		{compute.Recurrence{KeyHeads: 2, ValueHeads: 4, KeyDim: 16, ValueDim: 24, Kernel: 4}, Small},
		{compute.Recurrence{KeyHeads: 1, ValueHeads: 1, KeyDim: 8, ValueDim: 8, Kernel: 1}, Full},
		{compute.Recurrence{KeyHeads: 1, ValueHeads: 2, KeyDim: 128, ValueDim: 128, Kernel: 4},
			Full},
	} {
		a := compute.DeltaArgs{Recurrence: c.args}
		list = append(list, Case{Name: fmt.Sprintf("delta rule, %d/%d heads of %d/%d, kernel %d",
			a.KeyHeads, a.ValueHeads, a.KeyDim, a.ValueDim, a.Kernel), cost: c.cost,
			Kernels: []kernels.ID{kernels.Delta}, run: func(s *subject) { delta(s, a) }})
	}
	return list
}

// recurrence is a gated delta rule in float64.
type recurrence struct {
	args                             *compute.DeltaArgs
	convolution, decay, shift, norms []float32
	// inputs are the last rows of each sequence and key head, matrices those of each value head.
	inputs   map[int32][][][]float64
	matrices map[int32][][]float64
}

// delta computes rows of sequences that begin and that go on, cut in two steps, goes back to states
// that were kept among them and computes the rows after those again, then rows that have no state.
func delta(s *subject, args compute.DeltaArgs) {
	const tolerance = 2e-5
	args.Eps = 1e-6
	ref := recurrence{args: &args, inputs: map[int32][][][]float64{},
		matrices: map[int32][][]float64{}}
	args.Convolution, ref.convolution = s.vector(args.KeyHeads * args.Kernel * args.Channels())
	args.Shift, ref.shift = s.vector(args.ValueHeads)
	args.Norm, ref.norms = s.vector(args.ValueDim)
	for h := range args.ValueHeads {
		ref.decay = append(ref.decay, -float32(h+1)/4)
	}
	args.Decay = s.Vector(ref.decay)
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
		x, v := s.tensor(b.Rows(), args.Width()+7)
		y := s.poisoned(b.Rows(), args.ValueHeads*args.ValueDim)
		s.Delta(cache, 0, b, &args, y, x.Columns(0, args.Width()))
		var want []float64
		for r, seq := range b.Seq {
			row := doubles(v[r*(args.Width()+7):][:args.Width()])
			want = append(want, ref.row(seq, row)...)
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
	more, width := s.poisoned(again.Rows(), args.ValueHeads*args.ValueDim), args.Width()+7
	s.Delta(cache, 0, again, &args, more, s.filled(again.Rows(), width,
		picked(inputs, width, took)).Columns(0, args.Width()))
	s.report("after states that were kept", more.Floats(),
		doubles(picked(found, more.Width, took)), 0)
	for i := range step.States {
		step.States[i] = -1
	}
	step.Kept = nil
	s.Begin(step, nil)
	x, _ := s.tensor(step.Rows(), args.Width())
	y := s.poisoned(step.Rows(), args.ValueHeads*args.ValueDim)
	s.Delta(cache, 0, step, &args, y, x.All())
	s.report("rows without a state", y.Floats(), make([]float64, y.Rows*y.Width), 0)
}

// row computes a row of a sequence.
func (c *recurrence) row(seq int32, x []float64) (out []float64) {
	a := c.args
	if c.inputs[seq] == nil {
		c.inputs[seq] = make([][][]float64, a.KeyHeads)
		for range a.ValueHeads {
			c.matrices[seq] = append(c.matrices[seq], make([]float64, a.KeyDim*a.ValueDim))
		}
	}
	keys, values := a.KeyHeads*a.KeyDim, a.Group()*a.ValueDim
	for h := range a.KeyHeads {
		input := append([]float64(nil), x[h*a.KeyDim:(h+1)*a.KeyDim]...)
		input = append(input, x[keys+h*a.KeyDim:keys+(h+1)*a.KeyDim]...)
		input = append(input, x[2*keys+h*values:2*keys+(h+1)*values]...)
		mixed := c.convolved(seq, h, input)
		query, key := mixed[:a.KeyDim], mixed[a.KeyDim:2*a.KeyDim]
		scale(query, 1/math.Sqrt(squared(query)+1e-6)/math.Sqrt(float64(a.KeyDim)))
		scale(key, 1/math.Sqrt(squared(key)+1e-6))
		for n := range a.Group() {
			value := mixed[2*a.KeyDim+n*a.ValueDim:][:a.ValueDim]
			out = append(out, c.value(seq, h*a.Group()+n, query, key, value, x)...)
		}
	}
	return out
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

func scale(v []float64, factor float64) {
	for i := range v {
		v[i] *= factor
	}
}

// value is what a value head makes of a row.
func (c *recurrence) value(seq int32, h int, query, key, value, x []float64) []float64 {
	a := c.args
	z := x[2*a.KeyHeads*a.KeyDim+a.ValueHeads*a.ValueDim:]
	b, decayed := z[a.ValueHeads*a.ValueDim:], z[a.ValueHeads*a.ValueDim+a.ValueHeads:]
	g := math.Exp(float64(c.decay[h]) * math.Log1p(math.Exp(decayed[h]+float64(c.shift[h]))))
	matrix, out := c.matrices[seq][h], make([]float64, a.ValueDim)
	scale(matrix, g)
	for d := range out {
		found := 0.0
		for j, k := range key {
			found += k * matrix[j*a.ValueDim+d]
		}
		change := logistic(b[h]) * (value[d] - found)
		for j, k := range key {
			matrix[j*a.ValueDim+d] += k * change
			out[d] += query[j] * matrix[j*a.ValueDim+d]
		}
	}
	f := 1 / math.Sqrt(squared(out)/float64(a.ValueDim)+float64(a.Eps))
	for d := range out {
		out[d] *= f * float64(c.norms[d]) * silu(z[h*a.ValueDim+d])
	}
	return out
}
