package cuda

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/driver"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// mixing is what mixtures of experts are computed in.
type mixing struct {
	chosen, weights, first, rows, places scratch
	inner, gated                         compute.Tensor
	// Where weights multiply what experts read: that, and scores to find the weights by.
	scaled, scores compute.Tensor
	parts          scratch
	cut            bool // as the sums of the last Mix are
	own            int  // the first of its rows that is of this rank's place
}

// projection is the weights of all experts of a kind: where the device has their addresses, those
// of their biases, scales, offsets and orders, which are 0 for none. one is the first weight that
// this rank has, nil for none.
type projection struct {
	one                                      *weight
	memory                                   compute.Memory
	weights, biases, scales, offsets, orders driver.Ptr
	seen                                     *matrices // nil of codes
}

// projections are those of a mixture, which are made when it is computed first: both, nil where
// they cannot be made.
type projections struct{ gateUp, down *projection }

func (d *Device) projections(mix *compute.Mixture) *projections {
	if p, ok := mix.Device.(*projections); ok {
		return p
	}
	p := &projections{d.projection(mix, func(e *compute.Expert) (compute.Weight, compute.Memory) {
		return e.GateUp, e.GateUpBias
	}), d.projection(mix, func(e *compute.Expert) (compute.Weight, compute.Memory) {
		return e.Down, e.DownBias
	})}
	if d.err != nil {
		return nil
	}
	mix.Device = p
	return p
}

func (d *Device) projection(mix *compute.Mixture,
	of func(e *compute.Expert) (compute.Weight, compute.Memory)) *projection {
	n := len(mix.Experts)
	list := make([]driver.Ptr, 5*n)
	var one *weight
	for i := range mix.Experts {
		x, bias := of(&mix.Experts[i])
		if list[n+i] = at(bias); x == nil && mix.Held != nil {
			continue
		}
		w, _ := x.(*weight)
		if one == nil {
			one = w
		}
		if w == nil || !w.codes.alike(one.codes) {
			d.check(fmt.Errorf("a mixture's experts are quantised in several ways, which CUDA "+
				"devices do not compute: expert %d", i))
			return nil
		}
		list[i] = w.data
		if w.codes != nil {
			list[2*n+i], list[3*n+i] = w.codes.scale, w.codes.offset
			list[4*n+i] = w.codes.order
		}
	}
	// A vector of floats has room for half an address.
	floats := unsafe.Slice((*float32)(unsafe.Pointer(&list[0])), 2*len(list))
	p := &projection{one: one, memory: d.Vector(floats)}
	p.weights = at(p.memory)
	if d.groups.able && one != nil && one.codes == nil {
		// Those that copies cannot have are multiplied by mma, as few rows are.
		p.seen, _ = one.matrices(list[:n])
	}
	for i, place := range []*driver.Ptr{&p.biases, &p.scales, &p.offsets, &p.orders} {
		if slices.ContainsFunc(list[(i+1)*n:(i+2)*n], func(p driver.Ptr) bool { return p != 0 }) {
			*place = p.weights + driver.Ptr(8*(i+1)*n)
		}
	}
	return p
}

// Mix makes dst what this rank has of the weighted sums of what the experts of each row of x make
// of it: the sums themselves where it has all experts whole, else [2·rows][width], the high parts
// of all rows and then the low ones, of each place, which add up to the same bits however ranks
// divide experts among them. Rows are sorted by expert on the device: the host does not know which
// they have.
func (d *Device) Mix(dst, x, scores *compute.Tensor, mix *compute.Mixture) {
	p := d.projections(mix)
	rows, cut := x.Rows, mix.Held != nil || mix.Chunks < wholeChunks
	if cut {
		rows *= 2
	}
	m := &d.mix
	m.cut = cut
	d.Resize(dst, rows, x.Width)
	if p == nil {
		return
	}
	m.chosen.grow(d, 4*x.Rows*mix.PerToken)
	m.weights.grow(d, 4*x.Rows*mix.PerToken)
	v := visit{mix: mix, to: at(dst.Memory), cut: cut, room: x.Rows}
	if mix.Places > 0 {
		v.room = x.Rows / mix.Places
	}
	m.own = mix.Place * v.room
	of(scores.Memory).written()
	for each := v.placesAtOnce(); v.place*v.room < x.Rows; v.place += each {
		from := v.place * v.room
		v.rows = min(each*v.room, x.Rows-from)
		v.x, v.scores = x.Below(from), scores.Below(from)
		v.x.Rows = v.rows
		d.mixRows(&v, p)
	}
}

