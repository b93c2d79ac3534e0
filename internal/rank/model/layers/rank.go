package layers

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/status"
)

// Chunks is the fixed number of pieces in which the sums of row-parallel matrices are cut, so that
// any tensor parallel size that divides it gives the same bits.
const Chunks = 8

// Comm is what layers need of their tensor parallel group.
type Comm interface {
	// Begin is called before the first exchange of a step; enqueued says that the step's exchanges
	// are left to the device, so that no host waits for them.
	Begin() (enqueued bool, err error)
	// AllReduce replaces x by its sum over the ranks, added as a balanced binary tree over ranks.
	AllReduce(x *Tensor) error
	// Gather concatenates the rows of x of all ranks, in rank order, into dst on root, which has as
	// many; it is nil elsewhere.
	Gather(dst, x *Tensor, root int) error
}

// HostGroup is ranks that exchange numbers of the machines' own memory, as Comm and RowComm do.
type HostGroup interface {
	AllReduce(x []float32) error
	AllGather(dst, x []float32) error
	Gather(dst, x []float32, root int) error
	AllToAllV(dst, x []float32, counts, got []int, meanwhile func()) ([]float32, error)
	AllToAll(dst, x []float32, counts, lengths []int) error
}

// OnHost has ranks exchange tensors through the memory of their machines.
type OnHost struct{ Group HostGroup }

// Begin implements Comm: each exchange compares what the ranks are about to do.
func (c OnHost) Begin() (enqueued bool, err error) { return false, nil }

// AllReduce implements Comm.
func (c OnHost) AllReduce(x *Tensor) error {
	err := c.Group.AllReduce(x.Floats())
	x.Memory.Filled()
	return err
}

// AllGather implements RowComm.
func (c OnHost) AllGather(dst, x *Tensor) error {
	err := c.Group.AllGather(dst.Floats(), x.Floats())
	dst.Memory.Filled()
	return err
}

// Gather implements both.
func (c OnHost) Gather(dst, x *Tensor, root int) error {
	if dst == nil {
		return c.Group.Gather(nil, x.Floats(), root)
	}
	err := c.Group.Gather(dst.Floats(), x.Floats(), root)
	dst.Memory.Filled()
	return err
}

// AllToAllV implements RowComm.
func (c OnHost) AllToAllV(dst, x []float32, counts, got []int,
	meanwhile func()) ([]float32, error) {
	return c.Group.AllToAllV(dst, x, counts, got, meanwhile)
}

// AllToAll implements RowComm.
func (c OnHost) AllToAll(dst, x []float32, counts, lengths []int) error {
	return c.Group.AllToAll(dst, x, counts, lengths)
}

// RowGroup is a rank's place among those that divide rows among them: of long prompts, or of
// requests.
type RowGroup struct {
	// Rank is the rank within the Size ranks.
	Rank, Size int
	Comm       RowComm
	// Visits, unless it is nil, is how their devices have the rows of all of them visit each rank's
	// experts; else rows travel, as many as there are (see Traveller).
	Visits VisitComm
}

// VisitComm is what layers need of the ranks of several places whose devices exchange rows.
type VisitComm interface {
	// Begin is Comm.Begin, Gather Comm.Gather.
	Begin() (enqueued bool, err error)
	Gather(dst, x *Tensor, root int) error
	// GatherRows makes dst the rows of x, of a width, of all ranks, with room for as many of each.
	GatherRows(dst, x *Tensor, width int) error
	// ScatterSums makes dst the sums of so many rows of this rank: parts are what Mix made here of
	// the rows of all. cut says that sums of other ranks are still to be added.
	ScatterSums(dst, parts *Tensor, rows int, cut bool) error
}

// RowComm is what layers need of the ranks that divide rows.
type RowComm interface {
	// AllGather concatenates the rows of x of all ranks, in rank order, into dst on every rank.
	AllGather(dst, x *Tensor) error
	// Gather does so on root alone.
	Gather(dst, x *Tensor, root int) error
	// AllToAllV gives each rank the run that x has for it: counts are their lengths, x is them in
	// rank order. It returns those that are for this rank, in rank order, in the memory of dst if
	// that has room, and sets got to their lengths; meanwhile, unless it is nil, is called before
	// the wait for runs of other machines. AllToAll does so where the lengths are known.
	AllToAllV(dst, x []float32, counts, got []int, meanwhile func()) ([]float32, error)
	AllToAll(dst, x []float32, counts, lengths []int) error
}

// Group is a rank's place in its tensor parallel group.
type Group struct {
	// Rank is the rank within the group of Size ranks.
	Rank, Size int
	// Comm may be nil when Size is 1.
	Comm Comm
	// PCP is the rank's place among those that divide long prompts, DP among those that have the
	// same one in others among which requests are divided; nil when it is alone.
	PCP, DP *RowGroup
	// Experts is which experts the rank holds of mixtures; nil is a share of each.
	Experts *ExpertGroup
	// OnLayer, when not nil, is called at the start of each layer, and before and after each
	// exchange with other ranks in it.
	OnLayer func(status.Within)
}

