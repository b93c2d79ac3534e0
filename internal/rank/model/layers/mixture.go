package layers

import (
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
)

// Mixture sends each row to the few experts, gated feed-forward blocks, that its router finds most
// likely and adds their outputs, weighted. Every rank holds its share of each expert's inner
// features.
type Mixture struct {
	*rank
	router     weight
	experts    []expert
	opt        MixtureOptions
	correction []float32 // nil for none
	chunks     int       // that the rank holds
}

// mixing is the memory that the mixtures of a rank share.
type mixing struct {
	scores  []float32
	chosen  []int32   // [rows][perToken], most likely first
	weights []float32 // parallel to chosen
	// Rows ordered by expert: those of expert e, ascending, are rowsOf[first[e]:first[e+1]].
	first    []int32
	rowsOf   []int32
	weightOf []float32 // parallel to rowsOf
	in       Tensor    // rows of one expert
	parts    []float32 // [chunks][rows of one expert][hidden]
	apart    []float32 // [rows][chunks][hidden]
	// Scores that the experts of a row are chosen by, and of groups of them.
	choice, groups, best []float32
	open                 []int32
}

type expert struct {
	gateUp *ColumnLinear
	down   weight
}

// MixtureOptions are the numbers of a mixture of experts.
type MixtureOptions struct {
	Experts, PerToken int
	// Inner is the number of inner features of each expert.
	Inner int
	// Names are the modules of an expert's gate, up and down; "" is gate_proj, up_proj and
	// down_proj.
	Names [3]string
	// Normalise says that the weights of a row's experts are divided by their sum.
	Normalise bool
	// Sigmoid says that the router's scores are logistic functions of its products, not their
	// softmax.
	Sigmoid bool
	// Correction says that the router has a bias, e_score_correction_bias, which is added to scores
	// to choose experts by, and not to their weights.
	Correction bool
	// Groups, if positive, divides the experts in as many groups, of which TopGroups may be chosen
	// from: those whose two best experts have the greatest sum.
	Groups, TopGroups int
	// Factor is what weights are multiplied by; 0 is 1.
	Factor float32
}

// Mixture makes the block under prefix: modules gate, and gate_proj, up_proj and down_proj of each
// expert.
func (l *Loader) Mixture(prefix string, hidden int, opt MixtureOptions) *Mixture {
	y := &Mixture{rank: l.rank, opt: opt, chunks: Chunks / l.group.Size, experts: make([]expert,
		opt.Experts),
		router: l.weight(1, whole(prefix+"gate", opt.Experts, hidden))}
	if opt.Correction {
		y.correction = l.vector(prefix+"gate.e_score_correction_bias", opt.Experts, 0, opt.Experts)
	}
	l.widen(&l.gated, opt.Inner/l.group.Size)
	l.widen(&l.rank.sum, hidden)
	// The rows of an expert, its output and that of all, in chunks; scores, and where rows go.
	l.widen(&l.mixing.in, hidden+2*y.chunks*hidden+opt.Experts+4*opt.PerToken)
	names := opt.Names
	if names[0] == "" {
		names = [3]string{"gate_proj", "up_proj", "down_proj"}
	}
	for e := range y.experts {
		p := fmt.Sprintf("%sexperts.%d.", prefix, e)
		y.experts[e] = expert{
			gateUp: l.column(&l.inner, false, l.columnPart(p+names[0], opt.Inner, hidden),
				l.columnPart(p+names[1], opt.Inner, hidden)),
			down: l.weight(y.chunks, l.rowPart(p+names[2], hidden, opt.Inner)),
		}
	}
	return y
}

// Add adds the block's output for x to the residual stream.
func (y *Mixture) Add(residual, x *Tensor) error {
	sum, err := y.Forward(x)
	if err == nil {
		y.AddTo(residual, sum)
	}
	return err
}

// Forward returns the block's output for x. It keeps the chunks of the experts' outputs apart until
// all experts are summed: the order of addition, experts first and then the tree over chunks and
// ranks, is the same for any number of ranks.
func (y *Mixture) Forward(x *Tensor) (*Tensor, error) {
	m := &y.mixing
	y.route(x)
	y.order(x.rows)
	m.apart = grow(m.apart, y.chunks*x.rows*x.width)
	clear(m.apart)
	for e := range y.experts {
		if lo, hi := m.first[e], m.first[e+1]; lo < hi {
			y.expert(&y.experts[e], x, m.rowsOf[lo:hi], m.weightOf[lo:hi])
		}
	}
	y.sum.Resize(x.rows, x.width)
	y.dev.SumChunks(y.sum.data, m.apart, x.rows, y.chunks, x.width)
	return &y.sum, y.allReduce(&y.sum)
}

