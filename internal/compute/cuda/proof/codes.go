package proof

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// codesShape is rows of x times a quantised weight, of which a rank may have a share: of all input
// features in, from one on.
type codesShape struct {
	kind            compute.CodeType
	group           int
	offsets, narrow bool // narrow factors are float16
	rows, out       int
	from, in, of    int
	chunks          int
	order, odd      bool // odd ones are kept as plain numbers
	numbers         int  // of 4 bits
	cost            Cost
}

// What codes of 4 bits stand for.
const (
	consecutive = iota
	microscaling
	anything
)

var codesShapes = []codesShape{
	{kind: compute.Code4, group: 32, narrow: true, rows: 3, out: 70, in: 200, of: 200, chunks: 1,
		cost: Small},
	{kind: compute.Code8, rows: 9, out: 40, in: 128, of: 128, chunks: 8, cost: Small},
	{kind: compute.CodeE4M3, group: 128, rows: 66, out: 130, in: 320, of: 320, chunks: 1,
		cost: Small},
	{kind: compute.Code4, numbers: anything, group: 128, offsets: true, rows: 66, out: 34, in: 256,
		of: 256, chunks: 2, cost: Small},
	{kind: compute.Code4, group: 32, offsets: true, narrow: true, rows: 8, out: 33, from: 192,
		in: 192, of: 384, chunks: 4, cost: Full},
	{kind: compute.Code4, numbers: microscaling, group: 16, offsets: true, rows: 33, out: 64,
		in: 96, of: 96, chunks: 2, cost: Small},
	{kind: compute.Code8, group: 32, offsets: true, rows: 70, out: 160, from: 352, in: 352, of: 704,
		chunks: 2, cost: Full},
	{kind: compute.Code4, group: 32, offsets: true, rows: 9, out: 48, from: 176, in: 176, of: 352,
		chunks: 1, cost: Full},
	{kind: compute.CodeE4M3, offsets: true, rows: 33, out: 17, in: 1040, of: 1040, chunks: 1,
		odd: true, cost: Full},
	{kind: compute.CodeE4M3, group: 128, rows: 20, out: 40, in: 400, of: 400, chunks: 1,
		cost: Small},
	{kind: compute.Code8, group: 32, rows: 33, out: 17, in: 128, of: 128, chunks: 1, cost: Small},
	{kind: compute.Code4, group: 32, narrow: true, rows: 20, out: 40, in: 208, of: 208, chunks: 1,
		cost: Small},
	{kind: compute.Code4, numbers: anything, group: 32, offsets: true, rows: 60, out: 130, in: 80,
		of: 80, chunks: 1, cost: Full},
	{kind: compute.Code8, group: 64, narrow: true, rows: 5, out: 16, in: 192, of: 192, chunks: 1,
		cost: Small},
	{kind: compute.Code4, numbers: anything, group: 64, rows: 3, out: 30, in: 200, of: 200,
		chunks: 1, cost: Full},
	{kind: compute.Code4, group: 24, rows: 5, out: 16, in: 96, of: 96, chunks: 1, odd: true,
		cost: Full},
	// Chunks that begin within products of their groups.
	{kind: compute.Code4, numbers: microscaling, group: 32, rows: 9, out: 40, from: 288, in: 288,
		of: 576, chunks: 4, cost: Small},
	{kind: compute.Code4, group: 16, offsets: true, narrow: true, rows: 3, out: 33, in: 360,
		of: 360, chunks: 8, cost: Full},
	{kind: compute.Code8, group: 128, offsets: true, rows: 66, out: 130, in: 576, of: 576,
		chunks: 8, cost: Full},
	{kind: compute.Code4, group: 32, narrow: true, order: true, rows: 5, out: 16, in: 700, of: 700,
		chunks: 1, cost: Small},
	{kind: compute.Code8, group: 64, offsets: true, order: true, rows: 66, out: 34, in: 320,
		of: 320, chunks: 8, cost: Full},
	{kind: compute.Code4, group: 128, narrow: true, order: true, rows: 16, out: 4096, in: 12288,
		of: 12288, chunks: 8, cost: Large},
	{kind: compute.Code4, group: 128, narrow: true, rows: 1, out: 12288, in: 4096, of: 4096,
		chunks: 1, cost: Large},
	{kind: compute.Code8, group: 32, narrow: true, rows: 16, out: 4096, in: 12288, of: 12288,
		chunks: 8, cost: Large},
	{kind: compute.CodeE4M3, group: 128, rows: 257, out: 6144, in: 4096, of: 4096, chunks: 1,
		cost: Large},
}

func codesCases(dtype compute.DType) (list []Case) {
	for _, p := range codesShapes {
		k := productKernel(p.rows, dtype)
		about := []kernels.ID{k}
		if !p.odd {
			k += kernels.Gemm8BF16Codes4 - kernels.Gemm8BF16
			if p.kind != compute.Code4 {
				k += kernels.Gemm8BF16Codes8 - kernels.Gemm8BF16Codes4
			}
			about = []kernels.ID{k, kernels.PackCodes}
		}
		if p.order {
			about = append(about, kernels.OrderColumns)
		}
		list = append(list, Case{Name: p.name(), Kernels: about, cost: p.cost,
			run: func(s *subject) { codes(s, p) }})
	}
	return list
}

