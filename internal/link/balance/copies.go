package balance

// Place is a slot of a rank.
type Place struct{ Rank, Slot int }

// Copies says, for the rows of a source, which copy of an expert computes each of them.
type Copies struct{ of [][]Place }

// Everyone is the source of rows that all ranks have.
const Everyone = -1

// Copies makes the choice of a source: a rank that has rows of its own, or Everyone.
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
func (p Placement) Copies(experts int, nodes []int, source int) Copies {
	c := Copies{of: make([][]Place, experts)}
	all := make([][]Place, experts)
	for r, list := range p {
		for s, e := range list {
			all[e] = append(all[e], Place{r, s})
		}
	}
	for e, places := range all {
		c.of[e] = places
		if source != Everyone && len(places) > 1 {
			c.of[e] = turns(places, nodes, source)
		}
	}
	return c
}

// At is the place of the copy that computes a row. turn is any number, 0 or more, that the row has
// on every rank that asks, and that neighbours do not share: its number among the source's rows in
// the step, plus that of the step, so that single rows take turns from step to step.
func (c Copies) At(expert int, turn uint64) Place {
	places := c.of[expert]
	// Experts begin with other copies, so that the first rows of a step do not all go to the first
	// ranks.
	return places[(turn+uint64(expert))%uint64(len(places))]
}

// turns are those of a source.
func turns(places []Place, nodes []int, source int) []Place {
	sources, copies := len(nodes), len(places)
	left := make([]int, copies) // turns that each copy can have yet
	for i := range left {
		left[i] = sources
	}
	given := make([]int, sources) // turns that each source has been given
	var own []Place
	next := 0
	// All sources are worked out, since what one takes another cannot have.
	pass := func(fits func(from int, to Place) bool) {
		for round := true; round; {
			round = false
			for from := range sources {
				if given[from] == copies {
					continue
				}
				for i := range copies {
					at := (next + i) % copies
					if left[at] == 0 || !fits(from, places[at]) {
						continue
					}
					left[at]--
					given[from]++
					round, next = true, at+1
					if from == source {
						own = append(own, places[at])
					}
					break
				}
			}
		}
	}
	pass(func(from int, to Place) bool { return to.Rank == from })
	pass(func(from int, to Place) bool { return nodes[to.Rank] == nodes[from] })
	pass(func(int, Place) bool { return true })
	return own
}
