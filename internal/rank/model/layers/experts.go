package layers

import (
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/link/balance"
)

// ExpertGroup says which of a mixture's experts a rank holds: whole ones (expert parallelism,
// Lepikhin et al. 2020, "GShard").
//
// The ranks of a tensor parallel group have the same rows: each computes what its experts make of
// them, and the sums over ranks are those of the mixture. Ranks of several groups, the places among
// which requests are divided (data parallel attention), have rows of their own: a row travels to
// each place that has experts of it, and what they make of it travels back. Rank i of a place
// exchanges with the i-th ranks of the others, so that the ranks of a place get the same rows
// again.
//
// The order in which a row's experts are summed does not matter: see compute/cpu/vec, FixedAxpy.
type ExpertGroup struct {
	// Share is which of Shares equal shares of the experts the rank holds. Place·Shares/Places is
	// the first share of a place.
	Share, Shares int
	// Places is how many ranks of the row group exchange rows, 1 for ranks that all have the same.
	Places int
	// Redundant is how many experts of a layer have a second copy, or some more than one. Moving
	// says that there is room for those of a layer twice.
	Redundant int
	Moving    bool
	// At is where the experts of the model's layers are, where that is not as at the beginning.
	At map[int]balance.Placement
}

// place is where a share is.
func (g *ExpertGroup) place(share int) int { return share * g.Places / g.Shares }

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

// Slots is how many experts of a layer each share has, of so many. All ranks count as near to each
// other.
func (g *ExpertGroup) Slots(experts int) (balance.Ranks, error) {
	return balance.Spread(experts, g.Redundant, make([]int, g.Shares))
}

// source is that of the rows that a rank has: its place's, or everyone's.
func (g *ExpertGroup) source() int {
	if g.Places == 1 {
		return balance.Everyone
	}
	return g.place(g.Share) * g.Shares / g.Places
}

// Traveller is a device whose rows can be sent to the experts of other ranks.
type Traveller interface {
	// Route returns the experts of each row, [rows][PerToken], and their weights, for the scores
	// of the router, which it changes. They are valid until the next call.
	Route(scores *Tensor, mix *compute.Mixture) (chosen []int32, weights []float32)
	// MixChosen is Mix for rows whose experts are known; negative ones are left out. The rows are
	// width wide, each step numbers after the one before.
	MixChosen(sum *Tensor, x []float32, width, step int, chosen []int32, weights []float32,
		mix *compute.Mixture)
	// MixGathered makes sum what Mix makes of rows, width wide, of what MixChosen made elsewhere:
	// parts are [len(at)][2][width], the high and the low part of it of row at[i]. A row may be
	// among at several times, or never.
	MixGathered(sum *Tensor, parts []float32, at []int32, rows, width int)
}

// travelling is what rows are sent to experts in.
type travelling struct {
	out, in, back, home []float32
	counts, got, want   []int
	shares              []int // of the rows' chosen experts
	chosen              []int32
	weights             []float32
	at                  []int32
}

// elsewhere stands for an expert that another rank computes.
const elsewhere = -1

// share sets the shares that compute the chosen experts of each row: of copies those whose turn it
// is.
func (y *Mixture) share(chosen []int32) {
	t, k := &y.rank.travelling, y.mix.PerToken
	t.shares = t.shares[:0]
	for i, e := range chosen {
		turn := uint64(i/k) + uint64(y.positions[i/k])
		t.shares = append(t.shares, y.copies.At(int(e), turn).Rank)
	}
}

// local makes sum what this rank's experts make of rows that all ranks have.
func (y *Mixture) local(x *Tensor) {
	t, dev := &y.rank.travelling, y.dev.(Traveller)
	chosen, weights := dev.Route(&y.scores, &y.mix)
	y.share(chosen)
	t.chosen = append(t.chosen[:0], chosen...)
	for i, share := range t.shares {
		if share != y.group.Experts.Share {
			t.chosen[i] = elsewhere
		}
	}
	dev.MixChosen(&y.sum, x.Floats(), x.Width, x.Width, t.chosen, weights, &y.mix)
}

// rowHead is how many numbers follow a row on its way: its experts, with the shares that compute
// them, and their weights.
func rowHead(perToken int) int { return 2 * perToken }

// travelWidth is how many float32 each row takes of each rank on its way, there and back: sent and
// received, at most by all of places.
func travelWidth(hidden, perToken, places int) int {
	return places * (2*(hidden+rowHead(perToken)) + 4*hidden)
}

