package balance

import (
	"errors"
	"fmt"
	"slices"
)

// Plan is a change of the placements of a model's layers.
type Plan struct {
	// Layers are the placements after it; a layer without moves has its present one.
	Layers []Placement
	// Moves are the copies that are written, layer by layer, in the order of ranks and slots. A
	// layer's moves happen together: each reads what was in a slot before any of them.
	Moves []Move
	// Before and After are the means of the ranks' loads over the largest, summed over layers
	// each: layers run one after the other, and each takes as long as its slowest rank.
	Before, After float64
}

// Move is the copy of an expert of a layer that a rank fetches into a slot. From is the rank that
// it is fetched from: one that has the expert now, on the same node if there is one.
type Move struct{ Layer, Expert, From, To, Slot int }

// Together calls a function for each of so many parts, beside each other where it can.
type Together func(f func(part, parts int))

// Alone is all in one part.
func Alone(f func(part, parts int)) { f(0, 1) }

// nearly is by how much the most loaded rank may exceed that of a placement made from nothing for
// the sake of experts that stay where they are.
const nearly = 0.02

// Make plans placements for the next rows, which are taken to be as the last ones: load is the rows
// that were sent to each expert, [layer][expert], and present the placement of each layer. A layer
// is changed only if its most loaded rank has less to do afterwards by at least the part minGain (0
// to 1) of its load. Where no layer is, there is no plan: nil. Layers are independent of each
// other: together computes them, and what comes out is the same in any number of parts.
func Make(load [][]int64, present []Placement, ranks Ranks, minGain float64,
	together Together) (*Plan, error) {
	if len(load) == 0 || len(load) != len(present) {
		return nil, fmt.Errorf("loads of %d layers, and placements of %d", len(load), len(present))
	}
	if !(minGain >= 0 && minGain <= 1) {
		return nil, fmt.Errorf("the least gain is %v: must be 0 to 1", minGain)
	}
	experts := len(load[0])
	if experts == 0 {
		return nil, errors.New("no experts")
	}
	if err := ranks.check(experts); err != nil {
		return nil, err
	}
	for l := range load {
		if len(load[l]) != experts {
			return nil, fmt.Errorf("layer %d has %d experts, the first has %d", l, len(load[l]),
				experts)
		}
		for e, n := range load[l] {
			if n < 0 {
				return nil, fmt.Errorf("layer %d: expert %d has %d rows", l, e, n)
			}
		}
		if err := present[l].Check(experts, ranks); err != nil {
			return nil, fmt.Errorf("layer %d: %w", l, err)
		}
	}
	changes := make([]change, len(load))
	together(func(part, parts int) {
		m := newMaker(experts, ranks)
		for l := part; l < len(load); l += parts {
			changes[l] = m.change(l, load[l], present[l], minGain)
		}
	})
	plan := &Plan{}
	var mean, before, after float64
	for _, c := range changes {
		mean, before, after = mean+c.mean, before+c.before, after+c.after
		plan.Layers, plan.Moves = append(plan.Layers, c.to), append(plan.Moves, c.moves...)
	}
	if len(plan.Moves) == 0 {
		return nil, nil
	}
	plan.Before, plan.After = mean/before, mean/after
	return plan, nil
}

// change is what becomes of a layer: its placement, what is moved for it, and the load of its
// ranks, the mean and that of the most loaded one before and after.
type change struct {
	to                  Placement
	moves               []Move
	mean, before, after float64
}

func (m *maker) change(layer int, load []int64, present Placement, minGain float64) change {
	was := present.Loads(load)
	c := change{to: present, before: slices.Max(was)}
	for _, v := range was {
		c.mean += v / float64(len(was))
	}
	c.after = c.before
	next := m.place(load, present)
	if next == nil {
		return c
	}
	if now := slices.Max(next.Loads(load)); now < c.before && c.before-now >= minGain*c.before {
		c.to, c.after, c.moves = next, now, m.appendMoves(nil, layer, present, next)
	}
	return c
}

// place is a placement with less load on the most loaded rank than the present one, nil for none.
func (m *maker) place(load []int64, present Placement) Placement {
	now := m.now
	now.begin(load)
	now.fill(present)
	// The most loaded rank cannot have less than the mean.
	if now.most() <= now.mean() {
		return nil
	}
	m.anew(load)
	goal := min(m.best.most(), now.most()) * (1 + nearly)
	// As few copies as possible move: but for parts that no rank may have, places are exchanged
	// first, and what copies there are is changed only as far as that does not do.
	for now.greatest() > goal && now.recopy() {
	}
	now.exchange(goal)
	for now.most() > goal && now.recopy() {
		now.exchange(goal)
	}
	if now.most() > goal {
		return m.best.renumbered(present).placement(present)
	}
	return now.placement(present)
}

// appendMoves adds what is to be fetched for the next placement of a layer.
func (m *maker) appendMoves(list []Move, layer int, present, next Placement) []Move {
	nodes := m.now.ranks.Nodes
	clear(m.asked)
	for e := range m.have {
		m.have[e] = m.have[e][:0]
	}
	for r, experts := range present {
		for _, e := range experts {
			m.have[e] = append(m.have[e], r)
		}
	}
	for to := range next {
		for slot, e := range next[to] {
			if present[to][slot] == e {
				continue
			}
			from := -1
			for _, r := range m.have[e] {
				near := nodes[r] == nodes[to]
				if from < 0 || near && nodes[from] != nodes[to] ||
					near == (nodes[from] == nodes[to]) && m.asked[r] < m.asked[from] {
					from = r
				}
			}
			m.asked[from]++
			list = append(list, Move{Layer: layer, Expert: e, From: from, To: to, Slot: slot})
		}
	}
	return list
}
