package layers

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/balance"
	"github.com/eagleray/eagleray/internal/link/status"
)

// ExpertGroup says which of a mixture's experts a rank holds: whole ones (expert parallelism,
// Lepikhin et al. 2020, "GShard").
//
// The ranks of a tensor parallel group have the same rows: each computes what its experts make of
// them, and the sums over ranks are those of the mixture. Ranks of several groups, the places among
// which requests are divided (data parallel attention), have rows of their own: a row travels to
// the ranks that have experts of it, and what they make of it travels back. Rank i of a place
// exchanges with the i-th ranks of the others, so that a row crosses once for each rank that it is
// for.
//
// The order in which a row's experts are summed does not matter: they are summed in fixed point.
type ExpertGroup struct {
	// Share is which of Shares equal shares of the experts the rank holds: each place has as many
	// as a tensor parallel group has ranks, in their order.
	Share, Shares int
	// Nodes is where each share is, by numbers of nodes; nil is one for all.
	Nodes []int
	// Redundant is how many experts of a layer have a second copy, or some more than one. Moving
	// says that there is room for those of a layer twice.
	Redundant int
	Moving    bool
	// At is where the experts of the model's layers are, where that is not as at the beginning.
	At map[int]balance.Placement
}

// placement is where a layer's experts are, of which there are so many.
func (g *ExpertGroup) placement(layer, experts int) (balance.Placement, error) {
	if p := g.At[layer]; p != nil {
		return p, nil
	}
	return g.Initial(experts)
}

// Put makes a placement of a layer that of layers that are made from now on.
func (g *ExpertGroup) Put(layer int, p balance.Placement) {
	if g.At == nil {
		g.At = map[int]balance.Placement{}
	}
	g.At[layer] = p
}

// Initial is where a layer's experts are at the beginning.
func (g *ExpertGroup) Initial(experts int) (balance.Placement, error) {
	ranks, err := g.Slots(experts)
	if err != nil {
		return nil, err
	}
	return balance.Initial(experts, ranks)
}

// Slots is how many experts of a layer each share has, of so many.
func (g *ExpertGroup) Slots(experts int) (balance.Ranks, error) {
	return balance.Spread(experts, g.Redundant, g.nodes())
}

func (g *ExpertGroup) nodes() []int {
	if g.Nodes == nil {
		return make([]int, g.Shares)
	}
	return g.Nodes
}

// near tells whether a share is on this one's node.
func (g *ExpertGroup) near(share int) bool {
	return g.Nodes == nil || g.Nodes[share] == g.Nodes[g.Share]
}

// places is among how many places requests are divided, 1 for ranks that all have the same rows.
func (g *Group) places() int {
	if g.Experts == nil {
		return 1
	}
	return g.Experts.Shares / g.Size
}

// visits is how the rows of all places visit the experts of each rank, nil where they travel or
// there is one place.
func (g *Group) visits() VisitComm {
	if g.DP == nil {
		return nil
	}
	return g.DP.Visits
}

// Traveller is a device whose rows can be sent to the experts of other ranks.
type Traveller interface {
	// Route returns the experts of each row, [rows][PerToken], and their weights, for the scores
	// of the router, which it changes. They are valid until the next call.
	Route(scores *Tensor, mix *compute.Mixture) (chosen []int32, weights []float32)
	// MixChosen is Mix for rows, width wide, whose experts are known; negative ones are left out.
	MixChosen(sum *Tensor, x []float32, width int, chosen []int32, weights []float32,
		mix *compute.Mixture)
	// MixGathered makes sum what Mix makes of rows, width wide, of what MixChosen made elsewhere:
	// parts are [len(at)][2][width], the high and the low part of it of row at[i]. A row may be
	// among at several times, or never.
	MixGathered(sum *Tensor, parts []float32, at []int32, rows, width int)
	// RowForm is the narrowest form of rows of which the experts that are here make the same bits.
	// Narrow makes dst a row in a form, Widen a row of one in a form.
	RowForm(mix *compute.Mixture) compute.RowForm
	Narrow(dst, row []float32, form compute.RowForm)
	Widen(row, src []float32, form compute.RowForm)
}

