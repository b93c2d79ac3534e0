package proof

import (
	"fmt"
	"math"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// normCases are norms of rows and of heads, and rotations.
func normCases() (list []Case) {
	for _, n := range []struct {
		rows, width int
		cost        Cost
	}{{3, 300, Small}, {1, 1, Full}, {2, 31, Full}, {5, 257, Full}, {2, 4096, Full},
		{1, 8450, Full}, {2, 10368, Full}, {256, 4096, Large}} {
		name := func(what string) string {
			return fmt.Sprintf("%s, %d x %d", what, n.rows, n.width)
		}
		list = append(list,
			Case{Name: name("RMS norm"), Kernels: []kernels.ID{kernels.RMSNorm}, cost: n.cost,
				run: func(s *subject) { rmsNorm(s, n.rows, n.width) }},
			Case{Name: name("layer norm"), Kernels: []kernels.ID{kernels.LayerNorm}, cost: n.cost,
				run: func(s *subject) { layerNorm(s, n.rows, n.width) }})
	}
	for _, h := range []headShape{{5, 3, 16, 12, true, Small}, {3, 7, 128, 128, true, Full},
		{4, 2, 64, 0, true, Full}, {9, 1, 80, 32, false, Full}, {1, 5, 34, 34, true, Full},
		{64, 32, 128, 128, true, Large}} {
		list = append(list, Case{Name: "heads, " + h.String(), cost: h.cost,
			Kernels: []kernels.ID{kernels.Heads, kernels.Angles},
			run:     func(s *subject) { heads(s, h) }})
	}
	for _, n := range []struct {
		dim  int
		cost Cost
	}{{20, Small}, {128, Full}, {1, Full}} {
		list = append(list, Case{Name: fmt.Sprintf("norm across heads of %d", n.dim), cost: n.cost,
			Kernels: []kernels.ID{kernels.Squares, kernels.NormAcross},
			run:     func(s *subject) { normAcross(s, n.dim) }})
	}
	return append(list, Case{Name: "angles of far positions",
		Kernels: []kernels.ID{kernels.Angles}, run: farAngles})
}

// sums says how far float32 may be off after adding so many numbers by threads of a block.
const sums = 3e-6

func rmsNorm(s *subject, rows, width int) {
	const eps = 1e-5
	x, a := s.tensor(rows, width)
	weight, w := s.vector(width)
	y := s.poisoned(rows, width)
	s.RMSNorm(y, x, weight, eps)
	s.report("y", y.Floats(), normalised(doubles(a), w, eps), sums)
	if width <= mostIdentity {
		s.halves("y", y)
	}
}

// normalised is rows divided by their root mean square, and multiplied by a weight.
func normalised(x []float64, weight []float32, eps float64) []float64 {
	out, width := make([]float64, len(x)), len(weight)
	for at := 0; at < len(x); at += width {
		row := x[at : at+width]
		f := 1 / math.Sqrt(squared(row)/float64(width)+eps)
		for i, v := range row {
			out[at+i] = v * f * float64(weight[i])
		}
	}
	return out
}

// squared is the sum of squares.
func squared(v []float64) (sum float64) {
	for _, x := range v {
		sum += x * x
	}
	return sum
}

// layerNorm writes where it reads, as models do, and elsewhere.
func layerNorm(s *subject, rows, width int) {
	const eps = 1e-5
	x, a := s.tensor(rows, width)
	weight, w := s.vector(width)
	bias, b := s.vector(width)
	y := s.poisoned(rows, width)
	s.LayerNorm(y, x, weight, bias, eps)
	s.LayerNorm(x, x, weight, bias, eps)
	want := make([]float64, len(a))
	for r := range rows {
		row, mean := doubles(a[r*width:(r+1)*width]), 0.0
		for _, v := range row {
			mean += v / float64(width)
		}
		for i := range row {
			row[i] -= mean
		}
		f := 1 / math.Sqrt(squared(row)/float64(width)+eps)
		for i, v := range row {
			want[r*width+i] = v*f*float64(w[i]) + float64(b[i])
		}
	}
	s.report("y", y.Floats(), want, sums)
	s.report("in place", x.Floats(), want, sums)
	if width <= mostIdentity {
		s.halves("y", y)
	}
}

// headShape is rows of heads, of which some dimensions are turned.
type headShape struct {
	rows, heads, dim, turned int
	norm                     bool
	cost                     Cost
}

func (h headShape) String() string {
	norm := "normalised"
	if !h.norm {
		norm = "as they are"
	}
	return fmt.Sprintf("%d x %d of %d, %d turned, %s", h.rows, h.heads, h.dim, h.turned, norm)
}

func heads(s *subject, h headShape) {
	const before, after, eps = 8, 5, 1e-6
	inner := h.heads * h.dim
	width := before + inner + after
	x, a := s.tensor(h.rows, width)
	var weight compute.Memory
	var w []float32
	if h.norm {
		weight, w = s.vector(h.dim)
	}
	angles, turns := (*compute.Tensor)(nil), []float64(nil)
	if h.turned > 0 {
		angles, turns = s.angles(positionsOf(h.rows), frequenciesOf(h.turned/2), 1.25)
	}
	s.Heads(x.Columns(before, inner), h.dim, weight, eps, angles)
	want := doubles(a)
	for r := range h.rows {
		for n := range h.heads {
			h.compute(want[r*width+before+n*h.dim:][:h.dim], w, turns, r, eps)
		}
	}
	s.report("x", x.Floats(), want, sums)
	if h.turned > 0 {
		s.report("angles", angles.Floats(), turns, rounding)
	}
}

// compute normalises a head of a row by a weight, unless that is nil, and turns it.
func (h headShape) compute(head []float64, weight []float32, turns []float64, row int,
	eps float64) {
	if weight != nil {
		f := 1 / math.Sqrt(squared(head)/float64(h.dim)+eps)
		for i := range head {
			head[i] *= f * float64(weight[i])
		}
	}
	if h.turned > 0 {
		turn(head[:h.turned], turns[row*h.turned:(row+1)*h.turned])
	}
}

// positionsOf are as many positions, some of them far ones.
func positionsOf(rows int) []int32 {
	p := make([]int32, rows)
	for i := range p {
		p[i] = int32(i * i * 7 % 1500)
	}
	return p
}

func frequenciesOf(n int) []float32 {
	f := make([]float32, n)
	for i := range f {
		f[i] = float32(math.Pow(10000, -float64(i)/float64(n)))
	}
	return f
}

// angles are cosines and sines of positions. An angle is a product in float32, as in transformers.
func (s *subject) angles(positions []int32, frequencies []float32, scale float64) (
	*compute.Tensor, []float64) {
	n := len(frequencies)
	t := s.poisoned(len(positions), 2*n)
	s.Rotary(frequencies, func(int) float64 { return scale }, 0).Angles(t, positions)
	want := make([]float64, len(positions)*2*n)
	for r, p := range positions {
		for i, f := range frequencies {
			angle := float64(float32(p) * f)
			want[r*2*n+i] = math.Cos(angle) * scale
			want[r*2*n+n+i] = math.Sin(angle) * scale
		}
	}
	return t, want
}

// turn turns pairs of a half and the other by angles, of which the cosines come first.
func turn(head, angles []float64) {
	half := len(head) / 2
	for i := range half {
		a, b, c, d := head[i], head[half+i], angles[i], angles[half+i]
		head[i], head[half+i] = a*c-b*d, b*c+a*d
	}
}

func farAngles(s *subject) {
	// They are more than a small device has threads for.
	positions := append([]int32{0, 1, 1023, 1024, 5000, 3}, positionsOf(150)...)
	t, want := s.angles(positions, frequenciesOf(7), 1)
	s.report("angles", t.Floats(), want, rounding)
}

func normAcross(s *subject, dim int) {
	const rows, count, width, eps = 5, 4, 9, 1e-6
	inner := count * dim
	x, a := s.tensor(rows, inner+20)
	squares, b := s.tensor(rows, width)
	weight, w := s.vector(inner)
	heads := x.Columns(10, inner)
	s.Squares(squares.Columns(2, count), heads, dim)
	s.NormAcross(heads, weight, squares.Columns(2, count), dim, eps)
	wantX, wantSquares := doubles(a), doubles(b)
	for r := range rows {
		row := wantX[r*(inner+20)+10:][:inner]
		f := 1 / math.Sqrt(squared(row)/float64(inner)+eps)
		for n := range count {
			wantSquares[r*width+2+n] = squared(row[n*dim : (n+1)*dim])
		}
		for i := range row {
			row[i] *= f * float64(w[i])
		}
	}
	s.report("squares", squares.Floats(), wantSquares, sums)
	s.report("x", x.Floats(), wantX, sums)
}