// rank is what the layers of one rank share as they run: the device, the group, and the memory of
// what they compute.
type rank struct {
	dev    Device
	group  Group
	within status.Within // the step
	// positions are those of the batch's rows.
	positions []int32

	normed   Tensor // by a norm
	qkv      Tensor // query, key and value heads
	one      compute.View
	heads    Tensor // of queries and keys, as their norms read them
	attended Tensor // by attention
	inner    Tensor // features of a feed-forward block, gate and up side by side if it has both
	gated    Tensor // silu(gate)·up
	given    Tensor // what this rank gives to those that divide rows with it
	gathered Tensor // what it gets of them
	sum      Tensor // of a row-parallel product, before it is added to the residual stream
	scores   Tensor // of a router
	latent   latentMemory
	narrowed Tensor // what experts read, where that is not as wide as rows
	widened  Tensor // what is made of what they add
	mixing   Tensor // stands for what the device mixes in
	besides  Tensor // of the shared expert, while rows travel
	visited  Tensor // what experts made of the rows of all places
	nothing  Tensor // the rows of a place that has none
	travelling
	laid Tensor // stands for the keys and values of rows that attend to each other

	adapters adapters
}

// allReduce sums x over the ranks.
func (r *rank) allReduce(x *Tensor) error {
	if r.group.Size == 1 || x.Rows == 0 {
		return nil
	}
	return r.await(status.Sum, func() error { return r.group.Comm.AllReduce(x) })
}

// await takes part in an exchange, and says so meanwhile. An exchange may be within another one.
func (r *rank) await(e status.Exchange, exchange func() error) error {
	after := r.within
	switch {
	case after.Awaits != status.NoExchange:
	case e == status.Dispatch || e == status.Combine:
		// A rank of a place without rows has taken part in fewer exchanges before.
		r.within.Done = travelsAt + uint8(e)
		fallthrough
	default:
		after.Done = r.within.Done + 1
	}
	r.within.Awaits = e
	r.report()
	if err := exchange(); err != nil {
		return fmt.Errorf("%v: %w", r.within, err)
	}
	r.within = after
	r.report()
	return nil
}

// travelsAt is the number of a layer's exchanges, more than there are before, from which rows on
// their way to experts and back are counted.
const travelsAt = 64

func (r *rank) report() {
	if r.group.OnLayer != nil {
		r.group.OnLayer(r.within)
	}
}

// Heads are the numbers of query and of key/value heads of an attention layer, and the dimension of
// each.
type Heads struct{ Query, KV, Dim int }

// LocalKVHeads is the number of key/value heads that each rank of a group of size has: with more
// ranks than heads, neighbours have the same one.
func LocalKVHeads(heads, size int) int { return max(1, heads/size) }

// local is what this rank has of h.
func (r *rank) local(h Heads) Heads {
	return Heads{Query: h.Query / r.group.Size, KV: LocalKVHeads(h.KV, r.group.Size), Dim: h.Dim}
}

// Begin tells the device of a step's batch, and returns the one that it computes in its place,
// whose first rows are the batch's (Device.Pad); Failed is the device's first error, Finish that of
// waiting for it.
func (r *rank) Begin(b *compute.Batch) *compute.Batch {
	b = r.dev.Pad(b)
	r.dev.Begin(b, r.adapters.begin(b))
	r.positions = b.Position
	return b
}

func (r *rank) Failed() error { return r.dev.Err() }
func (r *rank) Finish() error { return r.dev.Finish() }

// Extend adds rows to x, which are copies of its first ones.
func (r *rank) Extend(x *Tensor, rows int) {
	have := x.Rows
	r.dev.Extend(x, rows)
	from := x.All()
	from.Rows = rows
	r.dev.Copy(x.Below(have), from)
}

// Run has pass compute the layers of a step, or the device do so from what it recorded.
func (r *rank) Run(b *compute.Batch, pass func() error) error {
	alone := b.Split.Share == 0
	begin := func(c interface{ Begin() (bool, error) }) error {
		return r.await(status.Start, func() error {
			enqueued, err := c.Begin()
			alone = alone && enqueued
			return err
		})
	}
	if r.group.Size > 1 {
		if err := begin(r.group.Comm); err != nil {
			return err
		}
	}
	if r.group.visits() != nil {
		if err := begin(r.group.visits()); err != nil {
			return err
		}
	}
	return r.dev.Run(r, alone, pass)
}

// Multiply multiplies x by a factor.
func (r *rank) Multiply(x *Tensor, factor float32) { r.dev.Scale(x, factor) }

// Copy makes dst, which has its shape, the values of x.
func (r *rank) Copy(dst, x *Tensor) { r.dev.Copy(dst.All(), x.All()) }

// AddTo adds x to sum.
func (r *rank) AddTo(sum, x *Tensor) { r.dev.Add(sum, x) }

// Resize gives x a shape.
func (r *rank) Resize(x *Tensor, rows, width int) { r.dev.Resize(x, rows, width) }

// Pick makes dst the given rows of x.
func (r *rank) Pick(dst, x *Tensor, rows []int32) { r.dev.Pick(dst, x.All(), rows) }
