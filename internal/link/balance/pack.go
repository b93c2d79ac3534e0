package balance

import (
	"math"
	"slices"
)

// packing is the experts of one layer on ranks, on their way to a placement.
type packing struct {
	load  []float64 // of each expert
	ranks Ranks
	// copies is how many ranks have each expert, or are to have it; each of them has each of its
	// parts.
	copies []int
	each   []float64 // load over copies
	on     [][]int   // the experts of each rank
	where  [][]int   // the ranks that have each expert
	has    []bool    // [expert][rank]
	sums   []float64 // of the parts that each rank has
	order  []int     // the ranks, those with the least first, of equals by their numbers
	spot   []int     // where in that order each rank is
	// small and great are the smallest and the greatest part that each rank has.
	small, great []float64
	// node is the number of each rank's node, and near how many copies of an expert each node has,
	// [node][expert].
	node, near []int
}

// newPacking is room for the experts of a layer. It has none until begin.
func newPacking(experts int, ranks Ranks) *packing {
	n := len(ranks.Slots)
	p := &packing{load: make([]float64, experts), ranks: ranks, copies: make([]int, experts),
		each: make([]float64, experts), on: make([][]int, n), where: make([][]int, experts),
		has: make([]bool, n*experts), sums: make([]float64, n), order: make([]int, n),
		spot: make([]int, n), small: make([]float64, n), great: make([]float64, n),
		node: make([]int, n)}
	numbers := map[int]int{}
	for r, node := range ranks.Nodes {
		if _, known := numbers[node]; !known {
			numbers[node] = len(numbers)
		}
		p.node[r] = numbers[node]
	}
	p.near = make([]int, len(numbers)*experts)
	return p
}

// begin has ranks have nothing, and each expert one copy to come.
func (p *packing) begin(load []int64) {
	for e, v := range load {
		p.load[e], p.each[e], p.copies[e], p.where[e] = float64(v), float64(v), 1, p.where[e][:0]
	}
	clear(p.has)
	clear(p.near)
	for r := range p.on {
		p.on[r], p.sums[r], p.order[r], p.spot[r] = p.on[r][:0], 0, r, r
	}
}

func (p *packing) at(rank, expert int) *bool { return &p.has[expert*len(p.on)+rank] }

// most is the load of the most loaded rank; mean is what it cannot be below.
func (p *packing) most() float64 { return p.sums[p.order[len(p.order)-1]] }

func (p *packing) mean() float64 {
	sum := 0.0
	for _, v := range p.load {
		sum += v
	}
	return sum / float64(len(p.on))
}

// greatest is the greatest part of an expert that may have one more copy, 0 where there is none.
func (p *packing) greatest() float64 {
	if e := p.hottest(); e >= 0 {
		return p.each[e]
	}
	return 0
}

// fill has ranks have what a placement says.
func (p *packing) fill(from Placement) {
	clear(p.copies)
	for _, list := range from {
		for _, e := range list {
			p.copies[e]++
		}
	}
	for e, c := range p.copies {
		p.each[e] = p.load[e] / float64(c)
	}
	for r, list := range from {
		for _, e := range list {
			p.add(r, e)
		}
	}
}

func (p *packing) add(rank, expert int) {
	p.insert(rank, expert)
	p.sums[rank] += p.each[expert]
	p.reorder(rank)
}

func (p *packing) remove(rank, expert int) {
	p.erase(rank, expert)
	p.sums[rank] -= p.each[expert]
	p.reorder(rank)
}

// swap exchanges expert x of rank h for expert y of rank r.
func (p *packing) swap(h, x, r, y int) {
	p.erase(h, x)
	p.erase(r, y)
	p.insert(h, y)
	p.insert(r, x)
	p.sums[h] = p.sums[h] - p.each[x] + p.each[y]
	p.sums[r] = p.sums[r] - p.each[y] + p.each[x]
	p.reorder(h)
	p.reorder(r)
}

// insert and erase do what add and remove do, but for what follows for sums: reorder has to be
// called once these are right.
func (p *packing) insert(rank, expert int) {
	p.on[rank] = append(p.on[rank], expert)
	p.where[expert] = append(p.where[expert], rank)
	*p.at(rank, expert) = true
	p.near[p.node[rank]*len(p.load)+expert]++
}

