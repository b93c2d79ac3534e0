package proof

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// groupCases are of what warp groups compute: products and attention of many rows, of the same
// references as those of other kernels.
func groupCases() (list []Case) {
	product, product256 := kernels.GemmGroupsBF16, kernels.GemmGroups256BF16
	tree := kernels.GemmGroupsTreeBF16
	list = append(list, Case{Name: "wgmma and mma add alike",
		Kernels: []kernels.ID{kernels.CompareProductsBF16}, groups: true, run: func(s *subject) {
			differing, _, err := s.CompareProducts()
			s.check(err)
			s.report("sums with other bits", []float32{float32(differing)}, []float64{0}, exactly)
		}})
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
	list = append(list, codesByGroups()...)
	list = append(list, expertsByGroups()...)
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
		k := kernels.AttendGroups64BF16
		if a.args.HeadDim == 128 {
			k = kernels.AttendGroups128BF16
		}
		list = append(list, Case{Name: a.attendName() + ", by warp groups",
			Kernels: []kernels.ID{k}, cost: a.cost, groups: true,
			run: func(s *subject) { s.inSegments(&a, segmentPositions) }})
	}
	return list
}

// codesByGroups are products of quantised weights: of each form that codes have, groups that end
// within steps and go on over them, and chunks that blocks add or leave apart.
func codesByGroups() (list []Case) {
	for _, p := range []struct {
		codesShape
		few int // multiprocessors
	}{
		{codesShape{kind: compute.Code4, group: 32, narrow: true, rows: 66, out: 40, in: 160,
			of: 160, chunks: 1, cost: Small}, 1},
		{codesShape{kind: compute.Code4, group: 64, offsets: true, rows: 70, out: 34, in: 512,
			of: 512, chunks: 4, cost: Small}, 1},
		{codesShape{kind: compute.Code4, numbers: microscaling, group: 32, rows: 129, out: 24,
			in: 192, of: 192, chunks: 2, cost: Small}, 1},
		{codesShape{kind: compute.Code4, numbers: anything, group: 128, rows: 66, out: 130,
			from: 64, in: 320, of: 384, chunks: 1, cost: Small}, 1},
		{codesShape{kind: compute.Code4, numbers: anything, group: 96, offsets: true, narrow: true,
			order: true, rows: 66, out: 20, in: 384, of: 384, chunks: 4, cost: Small}, 1},
		{codesShape{kind: compute.CodeE4M3, group: 128, rows: 66, out: 130, in: 320, of: 320,
			chunks: 1, cost: Small}, 1},
		{codesShape{kind: compute.Code8, rows: 65, out: 16, in: 768, of: 768, chunks: 8,
			cost: Small}, 1},
		{codesShape{kind: compute.Code8, group: 32, offsets: true, narrow: true, rows: 140,
			out: 33, in: 96, of: 96, chunks: 1, cost: Small}, 1},
		{codesShape{kind: compute.Code4, group: 128, rows: 130, out: 136, in: 1024, of: 1024,
			chunks: 2, cost: Full}, 1},
		{codesShape{kind: compute.Code4, numbers: microscaling, group: 32, rows: 200, out: 257,
			in: 640, of: 640, chunks: 4, cost: Full}, 3},
		{codesShape{kind: compute.CodeE4M3, rows: 129, out: 140, in: 1536, of: 1536, chunks: 8,
			cost: Full}, 2},
		{codesShape{kind: compute.Code8, group: 64, offsets: true, rows: 66, out: 150, from: 512,
			in: 512, of: 1024, chunks: 4, cost: Full}, 1},
		{codesShape{kind: compute.Code4, group: 128, narrow: true, rows: 2048, out: 4096,
			in: 12288, of: 12288, chunks: 8, cost: Large}, 132},
		{codesShape{kind: compute.Code4, group: 128, offsets: true, narrow: true, rows: 257,
			out: 12288, in: 4096, of: 4096, chunks: 1, cost: Large}, 132},
		{codesShape{kind: compute.CodeE4M3, group: 128, rows: 2048, out: 6144, in: 4096, of: 4096,
			chunks: 1, cost: Large}, 132},
	} {
		k := kernels.GemmGroupsBF16Codes4
		if p.kind != compute.Code4 {
			k = kernels.GemmGroupsBF16Codes8
		}
		about := []kernels.ID{k}
		if p.offsets {
			about = append(about, kernels.SumInputsBF16)
		}
		list = append(list, Case{Name: fmt.Sprintf("%s, by warp groups, by %d", p.name(), p.few),
			Kernels: about, cost: p.cost, groups: true, run: func(s *subject) {
				defer s.UseMultiprocessors(s.UseMultiprocessors(p.few))
				codes(s, p.codesShape)
			}})
	}
	return list
}

// expertsByGroups are mixtures whose experts have many rows.
func expertsByGroups() (list []Case) {
	plain, codes4 := kernels.GemmGroupsBF16, kernels.GemmGroupsBF16Codes4
	two, eight := compute.Routing{PerToken: 2}, compute.Routing{PerToken: 8, Normalise: true}
	for _, p := range []struct {
		mixtureShape
		few int // multiprocessors
	}{
		{mixtureShape{"plain", two, 70, 40, 128, 3, true, 0, 2, Small}, 1},
		{mixtureShape{"codes", two, 70, 96, 256, 3, false, 32, 2, Small}, 1},
		{mixtureShape{"plain", eight, 70, 72, 256, 9, false, 0, 0, Full}, 132},
		{mixtureShape{"128 experts", eight, 2048, 2048, 768, 128, false, 0, 0, Large}, 132},
		{mixtureShape{"128 experts, codes", eight, 2048, 2048, 768, 128, false, 32, 0, Large}, 132},
	} {
		k := plain
		if p.group != 0 {
			k = codes4
		}
		c := mixtureCase(p.mixtureShape)
		run := c.run
		c.Name, c.Kernels, c.groups = c.Name+", by warp groups", []kernels.ID{k}, true
		c.run = func(s *subject) {
			defer s.UseMultiprocessors(s.UseMultiprocessors(p.few))
			run(s)
		}
		list = append(list, c)
	}
	return list
}