// travel makes sum this rank's part of what the experts make of the rows of x, wherever they are:
// added over the ranks of the place it is all of it.
func (y *Mixture) travel(x *Tensor) error {
	t, g := &y.rank.travelling, y.group.Experts
	dev, comm := y.dev.(Traveller), y.group.Rows.Comm
	chosen, weights := dev.Route(&y.scores, &y.mix)
	y.share(chosen)
	k, width := y.mix.PerToken, y.hidden
	own := g.Share % (g.Shares / g.Places) // this rank's place within the shares of a place

	// There: to each place the rows that it has experts of.
	t.out, t.at = t.out[:0], t.at[:0]
	t.counts, t.want = zeroed(t.counts, g.Places), zeroed(t.want, g.Places)
	values := x.Floats()
	for place := range g.Places {
		for r := range x.Rows {
			here, comes := false, false
			for _, share := range t.shares[r*k : (r+1)*k] {
				if g.place(share) == place {
					here, comes = true, comes || share%(g.Shares/g.Places) == own
				}
			}
			if !here {
				continue
			}
			t.out = append(t.out, values[r*width:(r+1)*width]...)
			for i, e := range chosen[r*k : (r+1)*k] {
				t.out = append(t.out, math.Float32frombits(uint32(e)|
					uint32(t.shares[r*k+i])<<16))
			}
			t.out = append(t.out, weights[r*k:(r+1)*k]...)
			t.counts[place] += width + rowHead(k)
			if comes {
				t.at = append(t.at, int32(r))
				t.want[place] += 2 * width
			}
		}
	}
	t.got = zeroed(t.got, g.Places)
	y.report(true)
	in, err := comm.AllToAllV(t.in, t.out, t.counts, t.got)
	y.report(false)
	if err != nil {
		return err
	}
	t.in = in
	if err := y.visitors(in, width); err != nil {
		return err
	}

	// Back: to each place what this rank's experts made of its rows.
	t.back, t.counts = t.back[:0], zeroed(t.counts, g.Places)
	sums, rows, row := y.sum.Floats(), len(in)/(width+rowHead(k)), 0
	for place, n := range t.got {
		for ; n > 0; n -= width + rowHead(k) {
			if slices.Max(t.chosen[row*k:(row+1)*k]) >= 0 {
				t.back = append(t.back, sums[row*width:(row+1)*width]...)
				t.back = append(t.back, sums[(rows+row)*width:(rows+row+1)*width]...)
				t.counts[place] += 2 * width
			}
			row++
		}
	}
	t.home = slices.Grow(t.home[:0], 2*width*len(t.at))[:2*width*len(t.at)]
	y.report(true)
	err = comm.AllToAll(t.home, t.back, t.counts, t.want)
	y.report(false)
	if err != nil {
		return err
	}
	dev.MixGathered(&y.sum, t.home, t.at, x.Rows, width)
	return nil
}

// Idle takes part in a step of which this rank's place has no rows: its experts compute those of
// other places, mixture by mixture.
func (l *Loader) Idle() error {
	for _, y := range l.hosts {
		l.Enter(y.at)
		y.dev.Resize(&y.scores, 0, y.router.Out())
		if err := y.travel(new(Tensor)); err != nil {
			return err
		}
	}
	return nil
}

// visitors makes sum what this rank's experts make of rows that have come here.
func (y *Mixture) visitors(in []float32, width int) error {
	t, k := &y.rank.travelling, y.mix.PerToken
	each := width + rowHead(k)
	if len(in)%each != 0 {
		return fmt.Errorf("layer %d: %d numbers came for experts, which are no rows of %d",
			y.layer, len(in), each)
	}
	rows := len(in) / each
	t.chosen, t.weights = t.chosen[:0], t.weights[:0]
	for r := range rows {
		head := in[r*each+width : (r+1)*each]
		for _, e := range head[:k] {
			id, share := int32(math.Float32bits(e)&0xffff), int(math.Float32bits(e)>>16)
			if share != y.group.Experts.Share {
				t.chosen = append(t.chosen, elsewhere)
				continue
			}
			if int(id) >= len(y.mix.Experts) || y.mix.Experts[id].Down == nil {
				return fmt.Errorf("layer %d: a row came for expert %d, which is not here", y.layer,
					id)
			}
			t.chosen = append(t.chosen, id)
		}
		t.weights = append(t.weights, head[k:]...)
	}
	y.dev.(Traveller).MixChosen(&y.sum, in, width, each, t.chosen, t.weights, &y.mix)
	return nil
}

func zeroed(s []int, n int) []int {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}
