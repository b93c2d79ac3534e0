package layout

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// equal is n layers of the same weight, with more before the first and after the last.
func equal(n int, layer, before, after int64) []int64 {
	all := slices.Repeat([]int64{layer}, n)
	all[0] += before
	all[n-1] += after
	return all
}

func TestBalance(t *testing.T) {
	for _, c := range []struct {
		name   string
		bytes  []int64
		stages int
		counts []int
	}{
		{"one stage", equal(4, 10, 0, 0), 1, []int{4}},
		{"a layer each", equal(4, 10, 50, 50), 4, []int{1, 1, 1, 1}},
		{"halves", equal(24, 30, 0, 0), 2, []int{12, 12}},
		{"equal ends", equal(24, 30, 272, 272), 2, []int{12, 12}},
		{"a head", equal(24, 30, 0, 240), 2, []int{16, 8}},
		{"an embedding", equal(24, 30, 240, 0), 2, []int{8, 16}},
		{"heavy ends", equal(24, 30, 272, 272), 4, []int{1, 11, 11, 1}},
		{"ends heavier than a stage", equal(6, 10, 1000, 1000), 4, []int{1, 2, 2, 1}},
		{"layers that differ", []int64{1, 1, 1, 9, 1, 1, 1, 9}, 2, []int{4, 4}},
		{"no division is even", equal(7, 10, 0, 0), 3, []int{2, 2, 3}},
	} {
		got := Balance(c.bytes, c.stages)
		if want := Split(c.counts); !slices.Equal(got, want) {
			t.Errorf("%s: stages begin at %v, not %v", c.name, got, want)
		}
		if counts := got.Counts(len(c.bytes)); !slices.Equal(counts, c.counts) {
			t.Errorf("%s: stages have %v layers, not %v", c.name, counts, c.counts)
		}
	}
}

// TestBalanceIsBest compares random layers with all ways to divide them.
func TestBalanceIsBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		bytes := make([]int64, 1+rng.IntN(9))
		for i := range bytes {
			bytes[i] = rng.Int64N(20)
		}
		stages := 1 + rng.IntN(len(bytes))
		largest, squares := weigh(bytes, Balance(bytes, stages))
		every(len(bytes), stages, nil, func(s Stages) {
			l, q := weigh(bytes, s)
			if l < largest || l == largest && q < squares {
				t.Fatalf("%v in %d stages: %v (%d, %d) is worse than %v (%d, %d)", bytes, stages,
					Balance(bytes, stages), largest, squares, s, l, q)
			}
		})
	}
}

// weigh is the bytes of the largest stage, and the sum of the squares of all.
func weigh(bytes []int64, s Stages) (largest, squares int64) {
	for i := range len(s) + 1 {
		var sum int64
		from, to := s.Range(i, len(bytes))
		for _, b := range bytes[from:to] {
			sum += b
		}
		largest, squares = max(largest, sum), squares+sum*sum
	}
	return largest, squares
}

// every calls f with every division of layers into so many stages that begins as head does.
func every(layers, stages int, head Stages, f func(Stages)) {
	if len(head) == stages-1 {
		f(head)
		return
	}
	first := 1
	if len(head) > 0 {
		first = head[len(head)-1] + 1
	}
	for ; first <= layers-(stages-1-len(head)); first++ {
		every(layers, stages, append(slices.Clone(head), first), f)
	}
}
