package cuda

import (
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// What blocks of codes.sm_90a.cu are: at most so many stages of the ring, the input features after
// which groups may end, and the shared memory of a block beside stages and sums that wait.
const (
	codesStages = 8
	codesPair   = 32
	codesStatic = 4 << 10
)

// codesKernel is the kernel for many rows of codes.
func codesKernel(bits int) kernels.ID {
	if bits == 8 {
		return kernels.GemmGroupsBF16Codes8
	}
	return kernels.GemmGroupsBF16Codes4
}

// codesStages is how many stages a block has, and its dynamic shared memory: in a stage are codes,
// inputs, and scales, offsets and sums of inputs of two groups; whole blocks have sums that wait.
func (d *Device) codesStages(bits int, whole bool) (stages, shared int) {
	step := tileIn*(groupFeatures*bits/8+2*groupRows) + 2*4*(2*groupFeatures+groupRows)
	sums := 0
	if whole {
		sums = 4 * groupFeatures * groupRows
	}
	stages = min(codesStages, (d.info.Shared-codesStatic-sums)/step)
	return stages, stages*step + sums
}

// byPairs says whether warp groups take the codes of a weight, whose chunks have so many input
// features: groups end with pairs of products, and experts have no offsets.
func (c *coded) byPairs(padded int, experts bool) bool {
	return c.group%codesPair == 0 && c.lead%codesPair == 0 && padded%codesPair == 0 &&
		!(experts && c.offset != 0)
}

// launchCodes enqueues a product of codes and inputs that lie ld apart.
func (w *weight) launchCodes(g *gemm, x driver.Ptr, ld int, grid [3]uint32,
	p kernels.CodesGroupsParams) {
	d, c := w.d, w.codes
	stages, shared := d.codesStages(c.bits(), g.whole)
	p.Q, p.Stages, p.Whole = c.params(d.dtype), int32(stages), flag(g.whole)
	p.Q.Scales = g.scales
	if c.offset != 0 {
		p.Sums, p.Ldsums, p.Lines = w.sumInputs(g, x, ld)
	}
	launch(d, d.typed(codesKernel(c.bits())), grid, [3]uint32{groupThreads, 1, 1}, shared, p)
}

// Blocks of sum_inputs have so many threads, for so many rows.
const (
	sumThreads = 128
	sumRows    = 32
)

// sumInputs sums the inputs of each group of a weight, by chunk: [chunks][lines][ld] of rows.
func (w *weight) sumInputs(g *gemm, x driver.Ptr, ldx int) (y driver.Ptr, ld, lines int32) {
	d, c := w.d, w.codes
	for chunk := range w.chunks {
		from := c.lead + chunk*w.padded
		lines = max(lines, int32((from+w.padded-1)/c.group-from/c.group+1))
	}
	ld = int32(ceil(g.rows, groupRows) * groupRows)
	y = d.inputSums.grow(d, 4*w.chunks*int(lines)*int(ld))
	launch(d, d.typed(kernels.SumInputsBF16),
		[3]uint32{uint32(ceil(int(ld), sumRows)), uint32(lines), uint32(w.chunks)},
		[3]uint32{sumThreads, 1, 1}, 0, kernels.SumInputsParams{X: x, Y: y, Rows: int32(g.rows),
			Kpad: int32(w.padded), Chunks: int32(w.chunks), LDX: int32(ldx), LDY: ld, Lines: lines,
			Q: c.params(d.dtype)})
	return y, ld, lines
}
