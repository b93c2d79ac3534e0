package layers

import (
	"cmp"
	"fmt"
	"unsafe"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/balance"
)

// Mixture sends each row to the few experts, gated feed-forward blocks, that its router finds most
// likely and adds their outputs, weighted. Every rank holds its share of each expert's inner
// features, or a share of the experts (see ExpertGroup).
type Mixture struct {
	*rank
	router     compute.Weight
	routerBias compute.Memory // nil for none
	mix        compute.Mixture
	hidden     int
	// routerReads and expertsRead are those of MixtureOptions.
	routerReads, expertsRead *RMSNorm
	at                       int // the model's layer that it is in
	// narrow, unless nil, makes the rows that experts read, which are as wide as latent, of those
	// that the router reads; wide makes what is added of what they make.
	narrow, wide *Linear
	latent       int
	// Where ranks hold whole experts: how one is made; and those that are there for another
	// placement.
	loader *Loader
	make   func(expert int) compute.Expert
	coming map[int]compute.Expert
	// form is how rows should come to the experts that are here, forms how each place says that
	// they should come to its: nil before any has.
	form  compute.RowForm
	forms []compute.RowForm
	// meanwhile, unless nil, computes what goes on beside while rows travel.
	meanwhile func()
	beside    beside
}

// MixtureOptions are the points in which mixtures of experts differ.
type MixtureOptions struct {
	// Routing is how experts are chosen, without a correction.
	compute.Routing
	// Gating is that of each expert; the zero value is SiLU.
	compute.Gating
	Experts int
	// Inner is the number of inner features of each expert.
	Inner int
	// Router is its module, "" is gate; RouterBias says that it has a bias, and Correction names
	// the tensor that corrects the choice (see compute.Routing), "" for none.
	Router     string
	RouterBias bool
	Correction string
	// Factors names the tensor of what the experts' weights are multiplied by, "" for none.
	Factors string
	// RouterReads and ExpertsRead, unless nil, make of the rows that the block is given what its
	// router reads, and its experts.
	RouterReads, ExpertsRead *RMSNorm
	// Names are the modules of an expert's gate, up and down; "" is gate_proj, up_proj and
	// down_proj. Ungated ones have no gate, and are not stacked.
	Names [3]string
	// Latent is how wide the rows are that experts read, 0 for hidden: modules fc1_latent_proj and
	// fc2_latent_proj turn rows to those and back.
	Latent int
	// Stacked says how the experts are stored together; nil is a module for each. Bias says that
	// those have biases.
	Stacked *Stacked
	Bias    bool
}

// Stacked says how the experts of a mixture are stored in two tensors, of gates and projections up,
// and of those down: [experts][input features][output features] with Transposed, else
// [experts][output features][input features]. The gate's features stand before those of up, or
// alternate with them.
type Stacked struct {
	GateUp, Down string
	Transposed   bool
	Alternating  bool
	// Bias says that tensors named as these with _bias added are [experts][output features].
	Bias bool
}

