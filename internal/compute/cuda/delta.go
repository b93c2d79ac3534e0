package cuda

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// deltaBlock is how many threads compute a key head of a sequence.
const deltaBlock = 128

// Delta makes dst what a gated delta rule makes of the rows of x (see compute.DeltaArgs).
func (d *Device) Delta(c compute.Cache, layer int, b *compute.Batch, args *compute.DeltaArgs,
	dst *compute.Tensor, x compute.View) {
	y, m := c.(*cache), of(dst.Memory)
	m.written()
	launch(d, kernels.Delta, [3]uint32{uint32(args.KeyHeads), uint32(d.step.shape.sequences), 1},
		[3]uint32{deltaBlock, 1, 1}, 4*args.Channels(), kernels.DeltaParams{X: first(x),
			Y: m.values, Half: m.half(true), States: y.layers[layer], Runs: d.step.runsAt,
			StateOf: d.integers(b.States), Sequences: d.integers(b.Seq),
			Positions: d.integers(b.Position), Kept: d.integers(b.Kept),
			Convolution: at(args.Convolution), Decay: at(args.Decay),
			Shift: at(args.Shift), Norm: at(args.Norm),
			StateSize: uint64(y.shape.Layers[layer].StateBytes() / 4), LDX: int32(x.Stride),
			KeyHeads: int32(args.KeyHeads), ValueHeads: int32(args.ValueHeads),
			KeyDim: int32(args.KeyDim), ValueDim: int32(args.ValueDim),
			Kernel: int32(args.Kernel), Type: d.half(), Eps: args.Eps})
}
