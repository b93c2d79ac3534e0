package proof

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/compute/cuda/kernels"
)

// mixtureShape is a mixture of experts, and how it chooses them.
type mixtureShape struct {
	name                         string
	routing                      compute.Routing
	rows, hidden, inner, experts int
	biases                       bool
	group                        int // of codes, 0 of plain weights; those of 16 are in orders
	shares                       int // among how many ranks experts are divided as well
	cost                         Cost
}

// One block chooses and sorts for so many rows and experts.
const (
	rowsAtOnce    = 64
	expertsAtOnce = 256
)

func mixtureCases() (list []Case) {
	for _, m := range []mixtureShape{
		{"softmax, biases", compute.Routing{PerToken: 2}, 19, 40, 24, 8, true, 0, 3, Small},
		{"normalised", compute.Routing{PerToken: 3, Normalise: true, Factor: 1.5}, 19, 40, 24, 8,
			false, 0, 0, Full},
		{"logistic, corrected", compute.Routing{PerToken: 2, Sigmoid: true, Normalise: true}, 70,
			32, 64, 5, true, 0, 7, Small},
		{"groups", compute.Routing{PerToken: 3, Sigmoid: true, Groups: 4, TopGroups: 2, Best: 2},
			19, 40, 24, 8, true, 0, 0, Full},
		{"one best of a group", compute.Routing{PerToken: 2, Groups: 2, TopGroups: 1, Best: 1}, 1,
			40, 24, 70, false, 0, 0, Full},
		{"260 experts", compute.Routing{PerToken: 4, Sigmoid: true}, 3, 16, 16, 260, false, 0, 0,
			Full},
		{"read times weights", compute.Routing{PerToken: 1, Inward: true}, 70, 40, 24, 8, false, 0,
			2, Small},
		{"orders", compute.Routing{PerToken: 2}, 19, 48, 32, 8, false, 16, 2, Small},
		{"in pieces", compute.Routing{PerToken: 1}, 2200, 16, 16, 3, false, 0, 2, Full},
		{"64 experts", compute.Routing{PerToken: 8, Normalise: true}, 64, 1024, 384, 64, false,
			0, 0, Large},
	} {
		list = append(list, mixtureCase(m))
	}
	return list
}

func mixtureCase(m mixtureShape) Case {
	if m.shares > 0 {
		m.name = fmt.Sprintf("%s, by %d", m.name, m.shares)
	}
	about := []kernels.ID{kernels.Combine, kernels.Route, kernels.Order}
	if m.rows <= rowsAtOnce && m.experts <= expertsAtOnce {
		about = []kernels.ID{kernels.Combine, kernels.RouteOrder}
	}
	if m.biases {
		about = append(about, kernels.ExpertBiases)
	}
	if m.ordered() {
		about = append(about, kernels.OrderColumns)
	}
	return Case{Name: fmt.Sprintf("mixture, %s, %d rows", m.name, m.rows), Kernels: about,
		cost: m.cost, run: func(s *subject) { mixture(s, &m) }}
}

// ordered says that each expert has its columns in an order of its own.
func (m *mixtureShape) ordered() bool { return m.group == 16 }

// expertNumbers are an expert's weights and biases as products have them.
type expertNumbers struct {
	gateUp, down         []float64
	gateUpBias, downBias []float32
}

// expertCodes is a weight of codes of 4 bits, with its numbers.
func (m *mixtureShape) expertCodes(s *subject, chunks, out, in int) (compute.Weight, []float64) {
	c := s.codes(&codesShape{kind: compute.Code4, group: m.group, out: out, in: in, of: in,
		order: m.ordered()})
	w, err := s.PackCodes(chunks, *c)
	if s.check(err); err != nil {
		return nil, nil
	}
	s.weights = append(s.weights, w)
	return w, s.unpacked(c, false)
}

