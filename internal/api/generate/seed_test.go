package generate

import (
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestServerSeed repeats the seeds of requests that bring none, when the server has a seed of its
// own.
func TestServerSeed(t *testing.T) {
	serve := func(seed uint64) *Service {
		return &Service{Model: Model{flags: &config.Model{Seed: seed}}}
	}
	seeds := func(seed uint64) (all []uint64) {
		s := serve(seed)
		for i := range 4 {
			all = append(all, s.seedFor(nil, &Sampling{}, i))
		}
		return all
	}
	if a, b := seeds(1), seeds(1); !slices.Equal(a, b) || a[0] == a[1] {
		t.Errorf("seed 1 gives %v and %v", a, b)
	}
	if slices.Equal(seeds(1), seeds(2)) || slices.Equal(seeds(0), seeds(0)) {
		t.Error("different seeds give equal sequences")
	}
	own := int64(7)
	if got := serve(1).seedFor(nil, &Sampling{seed: &own}, 2); got != 9 {
		t.Errorf("third sequence of a request with seed 7 has seed %d", got)
	}
}
