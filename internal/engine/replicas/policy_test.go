package replicas

import (
	"math/rand/v2"
	"testing"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name    string
		engines []candidate
		turn    int
		want    int
	}{
		{"one", []candidate{{load: 9, work: 9}}, 3, 0},
		{"nothing to tell them apart: in turn", []candidate{{}, {}, {}}, 1, 1},
		{"in turn, around", []candidate{{}, {}, {}}, 3, 0},
		{"the least load", []candidate{{load: 5, work: 9}, {load: 4, work: 9}}, 0, 1},
		{"the longest cached beginning", []candidate{{work: 40}, {work: 900}}, 1, 0},
		{"it is worth as much load as it saves", []candidate{{load: 860, work: 40}, {work: 900}}, 0,
			1},
		{"and no more", []candidate{{load: 861, work: 40}, {work: 900}}, 0, 1},
		{"but that much", []candidate{{load: 859, work: 40}, {work: 900}}, 1, 0},
		{"what all prompts share is worth little", []candidate{{load: 100, work: 24}, {work: 40}},
			0, 1},
		{"of two that have it the one with less load", []candidate{{load: 300, work: 40},
			{load: 200, work: 40}, {work: 900}}, 0, 1},
		{"equal sums: the least load", []candidate{{load: 10, work: 5}, {load: 5, work: 10}}, 0, 1},
		{"busy engines keep to what they have", []candidate{{load: 300, sequences: 3, work: 40},
			{load: 100, sequences: 2, work: 900}}, 1, 0},
		{"an idle one takes a copy", []candidate{{load: 900, sequences: 9, work: 40}, {work: 900}},
			0, 1},
		{"one is down", []candidate{{down: true}, {load: 1000, work: 10}}, 0, 1},
		{"one is leaving", []candidate{{leaving: true}, {held: true, load: 1000, work: 10}}, 0, 1},
		{"one is held", []candidate{{held: true}, {load: 1000, work: 10}}, 0, 1},
		{"all are held", []candidate{{held: true, load: 9}, {held: true}}, 0, 1},
		{"held is better than down", []candidate{{down: true}, {held: true, load: 9}}, 0, 1},
		{"all are down", []candidate{{down: true}, {down: true}}, 1, -1},
	} {
		if got := choose(c.engines, c.turn); got != c.want {
			t.Errorf("%s: engine %d, not %d", c.name, got, c.want)
		}
	}
}

// TestChooseProperties: on random states, the choice lives, none is better, more load never
// attracts, and engines that are alike get equal shares.
func TestChooseProperties(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 20000 {
		list := make([]candidate, 1+rng.IntN(6))
		for i := range list {
			list[i] = candidate{load: rng.IntN(8) * 10, work: rng.IntN(8) * 10,
				sequences: rng.IntN(3), down: rng.IntN(4) == 0, held: rng.IntN(4) == 0}
		}
		turn := rng.IntN(len(list) + 1)
		got := choose(list, turn)
		for i, c := range list {
			if c.down {
				continue
			}
			if got < 0 || list[got].down {
				t.Fatalf("seed %d, round %d: engine %d of %+v", seed, round, got, list)
			}
			b := list[got]
			if c.held && !b.held {
				continue
			}
			if b.held && !c.held || c.delay() < b.delay() || c.delay() == b.delay() &&
				c.load < b.load {
				t.Fatalf("seed %d, round %d: engine %d, and %d is better: %+v", seed, round, got, i,
					list)
			}
			if i == got {
				continue
			}
			list[i].load++
			if choose(list, turn) != got {
				t.Fatalf("seed %d, round %d: more load on %d moves the choice to it", seed, round,
					i)
			}
			list[i].load--
		}
	}
	alike, counts, turn := make([]candidate, 3), [3]int{}, 0
	for range 300 {
		i := choose(alike, turn)
		counts[i]++
		turn = i + 1
	}
	if counts != [3]int{100, 100, 100} {
		t.Errorf("shares of engines that are alike: %v", counts)
	}
}
