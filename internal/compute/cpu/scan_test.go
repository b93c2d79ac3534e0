package cpu_test

import (
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu"
)

// scanLayer is a layer with a selective scan, of random weights: of two groups, each in two parts.
func scanLayer(d *cpu.Device) *stateLayer { return newScanLayer(d, true) }

func newScanLayer(d *cpu.Device, bias bool) *stateLayer {
	return scanOf(d, compute.ScanArgs{Groups: 2, Least: 0.001, Recurrence: compute.Recurrence{
		KeyHeads: 4, ValueHeads: 12, KeyDim: 20, ValueDim: 16, Kernel: 4,
		Decay: d.Vector([]float32{-0.1, -1, -2, -0.01, -0.5, -3, -1, -9, -2, -4, -5, -0.3}),
		Shift: d.Vector([]float32{0.5, -1, 2, 30, 0, -4, -20, 1, 1, 2, -2, 3})}}, bias)
}

func scanOf(d *cpu.Device, a compute.ScanArgs, bias bool) *stateLayer {
	a.Most, a.StepScale, a.GateScale = 25, 0.7, 1.3
	a.Convolution = d.Vector(random(a.KeyHeads * a.Kernel * a.Channels()))
	if bias {
		a.Bias = d.Vector(random(a.KeyHeads * a.Channels()))
	}
	a.Skip = d.Vector(random(a.ValueHeads))
	return &stateLayer{Recurrence: &a.Recurrence, width: a.Width(),
		compute: func(d *cpu.Device, c compute.Cache, b *compute.Batch, dst *compute.Tensor,
			x compute.View) {
			d.Scan(c, 1, b, &a, dst, x)
		},
		reference: func(x []float32) []float64 { return scanReference(&a, x) }}
}

// scanReference is compute.ScanArgs' formula for a sequence from its beginning on.
func scanReference(a *compute.ScanArgs, x []float32) (out []float64) {
	rows, width := len(x)/a.Width(), a.ValueHeads*a.ValueDim
	silu := func(v float64) float64 { return v / (1 + math.Exp(-v)) }
	at := func(r, i int) float64 { return float64(x[r*a.Width()+i]) }
	out = make([]float64, rows*width)
	for h := range a.ValueHeads {
		kh := h / a.Group()
		group := kh / (a.KeyHeads / a.Groups)
		// mixed is a channel of the key head at a row, after the convolution.
		mixed := func(r, channel, input int) float64 {
			sum := 0.0
			if a.Bias != nil {
				sum = float64(a.Bias.Host()[kh*a.Channels()+channel])
			}
			for j := range a.Kernel {
				if from := r - a.Kernel + 1 + j; from >= 0 {
					w := a.Convolution.Host()[(kh*a.Kernel+j)*a.Channels()+channel]
					sum += float64(w) * at(from, input)
				}
			}
			return silu(sum)
		}
		s := make([]float64, a.KeyDim*a.ValueDim)
		for r := range rows {
			b := 2*width + group*a.KeyDim
			c := b + a.Groups*a.KeyDim
			dt := at(r, a.Width()-a.ValueHeads+h)*float64(a.StepScale) +
				float64(a.Shift.Host()[h])
			step := min(max(math.Log1p(math.Exp(dt)), float64(a.Least)), float64(a.Most))
			g := math.Exp(step * float64(a.Decay.Host()[h]))
			for j := range a.ValueDim {
				v := mixed(r, 2*a.KeyDim+h%a.Group()*a.ValueDim+j, width+h*a.ValueDim+j)
				o := float64(a.Skip.Host()[h]) * v
				for i := range a.KeyDim {
					y := &s[i*a.ValueDim+j]
					*y = g**y + step*v*mixed(r, a.KeyDim+i, b+i)
					o += *y * mixed(r, i, c+i)
				}
				out[r*width+h*a.ValueDim+j] = o * silu(at(r, h*a.ValueDim+j)*float64(a.GateScale))
			}
		}
	}
	return out
}