// travelling is what rows are sent to experts in.
type travelling struct {
	out, in, back, home []float32
	rows                []float32 // that have come, as products read them
	counts, got, want   []int
	shares              []int // of the rows' chosen experts
	chosen              []int32
	weights             []float32
	at                  []int32
}

// elsewhere stands for an expert that another rank computes.
const elsewhere = -1

// route chooses the experts of each row, and sets the shares that compute them: of copies those
// whose turn it is.
func (y *Mixture) route() (chosen []int32, weights []float32) {
	t, k := &y.rank.travelling, y.mix.PerToken
	chosen, weights = y.dev.(Traveller).Route(&y.scores, &y.mix)
	t.shares = t.shares[:0]
	for i, e := range chosen {
		turn := uint64(i/k) + uint64(y.positions[i/k])
		t.shares = append(t.shares, int(y.mix.Held.Of(e, turn)))
	}
	return chosen, weights
}

// A run of rows on its way begins with a word that says in which form they are, and in the next
// byte in which form the rows should come that its sender gets: then these are narrower from the
// next step on. What is not heard of yet, after a start or a move, comes as float32, as do rows
// between ranks of a node: memory is faster than making them narrow and wide again.

// rowHead is how many numbers follow a row on its way: its experts, with the shares that compute
// them, and their weights.
func rowHead(perToken int) int { return 2 * perToken }

// travelWidth is how many float32 each row takes of each rank on its way, there and back: sent,
// received and made wide again, at most by all of places.
func travelWidth(hidden, perToken, places int) int {
	return places * (3*hidden + 2*rowHead(perToken) + 4*hidden)
}

// travel makes sum this rank's part of what the experts make of the rows of x, wherever they are:
// added over the ranks of the place it is all of it.
func (y *Mixture) travel(x *Tensor) error {
	t, comm := &y.rank.travelling, y.group.DP.Comm
	y.dispatch(y.expertRows(x))
	y.beside = beside{read: x}
	t.got = zeroed(t.got, y.group.places())
	err := y.await(status.Dispatch, func() (err error) {
		t.in, err = comm.AllToAllV(t.in, t.out, t.counts, t.got, y.meanwhile)
		return err
	})
	if err = cmp.Or(y.beside.err, err); err != nil {
		return err
	}
	if err := y.visitors(); err != nil {
		return err
	}
	y.answer()
	n := 2 * y.latent * len(t.at)
	t.home = slices.Grow(t.home[:0], n)[:n]
	err = y.await(status.Combine, func() error {
		return comm.AllToAll(t.home, t.back, t.counts, t.want)
	})
	if err != nil {
		return err
	}
	y.dev.(Traveller).MixGathered(&y.sum, t.home, t.at, x.Rows, y.latent)
	return nil
}

// dispatch sets out to the rows that this rank's peer in each place has experts of, and at and want
// to what comes back.
func (y *Mixture) dispatch(x *Tensor) {
	t, k, width, size := &y.rank.travelling, y.mix.PerToken, y.latent, y.group.Size
	chosen, weights := y.route()
	places := y.group.places()
	t.out, t.at = t.out[:0], t.at[:0]
	t.counts, t.want = zeroed(t.counts, places), zeroed(t.want, places)
	if y.forms == nil {
		y.forms = make([]compute.RowForm, places)
	}
	values, dev := x.Floats(), y.dev.(Traveller)
	for place, form := range y.forms {
		peer, words := place*size+y.group.Rank, form.Words(width)
		t.out = append(t.out, math.Float32frombits(uint32(form)|uint32(y.form)<<8))
		t.counts[place]++
		for r := range x.Rows {
			if !slices.Contains(t.shares[r*k:(r+1)*k], peer) {
				continue
			}
			at := len(t.out)
			t.out = slices.Grow(t.out, words)[:at+words]
			dev.Narrow(t.out[at:], values[r*width:(r+1)*width], form)
			for i, e := range chosen[r*k : (r+1)*k] {
				t.out = append(t.out, math.Float32frombits(uint32(e)|
					uint32(t.shares[r*k+i])<<16))
			}
			t.out = append(t.out, weights[r*k:(r+1)*k]...)
			t.counts[place] += words + rowHead(k)
			t.at = append(t.at, int32(r))
			t.want[place] += 2 * width
		}
	}
}

