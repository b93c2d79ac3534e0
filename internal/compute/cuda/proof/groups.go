package proof

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// groupCases are of what warp groups compute: products and attention of many rows, of the same
// references as those of other kernels.
func groupCases(dtype compute.DType) (list []Case) {
	product, attend64 := kernels.GemmGroupsBF16, kernels.AttendGroups64BF16
	attend128, compared := kernels.AttendGroups128BF16, kernels.CompareProductsBF16
	if dtype == compute.Float16 {
		product, attend64 = kernels.GemmGroupsF16, kernels.AttendGroups64F16
		attend128, compared = kernels.AttendGroups128F16, kernels.CompareProductsF16
	}
	list = append(list, Case{Name: "wgmma and mma add alike", Kernels: []kernels.ID{compared},
		groups: true, run: func(s *subject) {
			differing, _, err := s.CompareProducts()
			s.check(err)
			s.report("sums with other bits", []float32{float32(differing)}, []float64{0}, exactly)
		}})
	product256 := product + kernels.GemmGroups256BF16 - kernels.GemmGroupsBF16
	tree := product + kernels.GemmGroupsTreeBF16 - kernels.GemmGroupsBF16
	for _, p := range []struct {
		productShape
		// few is how many multiprocessors there are to be, for blocks that compute several tiles.
		few    int
		kernel kernels.ID
	}{
		{productShape{70, 130, 336, 1, 8, Small}, 1, product},
		{productShape{66, 24, 256, 8, 0, Small}, 3, product},
		{productShape{129, 140, 208, 1, 0, Small}, 1, product256},
		{productShape{66, 130, 512, 8, 0, Small}, 1, tree},
		{productShape{130, 24, 272, 1, 0, Full}, 132, product},
		{productShape{300, 300, 656, 1, 8, Full}, 3, product256},
		{productShape{200, 136, 640, 2, 0, Full}, 2, tree},
		{productShape{129, 257, 1024, 4, 8, Full}, 2, tree},
		{productShape{2048, 4096, 4096, 8, 0, Large}, 132, tree},
		{productShape{257, 24576, 4096, 1, 0, Large}, 132, product256},
	} {
		list = append(list, Case{Name: fmt.Sprintf("product by warp groups, %d x %d x %d in %d, "+
			"from %d, by %d", p.rows, p.out, p.in, p.chunks, p.from, p.few),
			Kernels: []kernels.ID{p.kernel}, cost: p.cost, groups: true, run: func(s *subject) {
				defer s.UseMultiprocessors(s.UseMultiprocessors(p.few))
				multiplied(s, p.productShape)
			}})
	}
	// A warp group has fewer rows than the other, or none.
	far := []sequence{{0, 40}, {130, 70}, {300, 31}}
	for _, a := range []attentionShape{
		// All blocks are whole, or not.
		{args: plain(4, 2, 64), sequences: []sequence{{64, 64}}},
		{args: plain(2, 2, 128), sequences: []sequence{{0, 64}}},
		{args: plain(4, 2, 64), sequences: far, cost: Full},
		{args: plain(2, 2, 128), sequences: []sequence{{50, 17}}, cost: Full},
		{args: windowed(plain(4, 2, 64), 70), sequences: far, cost: Full},
		{args: windowed(plain(2, 2, 64), 1), sinks: true, sequences: far, cost: Full},
		{args: capped(plain(3, 1, 128)), sinks: true, sequences: far, cost: Full},
		{args: plain(16, 1, 128), sequences: []sequence{{600, 20}}, cost: Full},
		{args: plain(32, 8, 128), sequences: []sequence{{0, 2000}}, cost: Large},
		{args: plain(16, 8, 128), sequences: []sequence{{6000, 300}}, cost: Large},
	} {
		k, tolerance := attend64, 4e-3 // as attendCase has it
		if a.args.HeadDim == 128 {
			k = attend128
		}
		if dtype == compute.Float16 {
			tolerance = 5e-4
		}
		list = append(list, Case{Name: a.attendName() + ", by warp groups",
			Kernels: []kernels.ID{k}, cost: a.cost, groups: true, run: func(s *subject) {
				s.attention(&a, segmented(segmentPositions, dtype), tolerance)
			}})
	}
	return list
}
