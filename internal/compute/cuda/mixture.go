package cuda

import (
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// mixing is what mixtures of experts are computed in.
type mixing struct {
	chosen, weights, first, rows, places scratch
	inner, gated                         compute.Tensor
	parts                                scratch
}

// experts are the addresses of a mixture's weights and biases, in the device's memory.
type experts struct {
	memory compute.Memory
	// Where the addresses begin; biases are 0 for none.
	gateUp, down, gateUpBias, downBias driver.Ptr
}

// addresses are those of a mixture, which are made when it is computed first.
func (d *Device) addresses(mix *compute.Mixture) *experts {
	one := mix.Experts[0].GateUp.(*weight)
	if one.experts != nil {
		return one.experts
	}
	n := len(mix.Experts)
	list := make([]driver.Ptr, 4*n)
	for i, e := range mix.Experts {
		list[i], list[n+i] = e.GateUp.(*weight).data, e.Down.(*weight).data
		list[2*n+i], list[3*n+i] = at(e.GateUpBias), at(e.DownBias)
	}
	// A vector of floats has room for half an address.
	floats := unsafe.Slice((*float32)(unsafe.Pointer(&list[0])), 2*len(list))
	y := &experts{memory: d.Vector(floats)}
	begin := at(y.memory)
	y.gateUp, y.down = begin, begin+driver.Ptr(8*n)
	if list[2*n] != 0 {
		y.gateUpBias = begin + driver.Ptr(16*n)
	}
	if list[3*n] != 0 {
		y.downBias = begin + driver.Ptr(24*n)
	}
	one.experts = y
	return y
}

// Mix makes dst the weighted sums of what the experts of each row of x make of it. Rows are sorted
// by expert on the device: the host does not know which experts they have.
func (d *Device) Mix(dst, x, scores *compute.Tensor, mix *compute.Mixture) {
	m, y := &d.mix, d.addresses(mix)
	n, k := len(mix.Experts), mix.PerToken
	pairs := x.Rows * k
	first, rows := m.first.grow(d, 4*(n+1)), m.rows.grow(d, 4*pairs)
	places := m.places.grow(d, 4*pairs)
	d.route(scores, &mix.Routing)
	gateUp, down := mix.Experts[0].GateUp.(*weight), mix.Experts[0].Down.(*weight)
	d.Resize(&m.inner, pairs, gateUp.out)
	gateUp.launch(gemm{dst: at(m.inner.Memory), ld: gateUp.out, x: x.All(), rows: x.Rows,
		experts: y.gateUp, biases: y.gateUpBias, first: first, picked: rows, groups: n})
	d.Gate(mix.Gating, &m.gated, &m.inner)
	parts := m.parts.grow(d, 4*down.chunks*pairs*down.out)
	down.launch(gemm{dst: parts, ld: down.out, chunk: pairs * down.out, x: m.gated.All(),
		rows: x.Rows, experts: y.down, first: first, groups: n})
	d.Resize(dst, x.Rows, x.Width)
	size := x.Rows * x.Width
	launch(d, kernels.Combine, [3]uint32{uint32((size + rowBlock - 1) / rowBlock), 1, 1},
		[3]uint32{rowBlock, 1, 1}, 0, kernels.CombineParams{Parts: parts, PlaceOf: places,
			Weights: m.weights.p, Y: at(dst.Memory), Rows: int32(x.Rows), PerToken: int32(k),
			Width: int32(x.Width), Chunks: int32(down.chunks)})
}

// routedAtOnce is for how many rows one block chooses and sorts, of so many experts at most.
const (
	routedAtOnce     = 64
	expertsAtOnce    = 256
	routeWarpThreads = 32
	orderThreads     = 1024
)

// route chooses the experts of each row, by a warp each, and sorts the rows by them.
func (d *Device) route(scores *compute.Tensor, o *compute.Routing) {
	m, n := &d.mix, scores.Width
	pairs := scores.Rows * o.PerToken
	p := kernels.RouteParams{Scores: at(scores.Memory), Correction: at(o.Correction),
		Chosen: m.chosen.grow(d, 4*pairs), Weights: m.weights.grow(d, 4*pairs),
		Rows: int32(scores.Rows), Experts: int32(n), PerToken: int32(o.PerToken),
		Groups: int32(o.Groups), TopGroups: int32(o.TopGroups), Best: int32(o.Best),
		Factor: o.Factor}
	if o.Sigmoid {
		p.Sigmoid = 1
	}
	if o.Normalise {
		p.Normalise = 1
	}
	of(scores.Memory).written()
	sorted := kernels.OrderParams{Chosen: p.Chosen, First: m.first.p, RowsOf: m.rows.p,
		PlaceOf: m.places.p, Pairs: int32(pairs), PerToken: p.PerToken, Experts: p.Experts}
	places := 4 * (n + max(o.Groups, 1))
	if scores.Rows <= routedAtOnce && n <= expertsAtOnce {
		launch(d, kernels.RouteOrder, [3]uint32{1, 1, 1}, [3]uint32{orderThreads, 1, 1},
			places*orderThreads/routeWarpThreads,
			kernels.RouteOrderParams{Route: p, Order: sorted})
		return
	}
	launch(d, kernels.Route, [3]uint32{uint32(scores.Rows), 1, 1},
		[3]uint32{routeWarpThreads, 1, 1}, places, p)
	launch(d, kernels.Order, [3]uint32{1, 1, 1}, [3]uint32{orderThreads, 1, 1}, 4*(n+1), sorted)
}

// AddExpertBiases adds to the rows of sum, those of the last Mix, the biases of their experts' down
// projections, weighted.
func (d *Device) AddExpertBiases(sum *compute.Tensor, mix *compute.Mixture) {
	size := sum.Rows * sum.Width
	launch(d, kernels.ExpertBiases, [3]uint32{uint32((size + rowBlock - 1) / rowBlock), 1, 1},
		[3]uint32{rowBlock, 1, 1}, 0, kernels.ExpertBiasesParams{Sum: at(sum.Memory),
			Chosen: d.mix.chosen.p, Weights: d.mix.weights.p, Biases: d.addresses(mix).downBias,
			Rows: int32(sum.Rows), PerToken: int32(mix.PerToken), Width: int32(sum.Width)})
	of(sum.Memory).written()
}