// Mixture makes the block under prefix: modules gate, and gate_proj, up_proj and down_proj of each
// expert.
func (l *Loader) Mixture(prefix string, hidden int, opt MixtureOptions) *Mixture {
	router := prefix + cmp.Or(opt.Router, "gate")
	whole := whole(router, opt.Experts, hidden)
	if opt.Activation == compute.ReLU && !opt.Ungated {
		opt.Activation = compute.SiLU
	}
	if opt.Near > 0 {
		only[Traveller](l, "experts that are chosen one after the other (SparseMixer) are not "+
			"computed on this device: CPUs do")
	}
	y := &Mixture{rank: l.rank, loader: l, hidden: hidden, at: l.within.Layer,
		routerReads: opt.RouterReads, expertsRead: opt.ExpertsRead,
		router: l.weightIn(l.outside(), 1, whole)}
	y.latent = cmp.Or(opt.Latent, hidden)
	if opt.Latent > 0 {
		// Every rank has them whole; rows of other places come to them without their adapters.
		y.narrow = l.PickedLinear(prefix+"fc1_latent_proj", opt.Latent, hidden)
		y.wide = l.PickedLinear(prefix+"fc2_latent_proj", hidden, opt.Latent)
		l.widen(&l.narrowed, opt.Latent)
		l.widen(&l.widened, hidden)
		hidden = opt.Latent
	}
	y.mix = compute.Mixture{Routing: opt.Routing, Gating: opt.Gating,
		Chunks: Chunks / l.group.Size, Experts: make([]compute.Expert, opt.Experts),
		Load: l.expertLoad(opt.Experts)}
	g, inner := l.group.Experts, opt.Inner/l.group.Size
	if g != nil {
		y.mix.Chunks, inner = Chunks, opt.Inner
	}
	if l.group.visits() != nil {
		y.mix.Places, y.mix.Place = l.group.DP.Size, l.group.DP.Rank
	}
	if opt.RouterBias {
		y.routerBias = l.bias(whole)
	}
	if opt.Correction != "" {
		shape := []int{opt.Experts}
		if len(l.Shape(prefix+opt.Correction)) == 2 { // of one group
			shape = []int{1, opt.Experts}
		}
		y.mix.Correction = l.upload(l.floats(prefix+opt.Correction, shape, 0, opt.Experts))
	}
	if opt.Factors != "" {
		y.mix.Factors = l.vector(prefix+opt.Factors, opt.Experts, 0, opt.Experts)
	}
	if opt.ExpertsRead != nil {
		l.widen(&l.normed, hidden*l.group.places()) // the rows of all places may come here
	}
	l.widen(&l.rank.sum, 2*hidden)
	l.widen(&l.scores, opt.Experts)
	if l.scale != nil {
		width := l.scale.planner.MixtureWidth(hidden, inner, y.mix.Chunks, opt.Experts,
			opt.PerToken)
		if opt.Inward {
			width += hidden + hidden/2 + opt.Experts
		}
		if places := l.group.places(); places > 1 { // the rows of all places may come here
			travels := width*places + travelWidth(hidden, opt.PerToken, places)
			width = cmp.Or(l.scale.planner.VisitWidth(width, hidden, opt.Experts, opt.PerToken,
				places, l.scale.rows), travels)
		}
		l.widen(&l.mixing, width)
	}
	if s := opt.Stacked; s != nil {
		defer l.pin(prefix+s.GateUp, prefix+s.Down)()
	}
	if l.scale != nil {
		l.scale.per, l.scale.of = int64(opt.PerToken), int64(opt.Experts)
		defer func() { l.scale.of = 0 }()
	}
	if g == nil {
		for e := range y.mix.Experts {
			y.mix.Experts[e] = l.expert(prefix, hidden, e, y.mix.Chunks, &opt)
		}
		return y
	}
	at, err := g.placement(l.within.Layer, opt.Experts)
	if l.fail(err) {
		return y
	}
	y.make = func(e int) compute.Expert { return l.expert(prefix, hidden, e, y.mix.Chunks, &opt) }
	for e := range y.mix.Experts {
		y.mix.Experts[e].DownBias = l.expertBias(prefix, hidden, e, &opt)
	}
	before := l.weighed()
	for _, e := range at[g.Share] {
		y.put(e, y.make(e))
	}
	if l.scale != nil && g.Moving {
		l.scale.moving = max(l.scale.moving, l.weighed()-before)
	}
	y.place(at)
	l.movable = append(l.movable, y)
	return y
}

// expert makes one expert of a mixture, where ranks hold whole ones without the bias of its output:
// expertBias.
func (l *Loader) expert(prefix string, hidden, e, chunks int, opt *MixtureOptions) compute.Expert {
	names := opt.Names
	if names[0] == "" {
		names = [3]string{"gate_proj", "up_proj", "down_proj"}
	}
	p, s := fmt.Sprintf("%sexperts.%d.", prefix, e), opt.Stacked
	gate, up := l.columnPart(p+names[0], opt.Inner, hidden),
		l.columnPart(p+names[1], opt.Inner, hidden)
	down := l.rowPart(p+names[2], hidden, opt.Inner)
	if l.group.Experts != nil {
		gate, up = whole(p+names[0], opt.Inner, hidden), whole(p+names[1], opt.Inner, hidden)
		down = whole(p+names[2], hidden, opt.Inner)
	}
	if s == nil {
		inner := []part{gate, up}
		if opt.Ungated {
			inner = inner[1:]
		}
		x := compute.Expert{GateUp: l.weight(1, inner...), Down: l.weight(chunks, down)}
		if opt.Bias {
			x.GateUpBias = l.bias(inner...)
		}
		if l.group.Experts == nil {
			x.DownBias = l.expertBias(prefix, hidden, e, opt)
		}
		return x
	}
	both := stack{tensor: prefix + s.GateUp, count: opt.Experts, index: e, rows: 2 * opt.Inner,
		step: 1, transposed: s.Transposed}
	second := both
	second.first = opt.Inner
	if s.Alternating {
		both.step, second.step, second.first = 2, 2, 1
	}
	gate, up = gate.in(both), up.in(second)
	down = down.in(downStack(prefix, hidden, e, opt))
	x := compute.Expert{GateUp: l.weight(1, gate, up), Down: l.weight(chunks, down)}
	if s.Bias {
		x.GateUpBias = l.upload(append(l.stackedBias(gate), l.stackedBias(up)...))
	}
	if l.group.Experts == nil {
		x.DownBias = l.expertBias(prefix, hidden, e, opt)
	}
	return x
}

