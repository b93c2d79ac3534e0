// Package balance plans which ranks compute which experts of a mixture when each rank has whole
// experts: hot experts have copies on several ranks, and the rows of a step are spread over ranks
// as evenly as their loads allow. It knows no ranks that run, only loads and numbers, and the same
// input has the same plan everywhere.
//
// vLLM calls this expert parallel load balancing (EPLB). The method is that of DeepSeek's EPLB
// (https://github.com/deepseek-ai/EPLB): the expert with the most rows per copy is copied again,
// then copies are packed with the largest first. That begins from nothing each time, and nearly
// every expert has another place afterwards; here the present placement is changed, one exchange
// at a time, until it is nearly as good as one made from nothing.
package balance

import "fmt"

// Ranks are what experts are placed on.
type Ranks struct {
	// Nodes is the number of the node that each rank is on.
	Nodes []int
	// Slots is how many experts of a layer each rank has: the numbers differ by one at most.
	Slots []int
}

// Spread divides the experts of a layer and redundant copies of some over the slots of ranks; where
// they do not divide, the first ranks have one more. A rank has no expert twice, which bounds the
// copies.
func Spread(experts, redundant int, nodes []int) (Ranks, error) {
	n := len(nodes)
	if n == 0 || experts < 1 {
		return Ranks{}, fmt.Errorf("%d experts on %d ranks: each must be at least 1", experts, n)
	}
	if most := experts * (n - 1); redundant < 0 || redundant > most {
		return Ranks{}, fmt.Errorf("%d redundant experts: must be 0 to %d, which is a copy of "+
			"each of %d experts on each of %d ranks", redundant, most, experts, n)
	}
	total := experts + redundant
	slots := make([]int, n)
	for r := range slots {
		slots[r] = total / n
		if r < total%n {
			slots[r]++
		}
	}
	return Ranks{Nodes: nodes, Slots: slots}, nil
}

// check refuses slots that experts cannot fill so that each is there and none is twice on a rank.
func (r Ranks) check(experts int) error {
	n := len(r.Slots)
	if n == 0 || len(r.Nodes) != n {
		return fmt.Errorf("slots of %d ranks, and nodes of %d", n, len(r.Nodes))
	}
	total, least, most := 0, r.Slots[0], r.Slots[0]
	for rank, s := range r.Slots {
		if s < 0 || s > experts {
			return fmt.Errorf("rank %d has %d slots: must be 0 to %d, the number of experts", rank,
				s, experts)
		}
		total, least, most = total+s, min(least, s), max(most, s)
	}
	if total < experts {
		return fmt.Errorf("%d slots for %d experts", total, experts)
	}
	if most > least+1 {
		return fmt.Errorf("ranks have %d to %d slots: they may differ by one", least, most)
	}
	return nil
}

// Placement is which expert each slot of each rank has in one layer: [rank][slot]. Every expert has
// a slot, and no rank has one twice.
type Placement [][]int

// Initial is the placement before any load is known: the experts in order, rank after rank, and
// then the first ones again, as vLLM begins.
func Initial(experts int, ranks Ranks) (Placement, error) {
	if err := ranks.check(experts); err != nil {
		return nil, err
	}
	p, next := make(Placement, len(ranks.Slots)), 0
	for r, slots := range ranks.Slots {
		p[r] = make([]int, slots)
		for s := range p[r] {
			p[r][s] = next % experts
			next++
		}
	}
	return p, nil
}

// Check refuses a placement that is none of so many experts on those ranks.
func (p Placement) Check(experts int, ranks Ranks) error {
	if len(p) != len(ranks.Slots) {
		return fmt.Errorf("a placement on %d ranks, not %d", len(p), len(ranks.Slots))
	}
	last := make([]int, experts) // one more than the last rank that has it
	for r, list := range p {
		if len(list) != ranks.Slots[r] {
			return fmt.Errorf("rank %d has %d experts in %d slots", r, len(list), ranks.Slots[r])
		}
		for _, e := range list {
			if e < 0 || e >= experts {
				return fmt.Errorf("rank %d has expert %d of %d", r, e, experts)
			}
			if last[e] == r+1 {
				return fmt.Errorf("rank %d has expert %d twice", r, e)
			}
			last[e] = r + 1
		}
	}
	for e, r := range last {
		if r == 0 {
			return fmt.Errorf("no rank has expert %d", e)
		}
	}
	return nil
}

// copies is how many slots each expert has.
func (p Placement) copies(experts int) []int {
	c := make([]int, experts)
	for _, list := range p {
		for _, e := range list {
			c[e]++
		}
	}
	return c
}

// Loads are the rows that each rank computes, load being the rows of each expert: the copies of an
// expert have equal parts of them.
func (p Placement) Loads(load []int64) []float64 {
	c := p.copies(len(load))
	sums := make([]float64, len(p))
	for r, list := range p {
		for _, e := range list {
			sums[r] += float64(load[e]) / float64(c[e])
		}
	}
	return sums
}

// Balancedness is the mean of loads over the largest, vLLM's measure: above 0, and 1 when all are
// equal, or there is no load.
func Balancedness[N int64 | float64](loads []N) float64 {
	sum, most := 0.0, 0.0
	for _, v := range loads {
		sum, most = sum+float64(v), max(most, float64(v))
	}
	if most == 0 {
		return 1
	}
	return sum / float64(len(loads)) / most
}