func (p *packing) erase(rank, expert int) {
	at := slices.Index(p.on[rank], expert)
	p.on[rank] = slices.Delete(p.on[rank], at, at+1)
	at = slices.Index(p.where[expert], rank)
	p.where[expert] = slices.Delete(p.where[expert], at, at+1)
	*p.at(rank, expert) = false
	p.near[p.node[rank]*len(p.load)+expert]--
}

// reorder puts a rank whose parts are others where it then is in the order.
func (p *packing) reorder(rank int) {
	small, great := math.Inf(1), 0.0
	for _, e := range p.on[rank] {
		small, great = min(small, p.each[e]), max(great, p.each[e])
	}
	p.small[rank], p.great[rank] = small, great
	sum, at := p.sums[rank], p.spot[rank]
	for ; at > 0; at-- {
		o := p.order[at-1]
		if p.sums[o] < sum || p.sums[o] == sum && o < rank {
			break
		}
		p.order[at], p.spot[o] = o, at
	}
	for ; at < len(p.order)-1; at++ {
		o := p.order[at+1]
		if p.sums[o] > sum || p.sums[o] == sum && o > rank {
			break
		}
		p.order[at], p.spot[o] = o, at
	}
	p.order[at], p.spot[rank] = rank, at
}

// recount changes how many copies an expert has, and with that the part of those that ranks have.
func (p *packing) recount(expert, copies int) {
	was, each := p.each[expert], p.load[expert]/float64(copies)
	p.copies[expert], p.each[expert] = copies, each
	for _, r := range p.where[expert] {
		p.sums[r] += each - was
		p.reorder(r)
	}
}

// maker makes placements for layers, one after the other.
type maker struct {
	// now is the present placement and what becomes of it; best is one that is made from nothing,
	// of several that trial was.
	now, best, trial *packing
	// have is the ranks that have each expert at present, asked how many copies each rank is to
	// send.
	have  [][]int
	asked []int
}

func newMaker(experts int, ranks Ranks) *maker {
	return &maker{now: newPacking(experts, ranks), best: newPacking(experts, ranks),
		trial: newPacking(experts, ranks), have: make([][]int, experts),
		asked: make([]int, len(ranks.Slots))}
}

// anew makes best, a packing that is made from nothing.
func (m *maker) anew(load []int64) {
	redundant := -len(load)
	for _, s := range m.trial.ranks.Slots {
		redundant += s
	}
	// The smallest parts do not always pack best: a part of a hot expert on a rank leaves it no
	// room for a large one. So less is divided where that may be better: on few ranks.
	least := 0.0
	m.trial.begin(load)
	divided := m.trial.divide(redundant)
	for idle := range min(redundant, mostIdle) + 1 {
		p := m.trial
		p.begin(load)
		p.replicate(divided[:redundant-idle], idle)
		// No rank can have less than the mean, nor the one with the greatest part, which grows with
		// each copy that divides nothing.
		bound := max(p.mean(), slices.Max(p.each))
		if idle > 0 && bound >= m.best.most() {
			return
		}
		if idle == 0 {
			least = bound
		}
		p.pack()
		p.exchange(least * (1 + nearly/4))
		if idle == 0 || p.most() < m.best.most() {
			m.best, m.trial = m.trial, m.best
		}
		if m.best.most() <= least*(1+nearly) {
			return
		}
	}
}

// mostIdle bounds how many redundant copies are tried that divide nothing of weight.
const mostIdle = 8

// divide gives so many slots another copy of the expert with the greatest part, which makes the
// greatest part of all as small as it can be, and returns these experts in turn.
func (p *packing) divide(copies int) (experts []int) {
	for range copies {
		e := p.hottest()
		p.recount(e, p.copies[e]+1)
		experts = append(experts, e)
	}
	return experts
}

// replicate gives experts another copy each, and as many slots as are idle one of the expert with
// the smallest part.
func (p *packing) replicate(experts []int, idle int) {
	for _, e := range experts {
		p.recount(e, p.copies[e]+1)
	}
	for ; idle > 0; idle-- {
		at := -1
		for e, c := range p.copies {
			if c < len(p.on) && (at < 0 || p.each[e] < p.each[at]) {
				at = e
			}
		}
		p.recount(at, p.copies[at]+1)
	}
}

