package engine_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// TestThreadsDivideTheCores holds that ranks compute on the machine's cores, each on its share,
// however many goroutines may run beside them.
func TestThreadsDivideTheCores(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(machine.Cores() + 3))
	for _, ranks := range []int{1, 2} {
		for _, backend := range []string{"uni", "mp"} {
			t.Run(fmt.Sprintf("%s/%d", backend, ranks), func(t *testing.T) {
				e := openEngine(t, func(c *config.Config) {
					c.Parallel.Backend, c.Parallel.TensorParallelSize = backend, ranks
				})
				want := max(1, machine.Cores()/ranks)
				for _, r := range e.Info().Ranks {
					if r.Threads != want {
						t.Errorf("rank %d computes on %d threads, want %d", r.Rank, r.Threads, want)
					}
				}
			})
		}
	}
}
