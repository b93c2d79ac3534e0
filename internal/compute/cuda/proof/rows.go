package proof

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
	"github.com/eagleray/eagleray/internal/sys/half"
)

// Tolerances of what is computed in float32: none for what is copied, and for a few operations some
// units in the last place of numbers that may be the greatest of their output.
const (
	exactly  = 0
	rounding = 2e-6
)

// rowCases are what is done to numbers one by one.
func rowCases() (list []Case) {
	list = []Case{
		{Name: "copy columns", Kernels: []kernels.ID{kernels.CopyRows}, run: copyColumns},
		{Name: "pick rows", Kernels: []kernels.ID{kernels.CopyRows}, run: pickRows},
		{Name: "look up", Kernels: []kernels.ID{kernels.Lookup}, run: lookUp},
	}
	for _, n := range []struct {
		rows, width int
		cost        Cost
	}{{3, 33, Small}, {1, 1, Full}, {7, 300, Full}, {2, 4100, Full}, {256, 12288, Large}} {
		add := func(k kernels.ID, what string, run func(s *subject, rows, width int)) {
			list = append(list, Case{Name: fmt.Sprintf("%s, %d x %d", what, n.rows, n.width),
				Kernels: []kernels.ID{k}, cost: n.cost,
				run: func(s *subject) { run(s, n.rows, n.width) }})
		}
		add(kernels.AddRows, "add", addRows)
		add(kernels.ScaleRows, "scale", scaleRows)
		add(kernels.Activate, "activate", activate)
		add(kernels.Gate, "gate", gate)
		add(kernels.SigmoidGate, "gate by logistic functions", sigmoidGate)
	}
	for _, width := range []int{16, 200} {
		list = append(list, Case{Name: fmt.Sprintf("round to 16 bits, width %d", width),
			Kernels: []kernels.ID{kernels.Halve}, run: func(s *subject) {
				x, _ := s.tensor(5, width)
				s.halves("x", x)
			}})
	}
	return list
}

func copyColumns(s *subject) {
	x, from := s.tensor(5, 24)
	y, to := s.tensor(5, 40)
	s.Copy(y.Columns(8, 16), x.Columns(3, 16))
	want := doubles(to)
	for r := range 5 {
		copy(want[r*40+8:], doubles(from[r*24+3:r*24+19]))
	}
	s.report("y", y.Floats(), want, exactly)
}

func pickRows(s *subject) {
	x, from := s.tensor(7, 19)
	y, rows := s.poisoned(9, 11), []int32{6, 0, 0, 3}
	s.Pick(y, x.Columns(2, 11), rows)
	var want []float64
	for _, r := range rows {
		want = append(want, doubles(from[r*19+2:r*19+13])...)
	}
	s.report("y", y.Floats(), want, exactly)
}

// lookUp looks up tables of each type.
func lookUp(s *subject) {
	const rows, width, offset = 9, 33, 1
	numbers := s.floats(rows * width)
	single := compute.Source{DType: compute.Float32, Data: bytesOf(numbers), Rows: rows,
		Cols: width, RowHi: rows, ColHi: width}
	sixteen := func(dtype compute.DType, round func(float32) uint16) compute.Source {
		v := make([]uint16, len(numbers))
		for i := range v {
			v[i] = round(numbers[i])
		}
		m := matrix(v, rows, width)
		m.DType = dtype
		return m
	}
	for _, src := range []compute.Source{single, sixteen(compute.BFloat16, half.ToBF16),
		sixteen(compute.Float16, half.ToF16)} {
		ids, y := []int32{0, 7, 3, 3}, s.poisoned(4, width)
		s.Table(src).Lookup(y, ids, offset)
		var want []float64
		for _, id := range ids {
			for _, v := range numbers[(id+offset)*width:][:width] {
				want = append(want, roundedTo(v, src.DType))
			}
		}
		s.report("of "+src.DType.String(), y.Floats(), want, exactly)
	}
}

