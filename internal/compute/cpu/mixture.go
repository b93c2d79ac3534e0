package cpu

import (
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cpu/gemm"
	"github.com/eagleray/eagleray/internal/compute/cpu/isa"
)

// mixing is what mixtures of experts are computed in.
type mixing struct {
	chosen  []int32   // [rows][PerToken], most likely first
	weights []float32 // parallel to chosen
	own     []int32   // those of chosen that this rank computes, negative the others
	// Rows ordered by expert: those of expert e, ascending, are rowsOf[first[e]:first[e+1]].
	first    []int32
	rowsOf   []int32
	weightOf []float32 // parallel to rowsOf

	visiting         memory         // rows of other ranks
	in, inner, gated compute.Tensor // rows of one expert
	parts            compute.Tensor // [chunks][rows of one expert][hidden]
	sums             []float64      // [rows][hidden], fixed-point
	// Scores that the experts of a row are chosen by, and of groups of them.
	choice, groups, best []float32
	open                 []int32
}

// MixtureWidth is how many float32 Mix computes in for each row, beside what it is given.
func (p Planner) MixtureWidth(hidden, inner, chunks, experts, perToken int) int {
	return hidden + 3*inner + (chunks+2)*hidden + experts + 4*perToken
}

// VisitWidth is 0: rows travel to other ranks.
func (p Planner) VisitWidth(mixture, hidden, experts, perToken, places, rows int) int { return 0 }

// Mix makes sum the parts that this rank has of the weighted sums of what the experts of each row
// of x make of it. scores are the router's products, and are changed. The terms of the sums, the
// chunks of the experts' outputs, are added in fixed point, so that it does not matter which rank
// adds which of them; sum is [2·rows][width], the high parts of all rows and then the low ones
// (see [vec.Ops.FixedAxpy]).
func (d *Device) Mix(sum, x, scores *compute.Tensor, mix *compute.Mixture) {
	chosen, weights := d.Route(scores, mix)
	if h := mix.Held; h != nil {
		d.mixed.own = append(d.mixed.own[:0], chosen...)
		chosen = d.mixed.own
		for i, e := range chosen {
			row := i / mix.PerToken
			if h.Of(e, uint64(row)+uint64(d.positions[row])) != h.Share {
				chosen[i] = -1
			}
		}
	}
	d.mix(sum, x.All(), chosen, weights, mix)
}

// Route returns the experts of each row, [rows][PerToken], and their weights, for the scores of the
// router, which it changes. They are valid until the next call.
func (d *Device) Route(scores *compute.Tensor, mix *compute.Mixture) ([]int32, []float32) {
	m := &d.mixed
	m.route(d, scores, &mix.Routing)
	m.count(mix.Load, mix.PerToken, d.alone)
	return m.chosen, m.weights
}

// MixChosen is Mix for rows, width wide, whose experts are known; negative ones are left out.
func (d *Device) MixChosen(sum *compute.Tensor, x []float32, width int, chosen []int32,
	weights []float32, mix *compute.Mixture) {
	d.mixed.visiting.data = x
	d.mix(sum, compute.View{Memory: &d.mixed.visiting, Rows: len(chosen) / mix.PerToken,
		Width: width, Stride: width}, chosen, weights, mix)
	d.mixed.visiting.data = nil
}

// RowForm is the narrowest form of rows of which the experts that are here make the same bits.
func (d *Device) RowForm(mix *compute.Mixture) compute.RowForm {
	form, known := compute.FloatRow, false
	if mix.Inward { // experts multiply other numbers
		return form
	}
	for i := range mix.Experts {
		w := mix.Experts[i].GateUp
		if w == nil {
			continue
		}
		for _, m := range w.(packed).matrices() {
			if known && m.RowForm() != form {
				return compute.FloatRow
			}
			form, known = m.RowForm(), true
		}
	}
	return form
}

