package cpu

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/vec"
)

// Scan makes dst what a selective scan makes of the rows of x (see compute.ScanArgs).
func (d *Device) Scan(c compute.Cache, layer int, b *compute.Batch, args *compute.ScanArgs,
	dst *compute.Tensor, x compute.View) {
	d.scan.ScanArgs = args
	d.recur(c, layer, b, &args.Recurrence, &d.scan, args.Bias, dst, x)
	d.scan.ScanArgs = nil
}

// scanRule is the selective scan.
type scanRule struct{ *compute.ScanArgs }

func (a *scanRule) gather(row []float32, head int, x []float32) {
	group, values := head*a.Groups/a.KeyHeads, a.Group()*a.ValueDim
	x = x[a.ValueHeads*a.ValueDim:]
	b := x[a.ValueHeads*a.ValueDim:]
	copy(row, b[(a.Groups+group)*a.KeyDim:][:a.KeyDim])
	copy(row[a.KeyDim:], b[group*a.KeyDim:][:a.KeyDim])
	copy(row[2*a.KeyDim:], x[head*values:][:values])
}

func (a *scanRule) update(v *vec.Ops, s *recurrenceScratch, head int, x, dst []float32) {
	q, k := s.mixed[:a.KeyDim], s.mixed[a.KeyDim:2*a.KeyDim]
	steps := x[a.Width()-a.ValueHeads:]
	size := a.KeyDim * a.ValueDim
	for i := range a.Group() {
		h := head*a.Group() + i
		value := s.mixed[2*a.KeyDim+i*a.ValueDim:][:a.ValueDim]
		step := s.softplus(v, float32(steps[h]*a.StepScale)+floats(a.Shift)[h])
		step = min(max(step, a.Least), a.Most)
		v.Scale(s.change, value, step)
		v.Scale(s.out, value, floats(a.Skip)[h])
		v.Recur(s.states[i*size:(i+1)*size], s.out, k, q, s.change,
			s.exp(v, step*floats(a.Decay)[h]))
		v.Scale(s.change, x[h*a.ValueDim:][:a.ValueDim], a.GateScale)
		v.SiluMul(dst[h*a.ValueDim:][:a.ValueDim], s.change, s.out)
	}
}