// visit is rows that Mix computes together: those of some places, the first of which is place. Each
// place has room for as many.
type visit struct {
	mix               *compute.Mixture
	x, scores         compute.View
	rows, place, room int
	to                driver.Ptr
	cut               bool
}

// placesAtOnce is of how many places rows are computed together. Fewer would read the weights of
// experts more often, more would take memory for the pairs of all, which other ranks compute.
func (v *visit) placesAtOnce() int { return max(1, mixedAtOnce/max(v.room, 1)) }

// mixedAtOnce is for how many rows experts' weights are read once, of several places together.
const mixedAtOnce = 2048

// first is where the rows begin of what there is each of a row.
func (v *visit) first(each int) driver.Ptr { return driver.Ptr(4 * v.place * v.room * each) }

// mixRows computes rows of Mix.
func (d *Device) mixRows(v *visit, p *projections) {
	up, lower := p.gateUp, p.down
	m, mix, gateUp, down := &d.mix, v.mix, up.one, lower.one
	n, k := len(mix.Experts), mix.PerToken
	pairs := v.rows * k
	first, picked := m.first.grow(d, 4*(n+1)), m.rows.grow(d, 4*pairs)
	places := m.places.grow(d, 4*pairs)
	routing := mix.Routing
	if routing.Inward {
		d.scaleInward(v)
		routing.Normalise = true
	}
	d.route(v, routing, mix.Load)
	size := v.rows * v.x.Width
	to := v.to + v.first(v.x.Width)
	if v.cut {
		size, to = 2*size, to+v.first(v.x.Width)
	}
	if gateUp == nil {
		d.flush()
		if d.err == nil {
			d.check(d.ctx.Fill(to, 0, uint64(4*size), d.stream))
		}
		return
	}
	d.Resize(&m.inner, pairs, gateUp.out)
	gateUp.launch(gemm{dst: at(m.inner.Memory), ld: gateUp.out, x: v.x, rows: v.rows,
		experts: up.weights, biases: up.biases, scales: up.scales, offsets: up.offsets,
		orders: up.orders, first: first, picked: picked, groups: n, pairs: pairs, seen: up.seen})
	d.gate(mix.Gating, &m.gated, &m.inner, first+driver.Ptr(4*n))
	parts := m.parts.grow(d, 4*down.chunks*pairs*down.out)
	down.launch(gemm{dst: parts, ld: down.out, chunk: pairs * down.out, x: m.gated.All(),
		rows: v.rows, experts: lower.weights, scales: lower.scales, offsets: lower.offsets,
		orders: lower.orders, first: first, groups: n, pairs: pairs, seen: lower.seen})
	elements(d, kernels.Combine, v.rows*v.x.Width, kernels.CombineParams{Parts: parts,
		PlaceOf: places, Weights: m.weights.p + v.first(k), Y: to, Rows: int32(v.rows),
		PerToken: int32(k), Width: int32(v.x.Width), Chunks: int32(down.chunks),
		Cut: flag(v.cut), Room: int32(v.room)})
}

// scaleInward has experts read rows times their weights, of which each row has one: that of the
// greatest score.
func (d *Device) scaleInward(v *visit) {
	m, by := &d.mix, *v
	if k := v.mix.PerToken; k > 1 {
		d.check(fmt.Errorf("%d experts of a row that read it times weights of their own are not "+
			"computed on CUDA devices", k))
		return
	}
	by.scores.Rows = v.rows
	d.Resize(&m.scores, v.rows, v.scores.Width)
	d.Copy(m.scores.All(), by.scores)
	by.scores = m.scores.All()
	d.route(&by, compute.Routing{PerToken: 1, Sigmoid: true}, nil)
	d.Resize(&m.scaled, v.rows, v.x.Width)
	d.Copy(m.scaled.All(), v.x)
	d.scale(&m.scaled, m.weights.p+v.first(1), 0)
	v.x = m.scaled.All()
}

// wholeChunks is in how many chunks experts sum that are not divided among ranks.
const wholeChunks = 8

// routedAtOnce is for how many rows one block chooses and sorts, of so many experts at most.
const (
	routedAtOnce     = 64
	expertsAtOnce    = 256
	routeWarpThreads = 32
	orderThreads     = 1024
)

