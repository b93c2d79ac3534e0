package compute

import (
	"fmt"
	"iter"
	"unsafe"
)

// Memory is float32 values in the memory of a device: opaque to all but the device that made it.
type Memory interface {
	// Host are the values where this process can read them: the device's own memory where that is
	// the machine's. They are valid until the device writes to it.
	Host() []float32
	// Filled tells the device that Host's values have been written.
	Filled()
}

// Tensor is a matrix of activations, [Rows][Width] of float32, in the memory of a device, which
// gives it its shape (Resize) and computes with it. The zero value is empty.
type Tensor struct {
	Memory      Memory
	Rows, Width int
}

// Floats are the values, row after row (see Memory.Host).
func (t *Tensor) Floats() []float32 {
	if t.Memory == nil {
		return nil
	}
	return t.Memory.Host()[:t.Rows*t.Width]
}

// Bytes are the values as they lie in memory: what another process is sent, or to be filled with
// what it sent, after which the memory is told (Memory.Filled).
func (t *Tensor) Bytes() []byte {
	v := t.Floats()
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// Row is one of the rows, as Floats has it.
func (t *Tensor) Row(i int) []float32 { return t.Floats()[i*t.Width : (i+1)*t.Width] }

// All is the whole of the tensor.
func (t *Tensor) All() View { return t.Columns(0, t.Width) }

// Columns are width columns of all rows, the first of them from.
func (t *Tensor) Columns(from, width int) View {
	return View{Memory: t.Memory, From: from, Rows: t.Rows, Width: width, Stride: t.Width}
}

// Below is the tensor's rows from one on.
func (t *Tensor) Below(row int) View {
	return View{Memory: t.Memory, From: row * t.Width, Rows: t.Rows - row, Width: t.Width,
		Stride: t.Width}
}

// View is Rows rows of Width values of a memory, each Stride after the one before; From is where
// the first value is.
type View struct {
	Memory                    Memory
	From, Rows, Width, Stride int
}

// Columns are width columns of the view, the first of them from.
func (v View) Columns(from, width int) View {
	v.From += from
	v.Width = width
	return v
}

// Source is a rectangle of a matrix as a checkpoint has it: rows RowLo … RowHi-1 and columns ColLo
// … ColHi-1, of output by input features.
type Source struct {
	DType DType
	// Data is the whole matrix, row-major [Rows][Cols] unless strides say otherwise, little endian.
	// It is read while a weight is made of it, and needs no alignment.
	Data         []byte
	Rows, Cols   int
	RowLo, RowHi int
	ColLo, ColHi int
	// RowStride and ColStride are how many elements lie between the beginnings of rows, and between
	// those of a row; 0 is Cols, and 1. Data ends with the last element, or later.
	RowStride, ColStride int
}

// NotFinite says that a source has an element that is infinite or NaN, or is so in the type of the
// weight that is made of it.
type NotFinite struct {
	// Source is its number.
	Source int
	// Err says which element.
	Err error
}

// Error says which element; the source is the caller's to name.
func (e *NotFinite) Error() string { return e.Err.Error() }

// Unwrap returns which element it is.
func (e *NotFinite) Unwrap() error { return e.Err }

// Weight is a matrix [out][in] that a device multiplies by, whatever the scheme that it is stored
// in. Each element of a product is the chain of sums that its scheme prescribes: its bits depend on
// its row of x and on the weight alone.
type Weight interface {
	// Out is the number of output features, In that of input features.
	Out() int
	In() int
	// Product computes dst = x·Wᵀ + bias; bias may be nil.
	Product(dst, x View, bias Memory)
	// ProductAdded computes dst += x·Wᵀ, each sum complete before it is added.
	ProductAdded(dst, x View)
	// ProductChunks computes the sums of each chunk of the input features: dst has [chunks][rows]
	// rows.
	ProductChunks(dst *Tensor, x View)
	// Bytes is the memory it takes.
	Bytes() int
	// Free gives it back; the weight may not be used afterwards.
	Free()
}

// Product is Dst = X·Weightᵀ, or with Add Dst += X·Weightᵀ, each sum complete before it is added.
// In a list, one that is After reads what the last one before it that is not has made.
type Product struct {
	Weight     Weight
	Dst, X     View
	Add, After bool
}

// Compute computes the product by itself.
func (p *Product) Compute() {
	if p.Add {
		p.Weight.ProductAdded(p.Dst, p.X)
		return
	}
	p.Weight.Product(p.Dst, p.X, nil)
}

// Span is the keys (Values: false) or values of some heads of a rank, from the first to before the
// last, in a block of one of its layers.
type Span struct {
	Layer, Block int
	Values       bool
	From, To     int
}

// Cache is the KV cache of one rank, in a device's memory.
type Cache interface {
	// Read calls f with the bytes of spans, one after the other, cut anywhere; Fill has f write
	// all that it is given. The bytes of one engine are those of another, where dtype, block size
	// and instruction set are. What f is given is its own until it returns; its error ends the
	// call. Other errors are the device's: then what was to be filled is undefined.
	//
	// Any goroutine calls them, also beside a step. It sees to it that the step does not write to
	// what is read, nor read what is filled, and that steps that did are finished. When the call
	// has returned the device is done with the spans.
	Read(spans iter.Seq[Span], f func(b []byte) error) error
	Fill(spans iter.Seq[Span], f func(b []byte) error) error
	// Group is the group of a layer, by which it finds its part of a Batch.
	Group(layer int) int
	// CopyState makes the states that layers have in one place those that they have in another.
	CopyState(to, from int)
	// Free gives the memory back. The cache may not be used afterwards; a second call does nothing.
	Free() error
}

// AttentionArgs are the properties of an attention layer.
type AttentionArgs struct {
	// Heads and KVHeads are the numbers of query and of key/value heads; query head h reads
	// key/value head h/(Heads/KVHeads).
	Heads, KVHeads int
	// HeadDim is the dimension of a head.
	HeadDim int
	// Scale multiplies the scores, commonly 1/sqrt(HeadDim).
	Scale float32
	// Window, if positive, limits a row at position p to the positions p-Window+1 to p
	// (sliding-window attention), with Chunked to those from the last multiple of Window on.
	Window  int
	Chunked bool
	// Ahead is how many positions after its own a row attends to, as far as the batch has rows of
	// its sequence. Where it is positive, the batch has all of them.
	Ahead int
	// Cap, if positive, makes each scaled score s Cap·tanh(s/Cap) before the softmax.
	Cap float32
	// Sinks, unless nil, is a logit for each query head that takes part in its softmax as the score
	// of one more position would, with a value of zero. It is neither scaled nor capped.
	Sinks Memory
}

// HeadArgs say what becomes of the heads of queries and keys before they meet.
type HeadArgs struct {
	// Dim is the dimension of a head.
	Dim int
	// QueryNorm and KeyNorm are weights of an RMS norm over each head; nil for none.
	QueryNorm, KeyNorm Memory
	Eps                float32
	// Angles turn the first dimensions; nil for none.
	Angles *Tensor
	// Scales are those that keys and values are stored with.
	Scales CacheScales
}

// Recurrence is what layers share that keep a State of a request, which each of its rows reads and
// changes. Of each key head they keep Floats numbers: the last Kernel-1 inputs of a convolution,
// the earliest first, then of each of its value heads a matrix S, [KeyDim][ValueDim].
//
// A row's queries, keys and values are first summed with those of the Kernel-1 rows before, by the
// weights of their channel, and go through SiLU.
type Recurrence struct {
	// KeyHeads is the number of query and key heads, ValueHeads that of value heads: value head h
	// has key head h/(ValueHeads/KeyHeads).
	KeyHeads, ValueHeads int
	// KeyDim and ValueDim are the dimensions of a head.
	KeyDim, ValueDim int
	// Kernel is how many rows the convolution sums.
	Kernel int
	// Convolution is the weights, [KeyHeads][Kernel][Channels]: the last of Kernel is of the row
	// itself.
	Convolution Memory
	// Decay and Shift are of each value head.
	Decay, Shift Memory
}

// Group is how many value heads a key head has.
func (a *Recurrence) Group() int { return a.ValueHeads / a.KeyHeads }

// Channels is how many channels a key head has: its query, its key and its values.
func (a *Recurrence) Channels() int { return 2*a.KeyDim + a.Group()*a.ValueDim }

// Floats is how many float32 are kept of a key head.
func (a *Recurrence) Floats() int {
	return (a.Kernel-1)*a.Channels() + a.Group()*a.KeyDim*a.ValueDim
}

// DeltaArgs are the properties of a layer with a gated delta rule (Gated Delta Networks,
// https://arxiv.org/abs/2412.06464). After the convolution queries and keys are divided by their
// length. Then, with g = exp(Decay·softplus(a + Shift)) and β = σ(b) of a value head,
//
//	S ← g·S;  S ← S + k⊗(β·(v - kᵀS));  out = qᵀS/√KeyDim
//
// and out is normalised by its root mean square and multiplied by SiLU(z).
type DeltaArgs struct {
	Recurrence
	// Norm is the weight of the norm, ValueDim values, and Eps its epsilon.
	Norm Memory
	Eps  float32
}

// Width is how many numbers the layer reads of a row: queries, keys, values and z, each of all
// heads one after the other, then b and a of all value heads.
func (a *DeltaArgs) Width() int {
	return 2*a.KeyHeads*a.KeyDim + 2*a.ValueHeads*a.ValueDim + 2*a.ValueHeads
}

// ScanArgs are the properties of a layer with a selective scan (Mamba-2,
// https://arxiv.org/abs/2405.21060). Its C are the queries of a Recurrence, its B the keys and its
// x the values; a key head is some value heads that keep the inputs of one C and one B, which
// others of their group may keep as well. With Δ = softplus(StepScale·dt + Shift) of a value head,
// between Least and Most,
//
//	S ← exp(Decay·Δ)·S + B⊗(Δ·x);  out = (CᵀS + Skip·x)·SiLU(GateScale·z)
type ScanArgs struct {
	Recurrence
	// Groups is how many C and B there are: each is of KeyHeads/Groups key heads.
	Groups int
	// Bias is added to what the convolution sums, [KeyHeads][Channels]; nil for none.
	Bias Memory
	// Skip is of each value head.
	Skip                 Memory
	StepScale, GateScale float32
	Least, Most          float32
}

// Width is how many numbers the layer reads of a row: z and x of all value heads, B and C of all
// groups, and dt of all value heads.
func (a *ScanArgs) Width() int {
	return 2*a.ValueHeads*a.ValueDim + 2*a.Groups*a.KeyDim + a.ValueHeads
}

// Routing says how a mixture chooses the experts of a row by the scores of its router.
type Routing struct {
	// PerToken is how many experts a row has.
	PerToken int
	// Normalise says that the weights of a row's experts are divided by their sum.
	Normalise bool
	// Sigmoid says that scores are logistic functions of the router's products, not their softmax.
	Sigmoid bool
	// Correction is added to scores to choose experts by, and not to their weights; nil for none.
	Correction Memory
	// Groups, if more than 1, divides the experts in as many groups, of which TopGroups may be
	// chosen from: those whose Best best experts, one or two, have the greatest sum.
	Groups, TopGroups, Best int
	// Factor is what weights are multiplied by; 0 is 1. Factors has one more for each expert, nil
	// for none.
	Factor  float32
	Factors Memory
	// Inward says that the weights are logistic functions of the router's products, by which
	// experts are chosen, and multiply what experts read, not what they make of it.
	Inward bool
	// Near, if positive, says that experts are chosen one after the other. The weight of each is
	// its part of a softmax of the products that fall short of its own by at most Near of it, those
	// of experts chosen before it left out (SparseMixer, https://arxiv.org/abs/2409.12136).
	Near float32
}

// Expert is one of the feed-forward blocks of a mixture: gate and up side by side, or up alone,
// then down, which sums in chunks. Biases are nil for none.
type Expert struct {
	GateUp, Down         Weight
	GateUpBias, DownBias Memory
}

// Gating is what a gated block makes of gate and up: Activation(gate)·up, the activation being SiLU
// or GELUTanh. With a Limit it is GPT-OSS's: g·σ(1.702·g)·(u+1), g being the gate, at most Limit,
// and u up, between -Limit and Limit. Ungated, it is Activation(up), which is there alone.
type Gating struct {
	Activation Activation
	Limit      float32
	Ungated    bool
}

// String says the activation, and the limit.
func (g Gating) String() string {
	if g.Limit > 0 {
		return fmt.Sprintf("clamped at %g", g.Limit)
	}
	return g.Activation.String()
}

// Mixture is a mixture of experts. Chunks is in how many pieces experts sum their inner features.
// Load, unless nil, is what a device counts in. Held, unless nil, says that ranks hold whole
// experts: those that this one lacks have no weights. Places, unless it is 0, is of how many places
// Mix has rows, as many of each, of which the first ones are there (Split.Places); Place is this
// rank's. Device is what a device keeps of Experts and Held, to be nil again when they change.
type Mixture struct {
	Routing
	Gating
	Experts       []Expert
	Chunks        int
	Load          *ExpertLoad
	Held          *HeldExperts
	Places, Place int
	Device        any
}

// HeldExperts say which ranks hold each expert of a mixture, and for which rows: copies of one take
// turns.
type HeldExperts struct {
	// Share is which of the ranks this one is.
	Share int32
	// Shares of the copies of expert e are Table[Table[e]:Table[e+1]]; Memory is the table where a
	// device has it.
	Table  []int32
	Memory Memory
}

// Of is the share that computes an expert of a row, whose number in the step and position are turn
// together: neighbours take turns, and so do steps of a single row. Experts begin with other
// copies, so that the first rows of a step do not all go to the first ranks.
func (h *HeldExperts) Of(expert int32, turn uint64) int32 {
	shares := h.Table[h.Table[expert]:h.Table[expert+1]]
	return shares[(turn+uint64(expert))%uint64(len(shares))]
}

// ExpertLoad counts the rows that are sent to each expert of a mixture.
type ExpertLoad struct {
	// Rows is of each expert, where the host counts; else only as long. Memory is what another
	// device counts in, which has made it.
	Rows   []int64
	Memory Memory
	// Alone says that of a step's rows only those are counted that this rank computes alone
	// (Split.Rows): those that all ranks compute are counted by another one.
	Alone bool
}

// Rotary is a rotary embedding.
type Rotary interface {
	// Angles makes dst the angles of positions: of each half as many cosines as dimensions are
	// turned, then as many sines.
	Angles(dst *Tensor, positions []int32)
}

// Table is looked up by row.
type Table interface {
	// Lookup makes dst the rows of ids, to each of which offset is added.
	Lookup(dst *Tensor, ids []int32, offset int)
	// Free gives the device's memory back; the table may not be used afterwards.
	Free()
}
