package cpu_test

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
)

// deltaLayer is a layer with a gated delta rule, of random weights.
func deltaLayer(d *cpu.Device) *stateLayer {
	return newDeltaLayer(d, compute.Recurrence{KeyHeads: 2, ValueHeads: 6, KeyDim: 16,
		ValueDim: 24, Kernel: 4, Decay: d.Vector([]float32{-0.1, -1, -2, -0.01, -0.5, -3}),
		Shift: d.Vector([]float32{0.5, -1, 2, 30, 0, -4})})
}

func newDeltaLayer(d *cpu.Device, r compute.Recurrence) *stateLayer {
	a := &compute.DeltaArgs{Recurrence: r, Eps: 1e-6, Norm: d.Vector(random(r.ValueDim))}
	a.Convolution = d.Vector(random(a.KeyHeads * a.Kernel * a.Channels()))
	return &stateLayer{Recurrence: &a.Recurrence, width: a.Width(),
		compute: func(d *cpu.Device, c compute.Cache, b *compute.Batch, dst *compute.Tensor,
			x compute.View) {
			d.Delta(c, 1, b, a, dst, x)
		},
		reference: func(x []float32) []float64 { return deltaReference(a, x) }}
}

// deltaReference is compute.DeltaArgs' formula for a sequence from its beginning on.
func deltaReference(a *compute.DeltaArgs, x []float32) (out []float64) {
	rows, group := len(x)/a.Width(), a.ValueHeads/a.KeyHeads
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	at := func(r, i int) float64 { return float64(x[r*a.Width()+i]) }
	keys := a.KeyHeads * a.KeyDim
	out = make([]float64, rows*a.ValueHeads*a.ValueDim)
	for h := range a.ValueHeads {
		kh := h / group
		// mixed is a channel of the key head at a row, after the convolution.
		mixed := func(r, channel, input int) float64 {
			sum := 0.0
			for j := range a.Kernel {
				if from := r - a.Kernel + 1 + j; from >= 0 {
					w := a.Convolution.Host()[(kh*a.Kernel+j)*a.Channels()+channel]
					sum += float64(w) * at(from, input)
				}
			}
			return sum * sigmoid(sum)
		}
		s := make([]float64, a.KeyDim*a.ValueDim)
		for r := range rows {
			q, k := make([]float64, a.KeyDim), make([]float64, a.KeyDim)
			qq, kk := 1e-6, 1e-6
			for i := range q {
				q[i] = mixed(r, i, kh*a.KeyDim+i)
				k[i] = mixed(r, a.KeyDim+i, keys+kh*a.KeyDim+i)
				qq, kk = qq+q[i]*q[i], kk+k[i]*k[i]
			}
			z := 2*keys + a.ValueHeads*a.ValueDim
			b, decay := z+a.ValueHeads*a.ValueDim+h, z+a.ValueHeads*a.ValueDim+a.ValueHeads+h
			g := math.Exp(float64(a.Decay.Host()[h]) *
				math.Log1p(math.Exp(at(r, decay)+float64(a.Shift.Host()[h]))))
			beta := sigmoid(at(r, b))
			o, squares := make([]float64, a.ValueDim), 0.0
			for j := range o {
				v := mixed(r, 2*a.KeyDim+h%group*a.ValueDim+j, 2*keys+h*a.ValueDim+j)
				read := 0.0
				for i := range k {
					s[i*a.ValueDim+j] *= g
					read += k[i] / math.Sqrt(kk) * s[i*a.ValueDim+j]
				}
				for i := range k {
					s[i*a.ValueDim+j] += k[i] / math.Sqrt(kk) * beta * (v - read)
					o[j] += q[i] / math.Sqrt(qq*float64(a.KeyDim)) * s[i*a.ValueDim+j]
				}
				squares += o[j] * o[j]
			}
			for j := range o {
				gate := at(r, z+h*a.ValueDim+j)
				out[(r*a.ValueHeads+h)*a.ValueDim+j] = o[j] /
					math.Sqrt(squares/float64(a.ValueDim)+float64(a.Eps)) *
					float64(a.Norm.Host()[j]) * gate * sigmoid(gate)
			}
		}
	}
	return out
}
