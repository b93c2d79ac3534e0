package proof

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// fusedCases are of kernels that do the work of two, where one call follows the other.
func fusedCases() (list []Case) {
	for _, n := range []struct {
		rows, width, in, chunks int
		cost                    Cost
	}{{3, 300, 88, 8, Small}, {70, 40, 48, 2, Full}, {1, 1500, 32, 8, Full}, {2, 8452, 8, 4, Full},
		{2, 602, 16, 8, Full}, {2, 520, 16, 2, Full}, {2, 520, 16, 1, Full},
		{256, 4096, 1024, 8, Large}} {
		list = append(list, Case{Name: fmt.Sprintf("product in %d, added and normalised, %d x %d",
			n.chunks, n.rows, n.width), Kernels: []kernels.ID{kernels.AddNorm}, cost: n.cost,
			run: func(s *subject) { addNorm(s, n.rows, n.width, n.in, n.chunks) }})
	}
	for _, h := range []headShape{{5, 3, 16, 12, true, Small}, {3, 4, 128, 128, true, Full},
		{4, 2, 64, 0, false, Full}, {9, 1, 80, 32, false, Full}, {64, 32, 128, 128, true, Large}} {
		list = append(list, Case{Name: "heads stored, " + h.String(), cost: h.cost,
			Kernels: []kernels.ID{kernels.StoreHeads},
			run:     func(s *subject) { storeHeads(s, h, s.dtype) }})
	}
	for _, dtype := range []compute.DType{compute.Int8, compute.E4M3} {
		h := headShape{5, 3, 48, 12, true, Small}
		list = append(list, Case{Name: fmt.Sprintf("heads stored as %v, %v", dtype, h),
			Kernels: []kernels.ID{kernels.StoreHeadsCodes},
			run:     func(s *subject) { storeHeads(s, h, dtype) }})
	}
	return list
}

// addNorm adds a product, which may be in chunks, to x and normalises that: once at once, once with
// another such product in between, which must not change the first.
func addNorm(s *subject, rows, width, in, chunks int) {
	const eps = 1e-5
	w, numbers := s.weight(chunks, width, in)
	x, a := s.tensor(rows, width)
	other, b := s.tensor(rows, width)
	h, v := s.tensor(rows, in)
	weight, norm := s.vector(width)
	y, z, apart := s.poisoned(rows, width), s.poisoned(rows, width), s.poisoned(rows, width)
	// A product that is no sum of chunks is added as another tensor is.
	whole := s.poisoned(rows, width)
	add := func(to *compute.Tensor) {
		if chunks > 1 {
			w.ProductAdded(to.All(), h.All())
			return
		}
		w.Product(whole.All(), h.All(), nil)
		s.Add(to, whole)
	}
	add(x)
	s.RMSNorm(y, x, weight, eps)
	s.RMSNorm(apart, x, weight, eps)
	sumOnce := append([]float32(nil), x.Floats()...)
	add(x)
	add(other)
	s.RMSNorm(z, x, weight, eps)

	product := make([]float64, 0, len(a))
	for r := range rows {
		row := s.roundedAll(v[r*in : (r+1)*in])
		for f := range width {
			product = append(product, dot(row, numbers[f*in:(f+1)*in]))
		}
	}
	plus := func(from []float32, times float64) []float64 {
		sum := doubles(from)
		for i, p := range product {
			sum[i] += times * p
		}
		return sum
	}
	tolerance := productTolerance(in)
	s.report("sum", sumOnce, plus(a, 1), tolerance)
	s.report("norm", y.Floats(), normalised(plus(a, 1), norm, eps), tolerance)
	s.report("norm apart", apart.Floats(), doubles(y.Floats()), exactly)
	s.report("sum of two", x.Floats(), plus(a, 2), tolerance)
	s.report("norm of two", z.Floats(), normalised(plus(a, 2), norm, eps), tolerance)
	s.report("the other sum", other.Floats(), plus(b, 1), tolerance)
	if width <= mostIdentity {
		s.halves("norm", y)
	}
}

// storeHeads normalises and turns the heads of queries and keys, and stores keys and values. What a
// cache has is rounded, so a number may be its neighbour.
func storeHeads(s *subject, h headShape, dtype compute.DType) {
	const eps, kv, before = 1e-6, 2, 3
	layer := compute.CacheLayer{Heads: kv, Dim: h.dim}
	blocks := h.rows/blockSize + 2
	cache, err := s.NewCache(compute.CacheShape{Layers: []compute.CacheLayer{layer, layer},
		Blocks: blocks, BlockSize: blockSize, DType: dtype})
	if err != nil {
		s.check(err)
		return
	}
	defer cache.Free()
	inner, outer := h.heads*h.dim, kv*h.dim
	width := before + inner + 2*outer
	x, a := s.tensor(h.rows, width)
	args := compute.HeadArgs{Dim: h.dim, Eps: eps}
	var queryNorm, keyNorm []float32
	if h.norm {
		args.QueryNorm, queryNorm = s.vector(h.dim)
		args.KeyNorm, keyNorm = s.vector(h.dim)
	}
	var turns []float64
	if h.turned > 0 {
		args.Angles, turns = s.angles(positionsOf(h.rows), frequenciesOf(h.turned/2), 1)
	}
	slots := make([]int32, h.rows)
	for i := range slots {
		slots[i] = int32(blocks*blockSize - 1 - i)
	}
	slots[0] = -1
	s.StoreHeads(cache, 1, x.Columns(before, inner), x.Columns(before+inner, outer),
		x.Columns(before+inner+outer, outer), args, slots)

	want := doubles(a)
	for r := range h.rows {
		row := want[r*width:]
		for n := range h.heads {
			h.compute(row[before+n*h.dim:][:h.dim], queryNorm, turns, r, eps)
		}
		for n := range kv {
			h.compute(row[before+inner+n*h.dim:][:h.dim], keyNorm, turns, r, eps)
		}
	}
	s.report("queries", columns(x.Floats(), width, before, inner),
		columns(want, width, before, inner), sums)
	keys := make([]float32, 0, h.rows*outer)
	for _, v := range columns(want, width, before+inner, outer) {
		keys = append(keys, float32(v))
	}
	got, have := s.readCache(cache, &layer, dtype, false, slots, keys)
	s.report("keys", got, have, neighbour(dtype))
	got, have = s.readCache(cache, &layer, dtype, true, slots,
		columns(a, width, before+inner+outer, outer))
	tolerance := float64(exactly)
	if dtype.Scaled() {
		tolerance = rounding
	}
	s.report("values", got, have, tolerance)
}

// neighbour is how far a number of a cache is from the next, relative to the largest, at most.
func neighbour(dtype compute.DType) float64 {
	switch dtype {
	case compute.Float16:
		return 1.0 / (1 << 10)
	case compute.E4M3:
		return 1.0 / (1 << 4)
	case compute.Int8:
		return 1.0 / 127
	}
	return 1.0 / (1 << 7)
}
