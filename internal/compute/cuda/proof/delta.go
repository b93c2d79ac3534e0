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
		{compute.Recurrence{KeyHeads: 2, ValueHeads: 4, KeyDim: 16, ValueDim: 24, Kernel: 4},
			Small},
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

// deltaRule is a gated delta rule in float64.
type deltaRule struct {
	recurrence
	norms []float32
	eps   float32
}

func delta(s *subject, args compute.DeltaArgs) {
	args.Eps = 1e-6
	ref := deltaRule{recurrence: newRecurrence(s, &args.Recurrence), eps: args.Eps}
	args.Norm, ref.norms = s.vector(args.ValueDim)
	ref.prove(s, args.Width(), func(cache compute.Cache, b *compute.Batch, dst *compute.Tensor,
		x compute.View) {
		s.Delta(cache, 0, b, &args, dst, x)
	}, ref.row)
}

// row computes a row of a sequence.
func (c *deltaRule) row(seq int32, x []float64) (out []float64) {
	a := c.args
	c.begin(seq)
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

func scale(v []float64, factor float64) {
	for i := range v {
		v[i] *= factor
	}
}

// value is what a value head makes of a row.
func (c *deltaRule) value(seq int32, h int, query, key, value, x []float64) []float64 {
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
	f := 1 / math.Sqrt(squared(out)/float64(a.ValueDim)+float64(c.eps))
	for d := range out {
		out[d] *= f * float64(c.norms[d]) * silu(z[h*a.ValueDim+d])
	}
	return out
}