// mixture computes rows by their experts. The reference rounds what the kernels round: rows, what
// lies between both products, and weights.
func mixture(s *subject, m *mixtureShape) {
	// Numbers between the products may round to their neighbours.
	tolerance := 2e-3
	if s.dtype == compute.Float16 {
		tolerance = 3e-4
	}
	const chunks = 8
	o := m.routing
	var correction []float32
	if o.Sigmoid {
		o.Correction, correction = s.vector(m.experts)
	}
	mix := &compute.Mixture{Routing: o, Gating: compute.Gating{Activation: compute.SiLU},
		Chunks: chunks}
	var numbers []expertNumbers
	for range m.experts {
		var e compute.Expert
		var n expertNumbers
		weight := s.weight
		if m.group != 0 {
			weight = func(chunks, out, in int) (compute.Weight, []float64) {
				return m.expertCodes(s, chunks, out, in)
			}
		}
		e.GateUp, n.gateUp = weight(1, 2*m.inner, m.hidden)
		e.Down, n.down = weight(chunks, m.hidden, m.inner)
		if m.biases {
			e.GateUpBias, n.gateUpBias = s.vector(2 * m.inner)
			e.DownBias, n.downBias = s.vector(m.hidden)
		}
		mix.Experts, numbers = append(mix.Experts, e), append(numbers, n)
	}
	if s.err != nil {
		return
	}
	x, rows := s.tensor(m.rows, m.hidden)
	scores, logits := s.tensor(m.rows, m.experts)
	_, step, _ := layOut([]sequence{{0, m.rows}})
	s.Begin(step, nil)
	mix.Load = &compute.ExpertLoad{Rows: make([]int64, m.experts)}
	y := s.poisoned(m.rows, m.hidden)
	s.Mix(y, x, scores, mix)
	without := append([]float32(nil), y.Floats()...)
	if m.biases {
		s.Mixed(y, mix)
	}
	var want, biased []float64
	sent := make([]float64, m.experts)
	for r := range m.rows {
		row := rows[r*m.hidden : (r+1)*m.hidden]
		sum, bias := make([]float64, m.hidden), make([]float64, m.hidden)
		for _, c := range choose(&o, doubles(logits[r*m.experts:(r+1)*m.experts]), correction) {
			sent[c.expert]++
			n, read := &numbers[c.expert], slices.Clone(row)
			if o.Inward {
				for i := range read {
					read[i] *= float32(c.weight)
				}
				c.weight = 1
			}
			s.addExpert(sum, c.weight, n, s.roundedAll(read), m.inner)
			for i, v := range n.downBias {
				bias[i] += c.weight * float64(v)
			}
		}
		want = append(want, sum...)
		for i, v := range sum {
			biased = append(biased, v+bias[i])
		}
	}
	s.report("y", without, want, tolerance)
	if m.shares > 0 {
		s.divided(m, mix, x, logits, y.Floats())
		s.visited(m, mix, x, logits, y.Floats(), step)
	}
	var counted []float32
	for _, n := range s.ExpertRows(mix.Load) {
		counted = append(counted, float32(n))
	}
	s.report("rows of experts", counted, sent, exactly)
	if m.biases {
		s.report("with biases", y.Floats(), biased, tolerance)
	}
}

// divided computes a mixture as ranks do that hold whole experts, one after the other, of which
// some have a copy: their sums add up to the bits of one that has all.
func (s *subject) divided(m *mixtureShape, all *compute.Mixture, x *compute.Tensor,
	logits, whole []float32) {
	mix, added := *all, make([]float32, 2*m.rows*m.hidden)
	mix.Load = nil
	for share := range m.shares {
		mix.Held = s.held(m.experts, m.shares, share)
		mix.Experts, mix.Device = heldOf(all.Experts, m.shares, share), nil
		y := s.poisoned(2*m.rows, m.hidden)
		s.Mix(y, x, s.filled(m.rows, m.experts, logits), &mix)
		for i, v := range y.Floats() {
			added[i] += v
		}
	}
	y := s.filled(2*m.rows, m.hidden, added)
	s.Mixed(y, &mix)
	s.report("by shares", y.Floats(), doubles(whole), exactly)
}

// visited is divided where the rows are those of several places, of which some have fewer than
// there is room for: what is not there has no sum.
func (s *subject) visited(m *mixtureShape, all *compute.Mixture, x *compute.Tensor,
	logits, whole []float32, step *compute.Batch) {
	mix, places := *all, 2
	for m.rows%places > 0 {
		places++
	}
	room := m.rows / places
	size := room * m.hidden
	step.Split.Places = nil
	for p := range places {
		step.Split.Places = append(step.Split.Places, int32(max(1, room-p)))
	}
	s.Begin(step, nil)
	mix.Load, mix.Places = nil, places
	got := make([]float32, 2*m.rows*m.hidden)
	for share := range m.shares {
		mix.Held = s.held(m.experts, m.shares, share)
		mix.Experts, mix.Device = heldOf(all.Experts, m.shares, share), nil
		mix.Place = share % places
		y := s.poisoned(2*m.rows, m.hidden)
		s.Mix(y, x, s.filled(m.rows, m.experts, logits), &mix)
		for i, v := range y.Floats() {
			got[i] += v
		}
	}
	// With biases of its own rows, as the rank of the last share adds them.
	first := mix.Place * room
	rows := int(step.Split.Places[mix.Place])
	own := got[2*mix.Place*size:]
	y := s.filled(2*rows, m.hidden, slices.Concat(own[:rows*m.hidden],
		own[size:size+rows*m.hidden]))
	s.Mixed(y, &mix)
	s.report("of places", y.Floats(), doubles(whole[first*m.hidden:(first+rows)*m.hidden]), exactly)
	for p, rows := range step.Split.Places {
		for i := int(rows) * m.hidden; i < size; i++ {
			if got[2*p*size+i] != 0 || got[(2*p+1)*size+i] != 0 {
				s.check(fmt.Errorf("row %d of place %d has sums", i/m.hidden, p))
				return
			}
		}
	}
}

