package compute

// ConvolutionArgs are the properties of a layer with a gated short convolution (LFM2,
// https://arxiv.org/abs/2511.23404). Of each part of its channels it keeps a State of Floats
// numbers: the last Kernel-1 inputs of the convolution, the earliest first.
//
// A row has an element of b, of c and of x for every channel. Its input is b·x, and
//
//	out = c·(Σ w·input + bias)
//
// the sum being over the inputs of the row and of the Kernel-1 rows before.
type ConvolutionArgs struct {
	// Parts is in how many parts of Channels each the channels lie.
	Parts, Channels int
	// Kernel is how many rows the convolution sums.
	Kernel int
	// Weights are [Parts][Kernel][Channels]: the last of Kernel is of the row itself.
	Weights Memory
	// Bias is of each channel; nil for none.
	Bias Memory
}

// Floats is how many float32 are kept of a part.
func (a *ConvolutionArgs) Floats() int { return (a.Kernel - 1) * a.Channels }

// Out is how many channels there are. The layer reads b of all of them, then c, then x.
func (a *ConvolutionArgs) Out() int { return a.Parts * a.Channels }