// Narrow makes dst a row in a form, Widen a row of one in a form, from which products make what
// they make of it.
func (d *Device) Narrow(dst, row []float32, form compute.RowForm) {
	gemm.Narrow(dst, row, form, d.isa != isa.Portable)
}

// Widen is explained at Narrow.
func (d *Device) Widen(row, src []float32, form compute.RowForm) { gemm.Widen(row, src, form) }

// MixGathered makes sum what Mix makes of rows, width wide, of what MixChosen made elsewhere: parts
// are [len(at)][2][width], the high and the low part of it of row at[i]. A row may be among at
// several times, or never.
func (d *Device) MixGathered(sum *compute.Tensor, parts []float32, at []int32, rows, width int) {
	sums := d.mixed.zero(rows * width)
	for i, r := range at {
		d.vec.FixedAxpy(sums[int(r)*width:int(r+1)*width], 1, parts[2*i*width:], 2, width)
	}
	d.Resize(sum, 2*rows, width)
	d.cut(floats(sum.Memory), sums, rows, width)
}

// zero is memory for so many fixed-point sums.
func (m *mixing) zero(n int) []float64 {
	m.sums = grow(m.sums, n)
	clear(m.sums)
	return m.sums
}

// mix is Mix for rows whose experts are known.
func (d *Device) mix(sum *compute.Tensor, x compute.View, chosen []int32, weights []float32,
	mix *compute.Mixture) {
	m := &d.mixed
	m.order(chosen, weights, mix.PerToken, len(mix.Experts))
	sums := m.zero(x.Rows * x.Width)
	for e := range mix.Experts {
		lo, hi := m.first[e], m.first[e+1]
		if lo == hi {
			continue
		}
		rows, y := m.rowsOf[lo:hi], &mix.Experts[e]
		d.Pick(&m.in, x, rows)
		weights := m.weightOf[lo:hi]
		if mix.Inward {
			d.scaleRows(&m.in, weights)
			for i := range weights {
				weights[i] = 1
			}
		}
		d.GatedProduct(mix.Gating, &m.gated, &m.inner, y.GateUp, m.in.All(), y.GateUpBias, y.Down)
		y.Down.ProductChunks(&m.parts, m.gated.All())
		d.addWeighted(sums, floats(m.parts.Memory), weights, rows, mix.Chunks, x.Width)
	}
	d.Resize(sum, 2*x.Rows, x.Width)
	d.cut(floats(sum.Memory), sums, x.Rows, x.Width)
}

// Mixed makes sum, in which the ranks have added what the last Mix left in it, the sums of its
// rows, with the biases of their experts' down projections, weighted.
func (d *Device) Mixed(sum *compute.Tensor, mix *compute.Mixture) {
	m, k := &d.mixed, mix.PerToken
	d.join(floats(sum.Memory), sum.Rows/2, sum.Width)
	sum.Rows /= 2
	if mix.Experts[0].DownBias == nil {
		return
	}
	for r := range sum.Rows {
		for j, e := range m.chosen[r*k : (r+1)*k] {
			d.vec.Axpy(sum.Row(r), m.weights[r*k+j], floats(mix.Experts[e].DownBias))
		}
	}
}

// route fills chosen and weights: the experts of the largest scores among those that may be chosen,
// and their scores, divided by their sum if they are normalised.
func (m *mixing) route(d *Device, scores *compute.Tensor, o *compute.Routing) {
	rows, n, k := scores.Rows, scores.Width, o.PerToken
	m.chosen = grow(m.chosen, rows*k)
	m.weights = grow(m.weights, rows*k)
	m.choice = grow(m.choice, n)
	for r := range rows {
		p, chosen, w := scores.Row(r), m.chosen[r*k:(r+1)*k], m.weights[r*k:(r+1)*k]
		switch {
		case o.Near > 0:
			m.near(d, p, chosen, w, o.Near)
			continue
		case o.Inward: // scores are the products
		case o.Sigmoid:
			d.vec.Sigmoid(p)
		default:
			d.vec.Softmax(p)
		}
		m.choose(p, chosen, w, o)
		if o.Inward {
			d.vec.Sigmoid(w)
		}
		if o.Normalise {
			var sum float32
			for _, v := range w {
				sum += v
			}
			for j := range w {
				w[j] /= sum
			}
		}
		if f := o.Factor; f != 0 {
			for j := range w {
				w[j] *= f
			}
		}
		if f := floats(o.Factors); f != nil {
			for j, e := range chosen {
				w[j] *= f[e]
			}
		}
	}
}

