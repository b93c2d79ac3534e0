package engine

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSuspectsFindPoison runs groups of requests of which one makes every group fail: it is found
// within the failures that a bisection takes, and no other is condemned, whatever requests come and
// go.
func TestSuspectsFindPoison(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 1 + rng.IntN(64)
		var running []uint64
		for i := range n {
			running = append(running, uint64(i+1))
		}
		poison := running[rng.IntN(n)]
		killed := rng.IntN(2) == 0
		var s suspects
		most := 2 + bits.Len(uint(n)) + aloneKilled
		for failures := 0; ; {
			computed := slices.DeleteFunc(slices.Clone(running), func(k uint64) bool {
				return slices.Contains(s.held, k)
			})
			if slices.Contains(computed, poison) {
				failures++
				if failures > most {
					t.Fatalf("seed %d: %d failures of %d requests", seed, failures, n)
				}
				key, found := s.failed(computed, killed)
				if !found {
					continue
				}
				if key != poison {
					t.Fatalf("seed %d: request %d is condemned, not %d", seed, key, poison)
				}
				break
			}
			for _, k := range computed {
				s.further(k)
			}
			running = append(running, uint64(1000+failures)) // a new one each time
		}
		if len(s.last)+len(s.held) != 0 && slices.Contains(s.last, poison) {
			t.Errorf("seed %d: %v are suspected after the end", seed, s.last)
		}
	}
}

// TestSuspectsSpareInnocents kills groups at random: while requests get further in between, none is
// condemned and none held for ever.
func TestSuspectsSpareInnocents(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	var s suspects
	running := []uint64{1, 2, 3, 4, 5, 6, 7}
	for round := range 10000 {
		computed := slices.DeleteFunc(slices.Clone(running), func(k uint64) bool {
			return slices.Contains(s.held, k)
		})
		if key, found := s.failed(computed, true); found {
			t.Fatalf("round %d: %d is condemned", round, key)
		}
		for range 1 + rng.IntN(3) { // halves, in turn
			for _, k := range running {
				if !slices.Contains(s.held, k) {
					s.further(k)
				}
			}
		}
		for len(s.held) > 0 {
			before := fmt.Sprint(s.held)
			for _, k := range running {
				if !slices.Contains(s.held, k) {
					s.further(k)
				}
			}
			if fmt.Sprint(s.held) == before {
				t.Fatalf("round %d: %s are held for ever", round, before)
			}
		}
	}
}
