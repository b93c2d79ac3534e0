package balance

import "github.com/eagleray/eagleray/internal/compute"

// Everyone is the source of rows that all ranks have.
const Everyone = -1

// Held makes the choice of which copy of an expert computes each row of a source: a rank that has
// rows of its own, or Everyone.
//
// Which copy computes a row follows from its number alone, so that all ranks that know the row
// agree without a word, and it cannot change a bit: copies are equal. Two aims pull apart. Plans
// count on copies with equal parts, and rows had better not leave their node. Were a row always
// sent to the nearest copy, of three copies, two of them on one of two nodes, the third would have
// half of all rows. So parts are equal first: where the sources have equally many rows, each copy
// has an equal part of them. Each source divides its rows into as many turns as there are copies,
// and a copy has as many turns as there are sources. Turns are filled with the copy on the source
// itself, then with those on its node while these have turns left, then with the rest; so as many
// rows stay near as equal parts allow. Rows that everyone has travel nowhere, and take turns over
// all copies.
func (p Placement) Held(experts int, nodes []int, source int) *compute.HeldExperts {
	all := make([][]int, experts)
	for r, list := range p {
		for _, e := range list {
			all[e] = append(all[e], r)
		}
	}
	table := make([]int32, experts+1)
	for e, ranks := range all {
		if source != Everyone && len(ranks) > 1 {
			ranks = turns(ranks, nodes, source)
		}
		table[e] = int32(len(table))
		for _, r := range ranks {
			table = append(table, int32(r))
		}
	}
	table[experts] = int32(len(table))
	return &compute.HeldExperts{Table: table}
}

// turns are those of a source.
func turns(ranks, nodes []int, source int) []int {
	sources, copies := len(nodes), len(ranks)
	left := make([]int, copies) // turns that each copy can have yet
	for i := range left {
		left[i] = sources
	}
	given := make([]int, sources) // turns that each source has been given
	var own []int
	next := 0
	// All sources are worked out, since what one takes another cannot have.
	pass := func(fits func(from int, to int) bool) {
		for round := true; round; {
			round = false
			for from := range sources {
				if given[from] == copies {
					continue
				}
				for i := range copies {
					at := (next + i) % copies
					if left[at] == 0 || !fits(from, ranks[at]) {
						continue
					}
					left[at]--
					given[from]++
					round, next = true, at+1
					if from == source {
						own = append(own, ranks[at])
					}
					break
				}
			}
		}
	}
	pass(func(from int, to int) bool { return to == from })
	pass(func(from int, to int) bool { return nodes[to] == nodes[from] })
	pass(func(int, int) bool { return true })
	return own
}
