package proof

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// scanCases are of the selective scan.
func scanCases() (list []Case) {
	for _, c := range []struct {
		args compute.ScanArgs
		bias bool
		cost Cost
	}{
		{compute.ScanArgs{Groups: 2, Recurrence: compute.Recurrence{KeyHeads: 4, ValueHeads: 12,
			KeyDim: 10, ValueDim: 16, Kernel: 4}}, true, Small},
		{compute.ScanArgs{Groups: 1, Recurrence: compute.Recurrence{KeyHeads: 1, ValueHeads: 1,
			KeyDim: 8, ValueDim: 8, Kernel: 1}}, false, Full},
		{compute.ScanArgs{Groups: 1, Recurrence: compute.Recurrence{KeyHeads: 2, ValueHeads: 8,
			KeyDim: 128, ValueDim: 64, Kernel: 4}}, true, Full},
	} {
		a := c.args
		list = append(list, Case{Name: fmt.Sprintf("selective scan, %d/%d heads of %d/%d, kernel "+
			"%d", a.KeyHeads, a.ValueHeads, a.KeyDim, a.ValueDim, a.Kernel), cost: c.cost,
			Kernels: []kernels.ID{kernels.Scan}, run: func(s *subject) { scan(s, a, c.bias) }})
	}
	return list
}

// scanRule is a selective scan in float64.
type scanRule struct {
	recurrence
	*compute.ScanArgs
	skip []float32
}

func scan(s *subject, args compute.ScanArgs, bias bool) {
	args.Least, args.Most, args.StepScale, args.GateScale = 0.6, 0.9, 0.7, 1.3
	ref := scanRule{recurrence: newRecurrence(s, &args.Recurrence), ScanArgs: &args}
	args.Skip, ref.skip = s.vector(args.ValueHeads)
	if bias {
		args.Bias, ref.bias = s.vector(args.KeyHeads * args.Channels())
	}
	ref.prove(s, args.Width(), func(cache compute.Cache, b *compute.Batch, dst *compute.Tensor,
		x compute.View) {
		s.Scan(cache, 0, b, &args, dst, x)
	}, ref.row)
}

// row computes a row of a sequence.
func (c *scanRule) row(seq int32, x []float64) (out []float64) {
	a := c.ScanArgs
	c.begin(seq)
	width, values := a.ValueHeads*a.ValueDim, a.Group()*a.ValueDim
	bs := x[2*width:]
	cs, steps := bs[a.Groups*a.KeyDim:], bs[2*a.Groups*a.KeyDim:]
	for h := range a.KeyHeads {
		of := h / (a.KeyHeads / a.Groups) * a.KeyDim
		input := append([]float64(nil), cs[of:of+a.KeyDim]...)
		input = append(input, bs[of:of+a.KeyDim]...)
		input = append(input, x[width+h*values:][:values]...)
		mixed := c.convolved(seq, h, input)
		for n := range a.Group() {
			head := h*a.Group() + n
			step := math.Log1p(math.Exp(steps[head]*float64(a.StepScale) +
				float64(c.shift[head])))
			step = min(max(step, float64(a.Least)), float64(a.Most))
			matrix := c.matrices[seq][head]
			scale(matrix, math.Exp(float64(c.decay[head])*step))
			for d, value := range mixed[2*a.KeyDim+n*a.ValueDim:][:a.ValueDim] {
				found := float64(c.skip[head]) * value
				for j := range a.KeyDim {
					s := &matrix[j*a.ValueDim+d]
					*s += mixed[a.KeyDim+j] * step * value
					found += mixed[j] * *s
				}
				out = append(out, found*silu(x[head*a.ValueDim+d]*float64(a.GateScale)))
			}
		}
	}
	return out
}