// hottest is the expert with the greatest part that may have one more copy, -1 for none.
func (p *packing) hottest() int {
	at := -1
	for e, c := range p.copies {
		if c < len(p.on) && (at < 0 || p.each[e] > p.each[at]) {
			at = e
		}
	}
	return at
}

// pack puts the copies on ranks that have none yet, the largest part first, each where the sum is
// least (LPT).
func (p *packing) pack() {
	order := make([]int, len(p.load))
	for e := range order {
		order[e] = e
	}
	slices.SortFunc(order, func(a, b int) int {
		switch x, y := p.each[a], p.each[b]; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return a - b
	})
	for _, e := range order {
		for range p.copies[e] {
			p.put(e)
		}
	}
}

// put adds a copy of an expert to the rank with a free slot that has least; of equals to one on a
// node with fewer copies of it, so that rows have a copy near them.
func (p *packing) put(expert int) {
	best := -1
	for _, r := range p.order {
		if best >= 0 && p.sums[r] > p.sums[best] {
			break
		}
		if len(p.on[r]) == p.ranks.Slots[r] || *p.at(r, expert) {
			continue
		}
		if best < 0 {
			best = r
			continue
		}
		k := len(p.load)
		if p.near[p.node[r]*k+expert] < p.near[p.node[best]*k+expert] {
			best = r
		}
	}
	if best >= 0 {
		p.add(best, expert)
		return
	}
	// All ranks with a free slot have the expert already. A full rank without it has another expert
	// that one of them lacks, since slots differ by one at most: that one goes there. Of those the
	// change is chosen that leaves the least on both.
	from, to, other := -1, -1, -1
	least := 0.0
	for f := range p.on {
		if len(p.on[f]) == p.ranks.Slots[f] {
			continue
		}
		for r := range p.on {
			if *p.at(r, expert) {
				continue
			}
			for _, x := range p.on[r] {
				if *p.at(f, x) {
					continue
				}
				most := max(p.sums[f]+p.each[x], p.sums[r]-p.each[x]+p.each[expert])
				if from < 0 || most < least {
					from, to, other, least = r, f, x, most
				}
			}
		}
	}
	p.remove(from, other)
	p.add(to, other)
	p.add(from, expert)
}

// exchange lets the most loaded rank exchange an expert for a smaller one of another rank, the pair
// that leaves the least on both, until no rank has more than goal or no pair is left that helps.
func (p *packing) exchange(goal float64) {
	for {
		at := len(p.order) - 1
		for ; at > 0 && p.sums[p.order[at-1]] == p.sums[p.order[at]]; at-- {
		}
		h := p.order[at]
		x, r, y := p.pair(h)
		if p.sums[h] <= goal || r < 0 {
			return
		}
		p.swap(h, x, r, y)
	}
}

// pair finds the expert x of rank h and the expert y of another rank r that, exchanged, leave the
// least on both; r is -1 where none leave less than h has. Of equals it is the first, by ranks.
func (p *packing) pair(h int) (x, r, y int) {
	r = -1
	// Less by a part that rounding cannot make: else exchanges may never end.
	sumH := p.sums[h]
	least := sumH * (1 - 1e-9)
	for _, q := range p.order {
		// The best that the two can have is the mean: those that follow have no less.
		sumQ := p.sums[q]
		if mean := (sumH + sumQ) / 2; mean > least || r < 0 && mean == least {
			break
		}
		small, great := p.small[q], p.great[q]
		for _, a := range p.on[h] {
			each := p.each[a]
			if sumH-(each-small) > least || sumQ+(each-great) > least || *p.at(q, a) {
				continue
			}
			for _, b := range p.on[q] {
				d := each - p.each[b]
				if sumH-d > least || sumQ+d > least {
					continue
				}
				most := max(sumH-d, sumQ+d)
				if d > 0 && (most < least || most == least && q < r) && !*p.at(h, b) {
					x, r, y, least = a, q, b, most
				}
			}
		}
	}
	return x, r, y
}