// downStack is where the projections down of stacked experts are.
func downStack(prefix string, hidden, e int, opt *MixtureOptions) stack {
	s := opt.Stacked
	return stack{tensor: prefix + s.Down, count: opt.Experts, index: e, rows: hidden, step: 1,
		transposed: s.Transposed}
}

// expertBias is the bias of an expert's output, nil for none. Every rank has those of all experts:
// they are added where the sums are.
func (l *Loader) expertBias(prefix string, hidden, e int, opt *MixtureOptions) compute.Memory {
	down := whole(fmt.Sprintf("%sexperts.%d.%s", prefix, e, cmp.Or(opt.Names[2], "down_proj")),
		hidden, opt.Inner)
	switch s := opt.Stacked; {
	case s == nil && opt.Bias:
		return l.bias(down)
	case s != nil && s.Bias:
		return l.upload(l.stackedBias(down.in(downStack(prefix, hidden, e, opt))))
	}
	return nil
}

// put makes an expert one of the mixture's.
func (y *Mixture) put(e int, x compute.Expert) {
	x.DownBias = y.mix.Experts[e].DownBias
	y.mix.Experts[e] = x
}

// place says where the experts are now: which ranks compute them, for the rows that this one
// routes, those of its place or everyone's.
func (y *Mixture) place(at balance.Placement) {
	source := balance.Everyone
	if y.group.places() > 1 && y.group.visits() == nil {
		source = y.group.Experts.Share - y.group.Rank
	}
	held := at.Held(len(y.mix.Experts), y.group.Experts.nodes(), source)
	held.Share = int32(y.group.Experts.Share)
	if y.loader.scale == nil {
		// A vector of floats has room for integers of as many bits.
		held.Memory = y.dev.Vector(unsafe.Slice((*float32)(unsafe.Pointer(&held.Table[0])),
			len(held.Table)))
	}
	y.mix.Held, y.mix.Device = held, nil
	if d, ok := y.dev.(Traveller); ok && source != balance.Everyone {
		y.form, y.forms = d.RowForm(&y.mix), nil
	}
}

// stackedBias reads the part's rows of the biases that belong to a stack.
func (l *Loader) stackedBias(p part) []float32 {
	s := p.stack
	all := l.floats(s.tensor+"_bias", []int{s.count, s.rows}, s.index*s.rows, (s.index+1)*s.rows)
	if all == nil {
		return nil
	}
	var own []float32
	for row := p.rowLo; row < p.rowHi; row++ {
		own = append(own, all[row*s.step+s.first])
	}
	return own
}

// Add adds the block's output for x to the residual stream.
func (y *Mixture) Add(residual, x *Tensor) error {
	sum, err := y.Forward(x)
	if err == nil {
		y.AddTo(residual, sum)
	}
	return err
}

// Forward returns the block's output for x.
func (y *Mixture) Forward(x *Tensor) (*Tensor, error) {
	var err error
	if y.group.places() > 1 {
		err = y.amongPlaces(x)
	} else {
		y.score(x)
		y.dev.Mix(&y.sum, y.expertRows(x), &y.scores, &y.mix)
	}
	if err == nil {
		err = y.allReduce(&y.sum)
	}
	if err != nil {
		return nil, err
	}
	y.dev.Mixed(&y.sum, &y.mix)
	if y.wide == nil {
		return &y.sum, nil
	}
	y.wide.Forward(&y.widened, &y.sum)
	return &y.widened, nil
}

// expertRows is what experts read of the rows of x.
func (y *Mixture) expertRows(x *Tensor) *Tensor {
	if x.Rows == 0 {
		return x
	}
	if y.expertsRead != nil {
		x = y.expertsRead.Forward(x)
	}
	if y.narrow == nil {
		return x
	}
	y.narrow.Forward(&y.narrowed, x)
	return &y.narrowed
}

// amongPlaces makes sum this rank's part of what the experts of all places make of the rows of x.
func (y *Mixture) amongPlaces(x *Tensor) error {
	if y.group.visits() != nil {
		return y.visit(x)
	}
	y.score(x)
	return y.travel(x)
}

// score makes scores the router's products with the rows of x.
func (y *Mixture) score(x *Tensor) {
	y.dev.Resize(&y.scores, x.Rows, y.router.Out())
	if x.Rows == 0 {
		return
	}
	if y.routerReads != nil {
		x = y.routerReads.Forward(x)
	}
	y.router.Product(y.scores.All(), x.All(), y.routerBias)
}