// copiesOf are the shares that hold an expert: each third has a copy on the next share.
func copiesOf(e, shares int) []int {
	if e%3 == 0 && shares > 1 {
		return []int{e % shares, (e + 1) % shares}
	}
	return []int{e % shares}
}

// held says that of experts which copiesOf says.
func (s *subject) held(experts, shares, own int) *compute.HeldExperts {
	table := make([]int32, experts+1)
	for e := range experts {
		table[e] = int32(len(table))
		for _, share := range copiesOf(e, shares) {
			table = append(table, int32(share))
		}
	}
	table[experts] = int32(len(table))
	bits := make([]float32, len(table))
	for i, n := range table {
		bits[i] = math.Float32frombits(uint32(n))
	}
	return &compute.HeldExperts{Share: int32(own), Table: table, Memory: s.Vector(bits)}
}

// heldOf are the experts that a share has, with the biases of all.
func heldOf(all []compute.Expert, shares, own int) []compute.Expert {
	list := slices.Clone(all)
	for e := range list {
		if !slices.Contains(copiesOf(e, shares), own) {
			list[e] = compute.Expert{DownBias: list[e].DownBias}
		}
	}
	return list
}

// addExpert adds what an expert makes of a row.
func (s *subject) addExpert(sum []float64, weight float64, n *expertNumbers, row []float64,
	inner int) {
	both := make([]float64, 2*inner)
	for f := range both {
		both[f] = dot(row, n.gateUp[f*len(row):(f+1)*len(row)])
		if n.gateUpBias != nil {
			both[f] += float64(n.gateUpBias[f])
		}
	}
	between := make([]float64, inner)
	for i := range between {
		between[i] = s.rounded(float32(silu(both[i]) * both[inner+i]))
	}
	for i := range sum {
		sum[i] += weight * dot(between, n.down[i*inner:(i+1)*inner])
	}
}

// chosen is an expert of a row.
type chosen struct {
	expert int
	weight float64
}

// choose chooses the experts of a row.
func choose(o *compute.Routing, logits []float64, correction []float32) (list []chosen) {
	scores, sum := make([]float64, len(logits)), 0.0
	for i, v := range logits {
		scores[i] = logistic(v)
		if !o.Sigmoid && !o.Inward {
			scores[i] = math.Exp(v)
		}
		sum += scores[i]
	}
	choice := make([]float64, len(scores))
	for i := range scores {
		if !o.Sigmoid && !o.Inward {
			scores[i] /= sum
		}
		choice[i] = scores[i]
		if correction != nil {
			choice[i] += float64(correction[i])
		}
	}
	closeGroups(o, choice)
	order := ranked(choice)
	total := 0.0
	for _, e := range order[:o.PerToken] {
		list = append(list, chosen{e, scores[e]})
		total += scores[e]
	}
	for i := range list {
		if o.Normalise {
			list[i].weight /= total
		}
		if o.Factor != 0 {
			list[i].weight *= float64(o.Factor)
		}
	}
	return list
}

// ranked are the places of numbers, that of the greatest first.
func ranked(v []float64) []int {
	order := make([]int, len(v))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(v[b], v[a]) })
	return order
}

// closeGroups leaves a choice in the groups alone with the greatest sums of their best.
func closeGroups(o *compute.Routing, choice []float64) {
	if o.Groups < 2 {
		return
	}
	size := len(choice) / o.Groups
	sums := make([]float64, o.Groups)
	for g := range sums {
		group := choice[g*size : (g+1)*size]
		for _, e := range ranked(group)[:o.Best] {
			sums[g] += group[e]
		}
	}
	for _, g := range ranked(sums)[o.TopGroups:] {
		for i := g * size; i < (g+1)*size; i++ {
			choice[i] = math.Inf(-1)
		}
	}
}