// recopy has a copy of the expert with the greatest part in the place of one of an expert that has
// several, and whose parts stay smaller without it. It says whether there is one.
func (p *packing) recopy() bool {
	x := p.hottest()
	if x < 0 {
		return false
	}
	// Of all such places that one which leaves the least on the most loaded rank, of equals that of
	// the smallest expert. A rank that has the expert already is no place for it, but where no
	// other has one to spare: then put has others make room.
	rank, y, apart := -1, -1, false
	least, part := 0.0, 0.0
	for r := range p.on {
		free := !*p.at(r, x)
		for _, e := range p.on[r] {
			if e == x || p.copies[e] == 1 || apart && !free {
				continue
			}
			left := p.load[e] / float64(p.copies[e]-1)
			if left >= p.each[x]*(1-1e-9) {
				continue
			}
			limit := math.Inf(1)
			if rank >= 0 && (free == apart) {
				limit = least
			}
			most := p.without(r, e, x, limit)
			if rank < 0 || free && !apart || most < least || most == least && left < part {
				rank, y, apart, least, part = r, e, free, most, left
			}
		}
	}
	if rank < 0 {
		return false
	}
	p.remove(rank, y)
	p.recount(y, p.copies[y]-1)
	p.recount(x, p.copies[x]+1)
	p.put(x)
	return true
}

// without is what the most loaded rank would have if a rank had x in the place of y; where that is
// beyond a limit, it is what some rank would have that is.
func (p *packing) without(rank, y, x int, limit float64) (most float64) {
	lessX := p.each[x] - p.load[x]/float64(p.copies[x]+1)
	moreY := p.load[y]/float64(p.copies[y]-1) - p.each[y]
	would := func(r int) float64 {
		sum := p.sums[r]
		if *p.at(r, x) {
			sum -= lessX
		}
		if r == rank {
			sum += p.each[x] - lessX - p.each[y]
		} else if *p.at(r, y) {
			sum += moreY
		}
		return sum
	}
	// Of those that have neither, the one that has most is the first from the end.
	for _, r := range slices.Backward(p.order) {
		if !*p.at(r, x) && !*p.at(r, y) {
			most = p.sums[r]
			break
		}
	}
	for _, e := range [...]int{y, x} {
		for _, r := range p.where[e] {
			if most > limit {
				return most
			}
			most = max(most, would(r))
		}
	}
	return most
}

// renumbered is the packing with ranks of equally many slots in an order in which they have as many
// experts as possible of those that they have at present, the greatest agreement first.
func (p *packing) renumbered(present Placement) *packing {
	type match struct{ rank, as, same int }
	var list []match
	n := len(p.on)
	for r := range n {
		for as := range n {
			if p.ranks.Slots[r] != p.ranks.Slots[as] {
				continue
			}
			same := 0
			for _, e := range present[as] {
				if *p.at(r, e) {
					same++
				}
			}
			list = append(list, match{r, as, same})
		}
	}
	slices.SortStableFunc(list, func(a, b match) int { return b.same - a.same })
	q := newPacking(len(p.load), p.ranks)
	q.load, q.copies, q.each = p.load, p.copies, p.each
	for r := range n {
		q.order[r], q.spot[r] = r, r
	}
	moved, filled := make([]bool, n), make([]bool, n)
	for _, m := range list {
		if moved[m.rank] || filled[m.as] {
			continue
		}
		moved[m.rank], filled[m.as] = true, true
		for _, e := range p.on[m.rank] {
			q.add(m.as, e)
		}
	}
	return q
}

// placement is what ranks have: experts that stay on a rank in their slots, the others in those
// that are left, in order.
func (p *packing) placement(present Placement) Placement {
	next := make(Placement, len(p.on))
	for r := range next {
		come := slices.DeleteFunc(slices.Clone(p.on[r]), func(e int) bool {
			return slices.Contains(present[r], e)
		})
		slices.Sort(come)
		next[r] = slices.Clone(present[r])
		for s, e := range next[r] {
			if !*p.at(r, e) {
				next[r][s], come = come[0], come[1:]
			}
		}
	}
	return next
}
