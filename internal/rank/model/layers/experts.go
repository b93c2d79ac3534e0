package layers

import (
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
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
	// Share is which of Shares equal shares of the experts the rank holds; the first ones are
	// larger by one where they do not divide. Place·Shares/Places is the first share of a place.
	Share, Shares int
	// Places is how many ranks of the row group exchange rows, 1 for ranks that all have the same.
	Places int
}

// holder is the share that has an expert of so many.
func (g *ExpertGroup) holder(expert, experts int) int {
	each, more := experts/g.Shares, experts%g.Shares
	if first := more * (each + 1); expert >= first {
		return more + (expert-first)/each
	}
	return expert / (each + 1)
}

// place is where a share is.
func (g *ExpertGroup) place(share int) int { return share * g.Places / g.Shares }

// Traveller is a device whose rows can be sent to the experts of other ranks.
type Traveller interface {
	// Route returns the experts of each row, [rows][PerToken], and their weights, for the scores
	// of the router, which it changes. They are valid until the next call.
	Route(scores *Tensor, mix *compute.Mixture) (chosen []int32, weights []float32)
	// MixChosen is Mix for rows whose experts are known, but for those that the mixture has no
	// weights of. The rows are width wide, each step numbers after the one before.
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
	chosen              []int32
	weights             []float32
	at                  []int32
}

// rowHead is how many numbers follow a row on its way: its experts, and their weights.
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
	k, width := y.mix.PerToken, y.hidden
	own := g.Share % (g.Shares / g.Places) // this rank's place within the shares of a place

	// There: to each place the rows that it has experts of.
	t.out, t.at = t.out[:0], t.at[:0]
	t.counts, t.want = zeroed(t.counts, g.Places), zeroed(t.want, g.Places)
	values := x.Floats()
	for place := range g.Places {
		for r := range x.Rows {
			here, comes := false, false
			for _, e := range chosen[r*k : (r+1)*k] {
				share := g.holder(int(e), len(y.mix.Experts))
				if g.place(share) == place {
					here, comes = true, comes || share%(g.Shares/g.Places) == own
				}
			}
			if !here {
				continue
			}
			t.out = append(t.out, values[r*width:(r+1)*width]...)
			for _, e := range chosen[r*k : (r+1)*k] {
				t.out = append(t.out, math.Float32frombits(uint32(e)))
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
			if slices.ContainsFunc(t.chosen[row*k:(row+1)*k], func(e int32) bool {
				return g.holder(int(e), len(y.mix.Experts)) == g.Share
			}) {
				t.back = append(t.back, sums[row*width:(row+1)*width]...)
				t.back = append(t.back, sums[(rows+row)*width:(rows+row+1)*width]...)
				t.counts[place] += 2 * width
			}
			row++
		}
	}
	y.report(true)
	t.home, err = comm.AllToAllV(t.home, t.back, t.counts, t.got)
	y.report(false)
	if err != nil {
		return err
	}
	if !slices.Equal(t.got, t.want) {
		return fmt.Errorf("layer %d: experts of other ranks answer with %v numbers, due are %v",
			y.layer, t.got, t.want)
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
			id := int32(math.Float32bits(e))
			if id < 0 || int(id) >= len(y.mix.Experts) {
				return fmt.Errorf("layer %d: a row came for expert %d of %d", y.layer, id,
					len(y.mix.Experts))
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