func (p *codesShape) name() string {
	return fmt.Sprintf("%v in groups of %d, product %d x %d x %d in %d, of %d", p.kind, p.group,
		p.rows, p.out, p.in, p.chunks, p.of)
}

// codes multiplies by a quantised weight. Its codes stand for numbers of the type that models run
// in, times scales in float32; those that kernels cannot take are kept as numbers of that type.
func codes(s *subject, p codesShape) {
	c := s.codes(&p)
	numbers := inOrder(s.unpacked(c, p.odd), c.Order)
	w, err := s.PackCodes(p.chunks, stacked(c)...)
	if s.check(err); err != nil {
		return
	}
	s.weights = append(s.weights, w)
	x, v := s.tensor(p.rows, p.in)
	bias, b := s.vector(p.out)
	y, parts := s.poisoned(p.rows, p.out), new(compute.Tensor)
	w.Product(y.All(), x.All(), bias)
	w.ProductChunks(parts, x.All())
	if s.err != nil {
		return
	}
	var sampled [2]output
	each, size := max(1, p.rows*p.out/checkedElements), p.rows*p.out
	for i := 0; i < size; i += each {
		r, f := i/p.out, i%p.out
		row := inOrder(s.roundedAll(v[r*p.in:(r+1)*p.in]), c.Order)
		for c := range p.chunks {
			lo, hi := p.in*c/p.chunks, p.in*(c+1)/p.chunks
			sampled[1].add(parts.Floats()[c*size+i], dot(row[lo:hi],
				numbers[f*p.in+lo:f*p.in+hi]))
		}
		sampled[0].add(y.Floats()[i], float64(b[f])+dot(row, numbers[f*p.in:(f+1)*p.in]))
	}
	for i, name := range []string{"with a bias", "in chunks"} {
		s.report(name, sampled[i].got, sampled[i].want, productTolerance(p.in))
	}
}

// inOrder are rows with their columns in an order, which chunks are cut of; nil leaves them.
func inOrder(v []float64, order []int32) []float64 {
	if order == nil {
		return v
	}
	to := make([]float64, 0, len(v))
	for from := 0; from < len(v); from += len(order) {
		for _, i := range order {
			to = append(to, v[from+int(i)])
		}
	}
	return to
}

// codes are random codes of a shape.
func (s *subject) codes(p *codesShape) *compute.Codes {
	c := &compute.Codes{Type: p.kind, Rows: p.out, Cols: p.in, Group: p.group}
	if p.in != p.of {
		c.From, c.Of = p.from, p.of
	}
	if p.group > 0 {
		c.Lead = p.from % p.group
	}
	for i := range c.Values {
		switch p.numbers {
		case consecutive:
			c.Values[i] = float32(i - 8)
		case microscaling:
			c.Values[i] = []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}[i&7] * float32(1-i>>3*2)
		case anything:
			c.Values[i] = float32(i-8) + s.random.Float32()
		}
	}
	c.Code = make([]byte, p.out*p.in)
	for i := range c.Code {
		switch c.Code[i] = byte(s.random.Uint32()); {
		case p.kind == compute.Code4:
			c.Code[i] &= 15
		case p.kind == compute.CodeE4M3 && c.Code[i]&0x7f == 0x7f:
			c.Code[i] = 0
		}
	}
	c.Scale = make([]float32, p.out*c.Groups())
	factor := func() float32 {
		if v := s.random.Float32() / 256; !p.narrow {
			return v
		}
		return float32(s.random.IntN(1<<10)) / (1 << 18)
	}
	for i := range c.Scale {
		c.Scale[i] = factor()
	}
	if p.offsets {
		c.Offset = make([]float32, len(c.Scale))
		for i := range c.Offset {
			c.Offset[i] = -8 * factor()
		}
	}
	if p.order {
		for _, i := range s.random.Perm(p.in) {
			c.Order = append(c.Order, int32(i))
		}
	}
	return c
}

// stacked are codes as two rectangles, one above the other.
func stacked(c *compute.Codes) []compute.Codes {
	a, b, rows, groups := *c, *c, c.Rows/3, c.Groups()
	a.Rows, b.Rows = rows, c.Rows-rows
	a.Code, b.Code = c.Code[:rows*c.Cols], c.Code[rows*c.Cols:]
	a.Scale, b.Scale = c.Scale[:rows*groups], c.Scale[rows*groups:]
	if c.Offset != nil {
		a.Offset, b.Offset = c.Offset[:rows*groups], c.Offset[rows*groups:]
	}
	return []compute.Codes{a, b}
}

// unpacked are the numbers that codes stand for, by input feature; whole says that what a code and
// its factors come to is rounded, else what the code stands for is.
func (s *subject) unpacked(c *compute.Codes, whole bool) []float64 {
	v, groups := make([]float64, len(c.Code)), c.Groups()
	for i, code := range c.Code {
		r, col := i/c.Cols, i%c.Cols
		g := r * groups
		if c.Group > 0 {
			g += (c.Lead + col) / c.Group
		}
		n := float64(c.Number(code))
		if !whole {
			n = s.rounded(c.Number(code))
		}
		n *= float64(c.Scale[g])
		if c.Offset != nil {
			n += float64(c.Offset[g])
		}
		if whole {
			n = s.rounded(float32(n))
		}
		if c.Order != nil {
			col = int(c.Order[col])
		}
		v[r*c.Cols+col] = n
	}
	return v
}
