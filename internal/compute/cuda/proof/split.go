package proof

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// splitCases are of the attention of split.cu: over codes, of heads of any size, of many heads that
// share keys, and over latents.
func splitCases() (list []Case) {
	decoding := []sequence{{300, 1}, {5, 1}}
	more := []sequence{{40, 40}, {530, 1}, {0, 1}}
	for _, a := range []attentionShape{
		{args: plain(4, 2, 128), cache: compute.Int8, sequences: decoding},
		{args: plain(4, 2, 64), cache: compute.E4M3, sequences: []sequence{{50, 17}, {3, 2}}},
		{args: plain(4, 2, 256), sequences: []sequence{{270, 1}, {0, 17}}},
		{args: plain(2, 1, 80), sequences: []sequence{{300, 1}, {0, 17}}},
		{args: plain(3, 1, 80), cache: compute.Int8, sequences: []sequence{{300, 1}, {0, 17}}},
		{args: plain(20, 1, 576), values: 512, sequences: []sequence{{66, 1}}},
		{args: plain(6, 1, 576), values: 512, cache: compute.E4M3, sequences: []sequence{{66, 3}}},

		{args: plain(4, 2, 128), cache: compute.E4M3, sequences: long, cost: Full},
		{args: plain(16, 1, 64), cache: compute.Int8, sequences: more, cost: Full},
		{args: windowed(plain(5, 1, 64), 150), cache: compute.Int8, sequences: more, cost: Full},
		{args: windowed(plain(2, 2, 128), 1), sinks: true, cache: compute.E4M3, sequences: long,
			cost: Full},
		{args: capped(plain(3, 1, 256)), sinks: true, cache: compute.Int8, sequences: more,
			cost: Full},
		{args: capped(windowed(plain(4, 2, 256), 100)), sequences: long, cost: Full},
		{args: plain(40, 1, 64), sequences: short, cost: Full},
		{args: plain(4, 2, 16), sequences: more, cost: Full},
		{args: plain(2, 1, 18), sequences: short, cost: Full},
		{args: plain(2, 1, 34), cache: compute.E4M3, sequences: short, cost: Full},
		{args: windowed(plain(4, 2, 96), 100), sinks: true, sequences: long, cost: Full},
		{args: capped(plain(3, 1, 112)), cache: compute.Int8, sequences: long, cost: Full},
		{args: plain(2, 2, 130), sequences: more, cost: Full},
		{args: plain(5, 1, 192), sequences: more, cost: Full},
		{args: windowed(plain(2, 1, 192), 9), cache: compute.E4M3, sequences: more, cost: Full},
		{args: plain(2, 1, 240), cache: compute.Int8, sequences: short, cost: Full},
		{args: plain(2, 1, 576), values: 512, sequences: []sequence{{530, 1}, {3, 20}}, cost: Full},
		{args: plain(33, 1, 576), values: 512, cache: compute.Int8,
			sequences: []sequence{{530, 1}, {70, 2}}, cost: Full},

		{args: plain(32, 8, 128), cache: compute.E4M3, sequences: []sequence{{6000, 1}, {1030, 1},
			{0, 300}}, cost: Large},
		{args: plain(16, 8, 256), sequences: []sequence{{3000, 1}, {700, 90}}, cost: Large},
		{args: plain(32, 32, 96), sequences: []sequence{{3000, 1}, {700, 90}}, cost: Large},
		{args: plain(16, 8, 192), cache: compute.E4M3, sequences: []sequence{{3000, 1}, {700, 90}},
			cost: Large},
		{args: plain(128, 1, 576), values: 512, sequences: []sequence{{5000, 1}, {700, 9}},
			cost: Large},
		{args: plain(128, 1, 576), values: 512, cache: compute.E4M3,
			sequences: []sequence{{5000, 1}, {700, 9}}, cost: Large},
	} {
		list = append(list, a.splitCase())
	}
	return list
}

func (a attentionShape) splitCase() Case {
	kernel, positions := kernels.SplitBF16, 256
	if a.values > 0 {
		kernel, positions = kernels.SplitLatentBF16, 512
	}
	if a.cache.Scaled() {
		kernel += kernels.SplitCodesBF16 - kernels.SplitBF16
	}
	return Case{Name: a.attendName(), Kernels: []kernels.ID{kernel}, cost: a.cost,
		run: func(s *subject) { s.inSegments(&a, positions) }}
}
