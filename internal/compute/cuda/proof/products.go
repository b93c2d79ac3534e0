package proof

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// productShape is rows of x, which begin at a column, times a weight of chunks.
type productShape struct {
	rows, out, in, chunks, from int
	cost                        Cost
}

// The shapes are those of each kernel's tiles, and beyond their ends.
var productShapes = []productShape{
	{3, 70, 100, 1, 3, Small}, {9, 40, 88, 8, 0, Small}, {66, 130, 72, 1, 8, Small},
	{20, 40, 136, 2, 8, Small}, {40, 70, 80, 1, 0, Small},
	{1, 64, 64, 1, 0, Full}, {1, 5, 16, 1, 0, Full}, {8, 130, 48, 8, 0, Full},
	{8, 64, 1040, 2, 0, Full}, {20, 66, 320, 2, 8, Full},
	{33, 140, 720, 1, 0, Full}, {64, 17, 33, 1, 1, Full},
	{65, 130, 129, 1, 1, Full}, {130, 24, 72, 4, 0, Full}, {200, 136, 200, 8, 0, Full},
	{128, 256, 512, 1, 0, Full},
	{1, 12288, 4096, 1, 0, Large}, {16, 4096, 12288, 8, 0, Large},
	{64, 6144, 4096, 1, 0, Large}, {257, 24576, 4096, 1, 0, Large},
}

func productCases(dtype compute.DType) (list []Case) {
	for _, p := range productShapes {
		k := productKernel(p.rows, dtype)
		about := []kernels.ID{k}
		if p.chunks > 1 {
			about = append(about, kernels.SumChunks)
		}
		list = append(list, Case{Name: fmt.Sprintf("product %d x %d x %d in %d, from %d", p.rows,
			p.out, p.in, p.chunks, p.from), Kernels: about, cost: p.cost,
			run: func(s *subject) { multiplied(s, p) }})
	}
	return list
}

// productKernel is the kernel that the device has for so many rows.
func productKernel(rows int, dtype compute.DType) kernels.ID {
	switch {
	case dtype == compute.Float32 && rows <= 16:
		return kernels.Gemm4F32
	case dtype == compute.Float32:
		return kernels.Gemm32F32
	case rows <= 8:
		return kernels.Gemm8BF16
	case rows <= 16:
		return kernels.Gemm16BF16
	case rows <= 32:
		return kernels.Gemm32BF16
	case rows <= 64:
		return kernels.Gemm64BF16
	}
	return kernels.Gemm128BF16
}

// productTolerance is for sums of so many products in float32: each step of the tensor cores, of 16
// input features, may lose a unit in the last place.
func productTolerance(in int) float64 { return 4e-6 + float64(in)/16*1.2e-7 }

// checkedElements bounds how many elements of a large product are computed again in float64.
const checkedElements = 1 << 14

// multiplied computes y = x·Wᵀ + b, adds x·Wᵀ to it, and has the chunks apart. Of x and W the
// reference has the numbers rounded to 16 bits, as the kernels do.
func multiplied(s *subject, p productShape) {
	w, weights := s.weight(p.chunks, p.out, p.in)
	x, v := s.tensor(p.rows, p.in+p.from+8)
	bias, b := s.vector(p.out)
	y, parts := s.poisoned(p.rows, p.out+3), new(compute.Tensor)
	to := y.Columns(2, p.out)
	w.Product(to, x.Columns(p.from, p.in), bias)
	once := columns(y.Floats(), p.out+3, 2, p.out)
	w.ProductAdded(to, x.Columns(p.from, p.in))
	twice := columns(y.Floats(), p.out+3, 2, p.out)
	w.ProductChunks(parts, x.Columns(p.from, p.in))
	chunks := parts.Floats()
	if s.err != nil {
		return
	}

	var sampled [3]output
	each := max(1, p.rows*p.out/checkedElements)
	size, row, rounded := p.rows*p.out, []float64(nil), -1
	for i := 0; i < size; i += each {
		r, f := i/p.out, i%p.out
		if r != rounded {
			row, rounded = s.roundedAll(v[r*(p.in+p.from+8)+p.from:][:p.in]), r
		}
		whole := 0.0
		for c := range p.chunks {
			lo, hi := p.in*c/p.chunks, p.in*(c+1)/p.chunks
			sum := dot(row[lo:hi], weights[f*p.in+lo:f*p.in+hi])
			sampled[2].add(chunks[c*size+i], sum)
			whole += sum
		}
		sampled[0].add(once[i], whole+float64(b[f]))
		sampled[1].add(twice[i], 2*whole+float64(b[f]))
	}
	for i, name := range []string{"with a bias", "added", "in chunks"} {
		s.report(name, sampled[i].got, sampled[i].want, productTolerance(p.in))
	}
	s.report("columns beside it that were written", []float32{written(y, 2, p.out)}, []float64{0},
		exactly)
}

// written counts the numbers of a poisoned tensor that are numbers now, outside of some columns.
func written(y *compute.Tensor, from, n int) (count float32) {
	for i, v := range y.Floats() {
		if c := i % y.Width; (c < from || c >= from+n) && v == v {
			count++
		}
	}
	return count
}

func (o *output) add(got float32, want float64) {
	o.got, o.want = append(o.got, got), append(o.want, want)
}

func dot(a, b []float64) (sum float64) {
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}
