package cuda

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// scanBlock is how many threads compute a key head of a sequence.
const scanBlock = 128

// Scan makes dst what a selective scan makes of the rows of x (see compute.ScanArgs).
func (d *Device) Scan(c compute.Cache, layer int, b *compute.Batch, args *compute.ScanArgs,
	dst *compute.Tensor, x compute.View) {
	y, m := c.(*cache), of(dst.Memory)
	m.written()
	launch(d, kernels.Scan, [3]uint32{uint32(args.KeyHeads), uint32(d.step.shape.sequences), 1},
		[3]uint32{scanBlock, 1, 1}, 4*(args.Channels()+2*args.Group()), kernels.ScanParams{
			X: first(x), Y: m.values, Half: m.half(true), States: y.layers[layer],
			Runs: d.step.runsAt, StateOf: d.integers(b.States), Sequences: d.integers(b.Seq),
			Positions: d.integers(b.Position), Kept: d.integers(b.Kept),
			Convolution: at(args.Convolution), Bias: at(args.Bias), Decay: at(args.Decay),
			Shift: at(args.Shift), Skip: at(args.Skip),
			StateSize: uint64(y.shape.Layers[layer].StateBytes() / 4), LDX: int32(x.Stride),
			KeyHeads: int32(args.KeyHeads), ValueHeads: int32(args.ValueHeads),
			KeyDim: int32(args.KeyDim), ValueDim: int32(args.ValueDim),
			Kernel: int32(args.Kernel), Groups: int32(args.Groups), Type: d.half(),
			StepScale: args.StepScale, GateScale: args.GateScale, Least: args.Least,
			Most: args.Most})
}