// near fills the experts of a row, and their weights, by the products that are near to each.
func (m *mixing) near(d *Device, p []float32, chosen []int32, w []float32, near float32) {
	for j := range chosen {
		most := float32(math.Inf(-1))
		chosen[j] = -1
		for i, v := range p {
			if (chosen[j] < 0 || v > most) && !slices.Contains(chosen[:j], int32(i)) {
				chosen[j], most = int32(i), v
			}
		}
		for i, v := range p {
			m.choice[i] = v
			if (most-v)/max(v, -v, most) > near || slices.Contains(chosen[:j], int32(i)) {
				m.choice[i] = float32(math.Inf(-1))
			}
		}
		d.vec.Softmax(m.choice)
		w[j] = m.choice[chosen[j]]
	}
}

// choose fills the experts of a row by its scores, and their scores.
func (m *mixing) choose(scores []float32, chosen []int32, w []float32, o *compute.Routing) {
	if o.Correction == nil && o.Groups <= 1 {
		largest(scores, chosen, w)
		return
	}
	choice := m.choice
	copy(choice, scores)
	for i, b := range floats(o.Correction) {
		choice[i] += b
	}
	if o.Groups > 1 {
		m.closeGroups(choice, o)
	}
	largest(choice, chosen, w)
	for i, e := range chosen {
		w[i] = scores[e]
	}
}

// closeGroups leaves no choice in the groups that may not be chosen from: corrections may make that
// of the others negative.
func (m *mixing) closeGroups(choice []float32, o *compute.Routing) {
	groups, size := o.Groups, len(choice)/o.Groups
	m.groups = grow(m.groups, groups)
	m.open, m.best = grow(m.open, o.TopGroups), grow(m.best, o.TopGroups)
	for g := range groups {
		first, second := float32(math.Inf(-1)), float32(math.Inf(-1))
		for _, v := range choice[g*size : (g+1)*size] {
			if v > first {
				first, second = v, first
			} else if v > second {
				second = v
			}
		}
		m.groups[g] = first
		if o.Best > 1 {
			m.groups[g] += second
		}
	}
	largest(m.groups, m.open, m.best)
	for g := range groups {
		if !slices.Contains(m.open, int32(g)) {
			for i := g * size; i < (g+1)*size; i++ {
				choice[i] = float32(math.Inf(-1))
			}
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

// order sorts rows, of k chosen experts each, by the experts they go to; negative ones are left
// out.
func (m *mixing) order(chosen []int32, weights []float32, k, experts int) {
	all := len(chosen)
	m.first = grow(m.first, experts+1)
	m.rowsOf = grow(m.rowsOf, all)
	m.weightOf = grow(m.weightOf, all)
	clear(m.first)
	for _, e := range chosen {
		if e >= 0 {
			m.first[e]++
		}
	}
	// first[e] becomes where the rows of e end; filling from the last row on makes it where they
	// begin.
	var end int32
	for e := range experts {
		end += m.first[e]
		m.first[e] = end
	}
	m.first[experts] = end
	for i := all - 1; i >= 0; i-- {
		e := chosen[i]
		if e < 0 {
			continue
		}
		m.first[e]--
		m.rowsOf[m.first[e]] = int32(i / k)
		m.weightOf[m.first[e]] = weights[i]
	}
}
