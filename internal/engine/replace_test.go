package engine_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// killed are the requests with a rank killed once some stream has so many tokens.
func killed(t *testing.T, e *engine.Engine, list []*engine.Request, rank, at int) []received {
	t.Helper()
	var once sync.Once
	return receiveAll(t, e, list, func(tokens int) {
		if tokens >= at {
			once.Do(func() {
				if err := syscall.Kill(e.Report()[rank].PID, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

func pids(e *engine.Engine) (list []int) {
	for _, r := range e.Report() {
		list = append(list, r.PID)
	}
	return list
}

// TestOnlyTheDeadAreReplaced kills each rank of a group in turn: the others stay, with their
// process and what it has loaded, and requests go on to the very same tokens.
func TestOnlyTheDeadAreReplaced(t *testing.T) {
	var want []received // of any layout
	for _, c := range []struct {
		name        string
		tp, pp, pcp int
		transport   string
	}{{"tp", 2, 1, 1, "auto"}, {"stages", 1, 2, 1, "auto"}, {"prefill", 1, 1, 2, "auto"},
		{"links", 2, 1, 1, "link"}, {"tp and stages", 2, 2, 1, "auto"}} {
		t.Run(c.name, func(t *testing.T) {
			if testing.Short() && c.tp*c.pp*c.pcp > 2 {
				t.Skip("four processes, without -short")
			}
			back := make(chan status.GroupRecovered, 8)
			e, _ := openWith(t, func(o *config.Config) {
				p := &o.Parallel
				p.Backend, p.TensorParallelSize, p.PipelineParallelSize = "mp", c.tp, c.pp
				p.PrefillContextParallelSize, p.CPUThreads = c.pcp, 1
				o.Queue.Transport = c.transport
			}, func(event status.Event) {
				if r, ok := event.(status.GroupRecovered); ok {
					back <- r
				}
			})
			list := sampled(e, 4)
			if want == nil {
				want = receiveAll(t, e, list, func(int) {})
			}
			world := len(e.Report())
			for rank := range world {
				before := pids(e)
				got := killed(t, e, list, rank, 5+7*rank)
				same(t, fmt.Sprintf("rank %d", rank), got, want)
				select { // the requests may have been over before
				case r := <-back:
					if r.Reused != world-1 || r.CacheKept {
						t.Errorf("recovered with %d ranks kept, prefix cache kept %v", r.Reused,
							r.CacheKept)
					}
				case <-time.After(time.Minute):
					t.Fatalf("rank %d: no recovery", rank)
				}
				for r, pid := range pids(e) {
					if (pid == before[r]) == (r == rank) {
						t.Errorf("rank %d was killed: rank %d was pid %d and is %d", rank, r,
							before[r], pid)
					}
				}
			}
			if len(back) > 0 {
				t.Errorf("recovered once more: %+v", <-back)
			}
		})
	}
}