// route fills chosen and weights: the experts of the largest scores among those that may be chosen,
// and their scores, divided by their sum if they are normalised.
func (y *Mixture) route(x *Tensor) {
	rows, n, k, m := x.rows, len(y.experts), y.opt.PerToken, &y.mixing
	m.scores = grow(m.scores, rows*n)
	y.router.mul(y.dev, m.scores, x.data, rows, nil)
	m.chosen = grow(m.chosen, rows*k)
	m.weights = grow(m.weights, rows*k)
	m.choice = grow(m.choice, n)
	for r := range rows {
		p, chosen, w := m.scores[r*n:(r+1)*n], m.chosen[r*k:(r+1)*k], m.weights[r*k:(r+1)*k]
		if y.opt.Sigmoid {
			y.dev.Vec().Sigmoid(p)
		} else {
			y.dev.Vec().Softmax(p)
		}
		y.choose(p, chosen, w)
		if y.opt.Normalise {
			var sum float32
			for _, v := range w {
				sum += v
			}
			for j := range w {
				w[j] /= sum
			}
		}
		if f := y.opt.Factor; f != 0 {
			for j := range w {
				w[j] *= f
			}
		}
	}
}

// choose fills the experts of a row by its scores, and their scores.
func (y *Mixture) choose(scores []float32, chosen []int32, w []float32) {
	if y.correction == nil && y.opt.Groups <= 1 {
		largest(scores, chosen, w)
		return
	}
	choice := y.mixing.choice
	copy(choice, scores)
	for i, b := range y.correction {
		choice[i] += b
	}
	if y.opt.Groups > 1 {
		y.closeGroups(choice)
	}
	largest(choice, chosen, w)
	for i, e := range chosen {
		w[i] = scores[e]
	}
}

// closeGroups makes the choice 0 in the groups that may not be chosen from.
func (y *Mixture) closeGroups(choice []float32) {
	m, groups, size := &y.mixing, y.opt.Groups, len(choice)/y.opt.Groups
	m.groups = grow(m.groups, groups)
	m.open, m.best = grow(m.open, y.opt.TopGroups), grow(m.best, y.opt.TopGroups)
	for g := range groups {
		first, second := float32(math.Inf(-1)), float32(math.Inf(-1))
		for _, v := range choice[g*size : (g+1)*size] {
			if v > first {
				first, second = v, first
			} else if v > second {
				second = v
			}
		}
		m.groups[g] = first + second
	}
	largest(m.groups, m.open, m.best)
	for g := range groups {
		if !slices.Contains(m.open, int32(g)) {
			clear(choice[g*size : (g+1)*size])
		}
	}
}

// largest finds the len(ids) largest of p, which has at least as many, in descending order; of
// equals the first comes first.
func largest(p []float32, ids []int32, values []float32) {
	found := 0
	for i, v := range p {
		if found == len(ids) {
			if !(v > values[found-1]) {
				continue
			}
			found--
		}
		at := found
		for ; at > 0 && v > values[at-1]; at-- {
			ids[at], values[at] = ids[at-1], values[at-1]
		}
		ids[at], values[at] = int32(i), v
		found++
	}
}

// order sorts the rows by the experts they go to.
func (y *Mixture) order(rows int) {
	n, all, m := len(y.experts), rows*y.opt.PerToken, &y.mixing
	m.first = grow(m.first, n+1)
	m.rowsOf = grow(m.rowsOf, all)
	m.weightOf = grow(m.weightOf, all)
	clear(m.first)
	for _, e := range m.chosen {
		m.first[e]++
	}
	// first[e] becomes where the rows of e end; filling from the last row on makes it where they
	// begin.
	var end int32
	for e := range n {
		end += m.first[e]
		m.first[e] = end
	}
	m.first[n] = end
	for i := all - 1; i >= 0; i-- {
		e := m.chosen[i]
		m.first[e]--
		m.rowsOf[m.first[e]] = int32(i / y.opt.PerToken)
		m.weightOf[m.first[e]] = m.weights[i]
	}
}

// expert adds the weighted output of one expert for the given rows to the chunks' sums.
func (y *Mixture) expert(e *expert, x *Tensor, rows []int32, weights []float32) {
	m := &y.mixing
	m.in.Pick(x, rows)
	combined := y.gate(compute.SiLU, e.gateUp.Forward(&m.in))
	m.parts = grow(m.parts, y.chunks*len(rows)*x.width)
	e.down.mulChunks(y.dev, m.parts, combined.data, len(rows))
	y.dev.AddWeighted(m.apart, m.parts, weights, rows, y.chunks, x.width)
}
