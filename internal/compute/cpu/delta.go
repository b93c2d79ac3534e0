package cpu

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
)

// normEps is added to the squared length of queries and keys.
const normEps = 1e-6

// Delta makes dst what a gated delta rule makes of the rows of x (see compute.DeltaArgs).
func (d *Device) Delta(c compute.Cache, layer int, b *compute.Batch, args *compute.DeltaArgs,
	dst *compute.Tensor, x compute.View) {
	d.delta.DeltaArgs = args
	d.recur(c, layer, b, &args.Recurrence, &d.delta, nil, dst, x)
	d.delta.DeltaArgs = nil
}

// deltaRule is the gated delta rule.
type deltaRule struct{ *compute.DeltaArgs }

func (a *deltaRule) gather(row []float32, head int, x []float32) {
	keys, values := a.KeyHeads*a.KeyDim, a.Group()*a.ValueDim
	copy(row, x[head*a.KeyDim:][:a.KeyDim])
	copy(row[a.KeyDim:], x[keys+head*a.KeyDim:][:a.KeyDim])
	copy(row[2*a.KeyDim:], x[2*keys+head*values:][:values])
}

func (a *deltaRule) update(v *vec.Ops, s *recurrenceScratch, head int, x, dst []float32) {
	q, k := s.mixed[:a.KeyDim], s.mixed[a.KeyDim:2*a.KeyDim]
	v.Scale(q, q, reciprocal(v.Dot(q, q))/float32(math.Sqrt(float64(a.KeyDim))))
	v.Scale(k, k, reciprocal(v.Dot(k, k)))
	z := x[2*a.KeyHeads*a.KeyDim+a.ValueHeads*a.ValueDim:]
	betas := z[a.ValueHeads*a.ValueDim:]
	size := a.KeyDim * a.ValueDim
	for i := range a.Group() {
		h := head*a.Group() + i
		step := s.softplus(v, betas[a.ValueHeads+h]+floats(a.Shift)[h])
		g, beta := s.exp(v, step*floats(a.Decay)[h]), s.sigmoid(v, betas[h])
		m := s.states[i*size : (i+1)*size]
		clear(s.out)
		clear(s.change)
		v.Recur(m, s.out, k, k, s.change, g)
		value := s.mixed[2*a.KeyDim+i*a.ValueDim:][:a.ValueDim]
		for j := range s.change {
			s.change[j] = beta * (value[j] - s.out[j])
		}
		clear(s.out)
		v.Recur(m, s.out, k, q, s.change, 1)
		v.RMSNorm(s.out, s.out, floats(a.Norm), a.Eps)
		v.SiluMul(dst[h*a.ValueDim:][:a.ValueDim], z[h*a.ValueDim:][:a.ValueDim], s.out)
	}
}

// reciprocal is that of a length, by its square.
func reciprocal(square float32) float32 {
	return float32(1 / math.Sqrt(float64(square+normEps)))
}