func addRows(s *subject, rows, width int) {
	sum, a := s.tensor(rows, width)
	x, b := s.tensor(rows, width)
	bias, c := s.vector(width)
	s.Add(sum, x)
	s.AddBias(sum, bias)
	want := make([]float64, len(a))
	for i := range a {
		want[i] = float64(a[i]) + float64(b[i]) + float64(c[i%width])
	}
	s.report("sum", sum.Floats(), want, rounding)
}

func scaleRows(s *subject, rows, width int) {
	const factor = 0.3
	x, a := s.tensor(rows, width)
	factors, b := s.tensor(rows, 1)
	s.Scale(x, factor)
	s.ScaleRows(x, factors)
	want := make([]float64, len(a))
	for i := range a {
		want[i] = float64(a[i]) * float64(float32(factor)) * float64(b[i/width])
	}
	s.report("x", x.Floats(), want, rounding)
}

// Activations in float64.
func logistic(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
func silu(x float64) float64     { return x * logistic(x) }
func gelu(x float64) float64     { return 0.5 * x * (1 + math.Erf(x/math.Sqrt2)) }
func geluTanh(x float64) float64 {
	return 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
}

var activations = [...]func(float64) float64{
	compute.ReLU:     func(x float64) float64 { return max(x, 0) },
	compute.GELU:     gelu,
	compute.GELUTanh: geluTanh,
	compute.SiLU:     silu,
	compute.ReLU2:    func(x float64) float64 { return max(x, 0) * max(x, 0) },
}

func activate(s *subject, rows, width int) {
	const limit = 0.75
	each := func(name string, f func(float64) float64, call func(x *compute.Tensor)) {
		x, a := s.tensor(rows, width)
		call(x)
		want := make([]float64, len(a))
		for i := range a {
			want[i] = f(float64(a[i]))
		}
		s.report(name, x.Floats(), want, rounding)
	}
	for a, f := range activations {
		a := compute.Activation(a)
		each(a.String(), f, func(x *compute.Tensor) { s.Activate(a, x) })
	}
	each("logistic", logistic, func(x *compute.Tensor) { s.Sigmoid(x) })
	each("tanh cap", func(x float64) float64 { return limit * math.Tanh(x/limit) },
		func(x *compute.Tensor) { s.TanhCap(x, limit) })
}

// gated is a gated block's product in float64.
func gated(g compute.Gating, gate, up float64) float64 {
	if g.Limit > 0 {
		limit := float64(g.Limit)
		gate, up = min(gate, limit), max(min(up, limit), -limit)
		return gate * logistic(1.702*gate) * (up + 1)
	}
	return activations[g.Activation](gate) * up
}

func gate(s *subject, rows, width int) {
	for _, g := range []compute.Gating{{Activation: compute.SiLU}, {Activation: compute.GELU},
		{Activation: compute.GELUTanh}, {Limit: 1.5},
		{Activation: compute.ReLU2, Ungated: true}} {
		wide := 2 * width
		if g.Ungated {
			wide = width
		}
		both, a := s.tensor(rows, wide)
		y := s.poisoned(rows, width)
		s.Gate(g, y, both)
		want := make([]float64, rows*width)
		for i := range want {
			if g.Ungated {
				want[i] = activations[g.Activation](float64(a[i]))
				continue
			}
			row := a[i/width*2*width:]
			want[i] = gated(g, float64(row[i%width]), float64(row[width+i%width]))
		}
		s.report(g.String(), y.Floats(), want, rounding)
		if width <= mostIdentity {
			s.halves(g.String(), y)
		}
	}
}

// mostIdentity is the largest identity that a case multiplies by.
const mostIdentity = 320

func sigmoidGate(s *subject, rows, width int) {
	x, a := s.tensor(rows, width)
	gates, b := s.tensor(rows, width+17)
	s.SigmoidGate(x, gates.Columns(9, width))
	want := make([]float64, len(a))
	for i := range a {
		want[i] = float64(a[i]) * logistic(float64(b[i/width*(width+17)+9+i%width]))
	}
	s.report("x", x.Floats(), want, rounding)
}
