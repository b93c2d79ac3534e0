package executor

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
)

// TestSecondReply has rank 0 answer a call twice and rank 1 not at all: the call is not complete.
func TestSecondReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := start(t, 2, obedient(func(kind queue.Kind, body []byte, c *memPort) bool {
			if kind == queue.KindCall && c.rank == 0 {
				answer(c, body, "", "")
				answer(c, body, "", "")
			}
			return kind != queue.KindCall
		}))
		if all, err := e.CollectiveRPC(t.Context(), "m", nil,
			RPCOptions{Timeout: 5 * time.Second}); err == nil {
			t.Errorf("answered without rank 1: %q", all)
		}
	})
}

// TestSecondReady has rank 0 be ready twice and rank 1 never: the group does not start.
func TestSecondReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{exited: make(chan launch.Exit, 4),
			rank: obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
				if kind == queue.KindInit && c.rank == 0 {
					queue.SendJSON(c, queue.KindReady, queue.Ready{})
					queue.SendJSON(c, queue.KindReady, queue.Ready{})
				}
				return kind != queue.KindInit
			})}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if e, err := Start(ctx, Options{Launcher: s, InProcess: true,
			Init: queue.Init{Layout: layout.Layout{TP: 2}}}); err == nil {
			e.Shutdown(context.Background())
			t.Error("started without rank 1")
		}
	})
}

// TestSecondResult lets a second result of step 1 arrive before step 2, which it must not answer.
func TestSecondResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		e, _ := start(t, 1, obedient(func(kind queue.Kind, body []byte, c *memPort) bool {
			if kind != queue.KindPlan {
				return true
			}
			var p step.Plan
			step.DecodePlan(body, &p)
			once.Do(func() {
				c.Send(step.AppendResult([]byte{byte(queue.KindResult)},
					&step.Result{Plan: p.ID, Slot: []uint32{3}, End: []uint32{1},
						Token: []int32{7}}), time.Time{})
			})
			return p.ID != 2
		}), func(o *Options) { o.StepTimeout = 5 * time.Second })
		if _, err := execute(t, e, 1); err != nil {
			t.Fatal(err)
		}
		_ = checkHealth(t.Context(), e) // receives the second
		if r, err := execute(t, e, 2); err == nil {
			t.Errorf("step 2 is answered by the result of step %d", r.Plan)
		}
	})
}

// TestSecondShutdown wants a Shutdown beside another to last as long as that.
func TestSecondShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &scripted{exited: make(chan launch.Exit, 4), rank: func(rank int, c *memPort) {
			obedient(nil)(rank, c)
			<-hold
		}}
		e, err := Start(t.Context(), Options{Launcher: s, InProcess: true,
			Init: queue.Init{Layout: layout.Layout{TP: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		ends := make(chan error, 2)
		go func() { ends <- e.Shutdown(context.Background()) }()
		<-e.Dead()
		go func() { ends <- e.Shutdown(context.Background()) }()
		time.Sleep(time.Minute)
		if len(ends) > 0 {
			t.Error("returned while a rank still runs")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := e.Shutdown(short); err == nil {
			t.Error("no error although the first still waits")
		}
		close(hold)
		for range 2 {
			if err := <-ends; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestFailedCallsBesideSteps lets several ranks fail calls while another goroutine receives: for
// the race detector.
func TestFailedCallsBesideSteps(t *testing.T) {
	e, _ := start(t, 4, obedient(func(kind queue.Kind, body []byte, c *memPort) bool {
		if kind == queue.KindCall && method(body) == "fails" {
			answer(c, body, "*worker.cheese", "out of cheese")
			return false
		}
		return true
	}))
	var wg sync.WaitGroup
	wg.Go(func() {
		for id := uint64(1); id < 1000; id++ {
			if _, err := execute(t, e, id); err != nil {
				t.Error(err)
				return
			}
		}
	})
	wg.Go(func() {
		for range 300 {
			if _, err := e.CollectiveRPC(t.Context(), "fails", nil, RPCOptions{}); err == nil {
				t.Error("no error")
			}
		}
	})
	wg.Wait()
}