// route chooses the experts of each row, by a warp each, and sorts the rows by them. It counts in a
// load, unless that is nil.
func (d *Device) route(v *visit, o compute.Routing, load *compute.ExpertLoad) {
	m, mix, n := &d.mix, v.mix, v.scores.Width
	pairs := v.rows * o.PerToken
	shares := kernels.SharesParams{Room: int32(v.room)}
	if mix.Places > 0 {
		shares.Counts = d.step.places + driver.Ptr(4*v.place)
	}
	p := kernels.RouteParams{Scores: first(v.scores), Correction: at(o.Correction),
		Chosen: m.chosen.p + v.first(o.PerToken), Weights: m.weights.p + v.first(o.PerToken),
		Rows: int32(v.rows), Experts: int32(n), PerToken: int32(o.PerToken),
		Groups: int32(o.Groups), TopGroups: int32(o.TopGroups), Best: int32(o.Best),
		Factor: o.Factor, Factors: at(o.Factors), Sigmoid: flag(o.Sigmoid),
		Normalise: flag(o.Normalise), Shares: shares}
	if load != nil {
		if load.Memory == nil {
			load.Memory = d.Vector(make([]float32, 2*n)) // as integers of twice as many bits
		}
		p.Load, p.Counted, p.Least = at(load.Memory), d.step.counted, countedByAll
		p.Own = int32(m.own - v.place*v.room)
		if load.Alone {
			p.Least = countedAlone
		}
	}
	sorted := kernels.OrderParams{Chosen: p.Chosen, First: m.first.p, RowsOf: m.rows.p,
		PlaceOf: m.places.p, Pairs: int32(pairs), PerToken: p.PerToken, Experts: p.Experts,
		Shares: shares}
	if h := mix.Held; h != nil {
		sorted.Held, sorted.Turn, sorted.Share = at(h.Memory), d.step.turn, h.Share
	}
	places := 4 * (n + max(o.Groups, 1))
	if v.rows <= routedAtOnce && n <= expertsAtOnce {
		launch(d, kernels.RouteOrder, [3]uint32{1, 1, 1}, [3]uint32{orderThreads, 1, 1},
			places*orderThreads/routeWarpThreads,
			kernels.RouteOrderParams{Route: p, Order: sorted})
		return
	}
	launch(d, kernels.Route, [3]uint32{uint32(v.rows), 1, 1},
		[3]uint32{routeWarpThreads, 1, 1}, places, p)
	launch(d, kernels.Order, [3]uint32{1, 1, 1}, [3]uint32{orderThreads, 1, 1}, 4*(n+1), sorted)
}

// How a row counts that is sent to experts: not, for what fills a step; as one that all ranks have;
// as one that this rank computes alone.
const (
	notCounted = iota
	countedByAll
	countedAlone
)

// ExpertRows implements layers.Device.
func (d *Device) ExpertRows(load *compute.ExpertLoad) []int64 {
	rows := make([]int64, len(load.Rows))
	if m := of(load.Memory); m != nil {
		m.written() // by steps
		copy(rows, unsafe.Slice((*int64)(unsafe.Pointer(unsafe.SliceData(m.Host()))), len(rows)))
	}
	return rows
}

// Mixed makes sum, in which the ranks have added what the last Mix left in it, the sums of its
// rows, with the biases of their experts' down projections, weighted.
func (d *Device) Mixed(sum *compute.Tensor, mix *compute.Mixture) {
	if d.mix.cut {
		d.join(sum)
	}
	if mix.Experts[0].DownBias == nil {
		return
	}
	p := d.projections(mix)
	if p == nil {
		return
	}
	own := driver.Ptr(4 * d.mix.own * mix.PerToken)
	elements(d, kernels.ExpertBiases, sum.Rows*sum.Width, kernels.ExpertBiasesParams{
		Sum: at(sum.Memory), Chosen: d.mix.chosen.p + own, Weights: d.mix.weights.p + own,
		Biases: p.down.biases, Rows: int32(sum.Rows), PerToken: int32(mix.PerToken),
		Width: int32(sum.Width)})
	of(sum.Memory).written()
}

// join has the high and the low parts of sums added. Those of ranks over their windows wait for
// what follows, as other sums do.
func (d *Device) join(sum *compute.Tensor) {
	m, p := of(sum.Memory), &d.pending
	sum.Rows /= 2
	m.floats = sum.Rows * sum.Width
	defer m.written()
	parts := pending{parts: m.values, chunks: 1}
	if p.sums == m && p.onto == nil {
		if p.cut, p.rows = true, sum.Rows; p.ranks != nil {
			return
		}
		parts = d.taken() // which NCCL has gathered
	}
	d.flush()
	parts.rows, parts.width, parts.cut = sum.Rows, sum.Width, true
	d.sumChunks(&parts, m, 0)
}
