package cuda

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// A block computes so many channels of a sequence, in so many warps at most.
const (
	convolvedChannels = 32
	mostConvolving    = 32
)

// Convolve makes dst what a gated short convolution makes of the rows of x (see
// compute.ConvolutionArgs).
func (d *Device) Convolve(c compute.Cache, layer int, b *compute.Batch,
	args *compute.ConvolutionArgs, dst *compute.Tensor, x compute.View) {
	y, m := c.(*cache), of(dst.Memory)
	m.written()
	n := d.step.shape.sequences
	warps := min(ceil(dst.Rows, n), mostConvolving)
	launch(d, kernels.Convolve,
		[3]uint32{uint32(ceil(args.Channels, convolvedChannels)), uint32(n), uint32(args.Parts)},
		[3]uint32{convolvedChannels, uint32(warps), 1}, 0, kernels.ConvolutionParams{X: first(x),
			Y: m.values, Half: m.half(true), States: y.layers[layer], Runs: d.step.runsAt,
			StateOf: d.integers(b.States), Sequences: d.integers(b.Seq),
			Positions: d.integers(b.Position), Kept: d.integers(b.Kept),
			Weights: at(args.Weights), Bias: at(args.Bias),
			StateSize: uint64(y.shape.Layers[layer].StateBytes() / 4), LDX: int32(x.Stride),
			Channels: int32(args.Out()), Part: int32(args.Channels),
			Kernel: int32(args.Kernel), Type: d.half()})
}
