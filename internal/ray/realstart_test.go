package ray_test

import (
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray/raytest"
)

// From nothing to four workers, as the launcher does it; -v shows the times of the phases.
func TestRealStartUp(t *testing.T) {
	raytest.Each(t, func(t *testing.T, r *raytest.Ray) {
		cl := raytest.Shared(t, r)
		began := time.Now()
		lap := func(phase string) { t.Logf("%5d ms  %s", time.Since(began).Milliseconds(), phase) }
		c := join(t, cl)
		lap("connected")
		group := placed(t, c, 4)
		lap("placed")
		ranks, _ := spawn(t, c, group, 4)
		lap("actors answer")
		started, err := c.StartWorkers(within(t), starts(ranks, waitingWorker, "-", workerMark))
		if err != nil || len(started) != 4 {
			t.Fatalf("%+v, %v", started, err)
		}
		lap("workers started")
		began = time.Now()
		kill(t, started[2].PID)
		e := raytest.NextExit(t, c)
		t.Logf("%5.1f ms  from SIGKILL to the exit", float64(e.At.Sub(began).Microseconds())/1e3)
		if e.Rank != 2 || e.Signal != "SIGKILL" {
			t.Errorf("exit %+v", e)
		}
		began = time.Now()
		if err := c.KillActors(within(t), ranks); err != nil {
			t.Fatal(err)
		}
		cl.NoneLeft(t, workerMark)
		lap("killed")
		began = time.Now()
		if err := c.Close(within(t)); err != nil {
			t.Errorf("close: %v", err)
		}
		lap("closed")
	})
}
