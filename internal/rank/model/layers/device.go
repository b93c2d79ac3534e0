// Package layers holds what models are made of: linear layers, norms, embeddings, attention,
// feed-forward blocks. A layer knows how its weights are divided among tensor parallel ranks and by
// which names a checkpoint has them; a Loader makes it. It keeps its weights to itself: a model
// says which layer follows which, and no product, no loop over numbers and no sum over ranks is its
// own.
//
// Activations pass between layers as Tensors, [rows][width] of float32. All layers of a Loader
// share the memory of what they compute: a result is valid until the next layer of its kind runs.
// One goroutine at a time runs them, every rank of a tensor parallel group the same ones in the
// same order. The bits of a result do not depend on the number of ranks, on the rows beside it or
// on threads.
//
// Device is the line at which another processor goes: what lies in its memory is opaque on this
// side of it, and everything that is computed is computed by a call of it. compute/cpu is the first
// one; layerstest records the calls.
package layers

import (
	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/pool"
)

// Tensor is a matrix of activations in the memory of a device.
type Tensor = compute.Tensor

// Device is one rank's processor. One goroutine at a time calls its methods. Those that make dst
// give it its shape; it is no tensor that they read, but where they say so.
type Device interface {
	// Pad returns the batch that a step is to compute in the place of b, valid until the next call:
	// b, or with rows behind its own that change nothing, for a device that does again what it
	// recorded of a batch with as many.
	Pad(b *compute.Batch) *compute.Batch
	// Begin tells the device of a step's batch, which does not change until the step is over, and
	// of the place of each row's adapter, negative for none; nil where no row has one. Err
	// is the first error of what it was called for, whichever step that was: a device that has
	// failed computes nothing any more.
	Begin(b *compute.Batch, adapters []int32)
	Err() error
	// Run has pass compute the layers of the batch at hand. A device may record what it is asked
	// for meanwhile and do that again, without calling pass, for another batch of the same shape
	// and the same model, which of stands for: where alone says that pass waits for nothing but the
	// device.
	Run(of any, alone bool, pass func() error) error
	// Finish waits until all is computed that was asked for, and returns Err.
	Finish() error

	// Resize gives t a shape: its values are undefined. Extend adds rows and keeps those it has.
	Resize(t *Tensor, rows, width int)
	Extend(t *Tensor, rows int)
	// Vector is a copy of v in the device's memory.
	Vector(v []float32) compute.Memory
	// Table is a table of the source's rows. It may go on using the source's data.
	Table(s compute.Source) compute.Table
	// Rotary makes the angles of a rotary embedding of 2·len(frequencies) dimensions, whose cosines
	// and sines are multiplied by the scale of their position.
	Rotary(frequencies []float32, scale func(position int) float64,
		maxPositions int) compute.Rotary

	// Pack makes a weight of the stacked sources in the type that models run in. Its input features
	// are summed in chunks, 1, 2, 4 or 8, or a rank's share of 8. Sources that are not finite are a
	// *compute.NotFinite.
	Pack(chunks int, sources ...compute.Source) (compute.Weight, error)
	// PackInt8 makes one of bytes: round(w/scale), with a scale for each output feature.
	PackInt8(chunks int, sources ...compute.Source) (compute.Weight, error)
	// PackCodes makes one of stacked quantised rectangles.
	PackCodes(chunks int, sources ...compute.Codes) (compute.Weight, error)
	// Beside makes room for what adapters have beside a weight.
	Beside() compute.Beside
	// Join makes one weight of several, the output features of which follow each other.
	Join(weights ...compute.Weight) compute.Weight
	// Packed is what a weight is made of, valid until it is freed; FromPacked makes the weight
	// again of the same bytes, which stay the caller's and outlive it.
	Packed(w compute.Weight) ([]compute.Packed, error)
	FromPacked(parts []compute.Packed) (compute.Weight, error)
	// Retire frees a weight, but keeps its memory for the next ones; Reserve has the system find
	// memory for as many weights as those, unless some is kept.
	Retire(w compute.Weight)
	Reserve(like []compute.Weight) error

	// Copy makes dst the values of x, which has as many rows and columns; Pick makes it the given
	// rows of x, Zero makes x zero.
	Copy(dst, x compute.View)
	Pick(dst *Tensor, x compute.View, rows []int32)
	Zero(x *Tensor)
	// Add computes sum += x, AddBias adds a vector to each row, Scale multiplies by a factor,
	// ScaleRows each row by one of its own, [rows][1].
	Add(sum, x *Tensor)
	AddBias(x *Tensor, bias compute.Memory)
	Scale(x *Tensor, factor float32)
	ScaleRows(x, factors *Tensor)
	// Activate applies ReLU, ReLU2, GELU or GELUTanh to x, Sigmoid the logistic function; TanhCap
	// makes each v limit·tanh(v/limit). GatedProduct makes dst what a gating makes of the product
	// of x with w, plus bias unless that is nil, in which gate and up lie side by side: they may
	// lie in both. Only products with next read dst.
	Activate(a compute.Activation, x *Tensor)
	Sigmoid(x *Tensor)
	TanhCap(x *Tensor, limit float32)
	GatedProduct(g compute.Gating, dst, both *Tensor, w compute.Weight, x compute.View,
		bias compute.Memory, next compute.Weight)
	// Gate makes dst what a gating makes of both, in which gate and up lie side by side, and which
	// it may change.
	Gate(g compute.Gating, dst, both *Tensor)
	// RMSNorm and LayerNorm make dst the rows of x normalised, multiplied by a weight and, the
	// latter, with a bias added. dst of LayerNorm may be x.
	RMSNorm(dst, x *Tensor, weight compute.Memory, eps float32)
	LayerNorm(dst, x *Tensor, weight, bias compute.Memory, eps float32)
	// Squares makes dst the sums of squares of the heads that fill x. NormAcross multiplies x by a
	// weight and by the reciprocal of the root mean square of heads with the given sums of squares.
	Squares(dst, x compute.View, headDim int)
	NormAcross(x compute.View, weight compute.Memory, squares compute.View, headDim int,
		eps float32)
	// Heads normalises each head of those that fill x, unless weight is nil, and turns its first
	// dimensions by angles, unless they are nil.
	Heads(x compute.View, headDim int, weight compute.Memory, eps float32, angles *Tensor)
	// NewCache makes a KV cache. WriteCache stores the keys and values of k's and v's rows: row r
	// goes to slots[r], unless that is negative. Attention makes dst, which has its shape, what the
	// queries of q find.
	NewCache(shape compute.CacheShape) (compute.Cache, error)
	WriteCache(c compute.Cache, layer int, k, v compute.View, scales compute.CacheScales,
		slots []int32)
	// StoreHeads does to the heads of queries and of keys what Heads does, and stores keys and
	// values as WriteCache does.
	StoreHeads(c compute.Cache, layer int, q, k, v compute.View, args compute.HeadArgs,
		slots []int32)
	Attention(c compute.Cache, layer int, b *compute.Batch, args compute.AttentionArgs,
		dst *Tensor, q compute.View)
	// AttentionAmong makes dst, which has its shape, what the queries of q find among the rows of
	// their own sequence, whose keys and values are k and v: there is no cache. The rows of a
	// sequence lie side by side, from position 0 on, and all of them are there.
	AttentionAmong(b *compute.Batch, args compute.AttentionArgs, dst *Tensor,
		q, k, v compute.View)
	// Delta makes dst, which has its shape, what a gated delta rule makes of the rows of x,
	// DeltaArgs.Width wide, and of the states that the layer keeps, which are then those after the
	// rows; Scan makes it what a selective scan makes of them, ScanArgs.Width wide, Convolve what a
	// gated short convolution does. SigmoidGate multiplies x by the logistic function of gate,
	// which is as large, and changed.
	Delta(c compute.Cache, layer int, b *compute.Batch, args *compute.DeltaArgs, dst *Tensor,
		x compute.View)
	Scan(c compute.Cache, layer int, b *compute.Batch, args *compute.ScanArgs, dst *Tensor,
		x compute.View)
	Convolve(c compute.Cache, layer int, b *compute.Batch, args *compute.ConvolutionArgs,
		dst *Tensor, x compute.View)
	SigmoidGate(x *Tensor, gate compute.View)
	// Mix makes sum what this rank has of the weighted sums of what the experts of each row of x
	// make of it, in numbers that ranks can add to the same sums however they divide the experts
	// among them, and scores, the products of the router, undefined.
	// Mixed makes of what the ranks have added the sums themselves, [rows of x][its width], with
	// the biases of down projections, weighted.
	Mix(sum, x, scores *Tensor, mix *compute.Mixture)
	Mixed(sum *Tensor, mix *compute.Mixture)
	// ExpertRows are the rows that were sent to each expert, which Mix has counted in a load.
	ExpertRows(load *compute.ExpertLoad) []int64

	// Pool is the rank's threads on the host, for work of its own.
	Pool() *pool.Pool
}

// Planner says what a device takes of memory, before there is one.
type Planner interface {
	// PackedBytes and Int8Bytes are what Pack and PackInt8 take, at most; of the sources they look
	// at types and shapes.
	PackedBytes(chunks int, sources ...compute.Source) (int64, error)
	Int8Bytes(chunks int, sources ...compute.Source) (int64, error)
	// CodesBytes is what PackCodes takes, at most; of the sources it looks at types and shapes.
	CodesBytes(chunks int, sources ...compute.Codes) (int64, error)
	// RotaryBytes is what the angles take of positions below a bound, dim of each.
	RotaryBytes(dim, positions int) int64
	// MixtureWidth is how many float32 Mix computes in for each row.
	MixtureWidth(hidden, inner, chunks, experts, perToken int) int
	// VisitWidth is MixtureWidth and what else rows of so many places take of a device that they
	// visit, for each of at most so many of a place; 0 where rows travel.
	VisitWidth(mixture, hidden, experts, perToken, places, rows int) int
	// AmongBytes is what AttentionAmong takes for each row.
	AmongBytes(kvHeads, headDim int) int
	// ScratchPerThread is what each thread computes in.
	ScratchPerThread() int64
}