// visit makes sum this rank's part of what the experts make of the rows of x, as travel does: this
// rank's make theirs of the rows of all places. Each routes them alike.
func (y *Mixture) visit(x *Tensor) error {
	comm, all := y.group.visits(), &y.gathered
	err := y.await(status.Dispatch, func() error { return comm.GatherRows(all, x, y.hidden) })
	if err != nil {
		return err
	}
	y.score(all)
	y.dev.Mix(&y.visited, y.expertRows(all), &y.scores, &y.mix)
	return y.await(status.Combine, func() error {
		return comm.ScatterSums(&y.sum, &y.visited, x.Rows, y.group.Size > 1)
	})
}

// Idle takes part in a step of which this rank's place has no rows, as its batch has none: its
// experts compute those of other places, mixture by mixture.
func (l *Loader) Idle(b *compute.Batch) error {
	l.Begin(b)
	if err := l.Run(b, l.idle); err != nil {
		return err
	}
	return l.Failed()
}

// idles is a pass of a step without rows.
func (l *Loader) idles() error {
	for _, y := range l.movable {
		l.Enter(y.at)
		if err := y.amongPlaces(&l.nothing); err != nil {
			return err
		}
	}
	return nil
}

// visitors makes sum what this rank's experts make of rows that have come here.
func (y *Mixture) visitors() error {
	t := &y.rank.travelling
	t.rows, t.chosen, t.weights = t.rows[:0], t.chosen[:0], t.weights[:0]
	in := t.in
	for place, n := range t.got {
		if err := y.admit(in[:n], place); err != nil {
			return fmt.Errorf("layer %d, rows of place %d: %w", y.at, place, err)
		}
		in = in[n:]
	}
	y.dev.(Traveller).MixChosen(&y.sum, t.rows, y.latent, t.chosen, t.weights, &y.mix)
	return nil
}

// admit takes in the rows of a place, notes in which form that wants rows, and makes the place's
// got their number.
func (y *Mixture) admit(run []float32, place int) error {
	t, k, dev := &y.rank.travelling, y.mix.PerToken, y.dev.(Traveller)
	if len(run) == 0 {
		return errors.New("they do not say in which form they are")
	}
	forms := math.Float32bits(run[0])
	form, wanted := compute.RowForm(forms), compute.RowForm(forms>>8)
	each := form.Words(y.latent) + rowHead(k)
	switch run = run[1:]; {
	case forms>>16 != 0, form != compute.FloatRow && form != y.form, !wanted.Sound(y.latent):
		return fmt.Errorf("their forms are %#x, that of rows here is %d", forms, y.form)
	case len(run)%each != 0:
		return fmt.Errorf("%d numbers are no rows of %d", len(run), each)
	}
	if !y.group.Experts.near(place*y.group.Size + y.group.Rank) {
		y.forms[place] = wanted
	}
	t.got[place] = len(run) / each
	for ; len(run) > 0; run = run[each:] {
		words, at := form.Words(y.latent), len(t.rows)
		t.rows = slices.Grow(t.rows, y.latent)[:at+y.latent]
		dev.Widen(t.rows[at:], run[:words], form)
		head := run[words:each]
		for _, e := range head[:k] {
			id, share := int32(math.Float32bits(e)&0xffff), int(math.Float32bits(e)>>16)
			if share != y.group.Experts.Share {
				t.chosen = append(t.chosen, elsewhere)
				continue
			}
			if int(id) >= len(y.mix.Experts) || y.mix.Experts[id].Down == nil {
				return fmt.Errorf("one is for expert %d, which is not here", id)
			}
			t.chosen = append(t.chosen, id)
		}
		t.weights = append(t.weights, head[k:]...)
	}
	return nil
}

// answer sets back to what this rank's experts made of the rows of each place.
func (y *Mixture) answer() {
	t, width := &y.rank.travelling, y.latent
	t.back, t.counts = t.back[:0], zeroed(t.counts, len(t.got))
	sums, rows, row := y.sum.Floats(), len(t.rows)/width, 0
	for place, n := range t.got {
		for range n {
			t.back = append(t.back, sums[row*width:(row+1)*width]...)
			t.back = append(t.back, sums[(rows+row)*width:(rows+row+1)*width]...)
			t.counts[place] += 2 * width
			row++
		}
	}
}

func zeroed(s []int, n int) []int {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}
