package executor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
)

// scripted is a launcher whose ranks are functions.
type scripted struct {
	rank   func(rank int, c *memPort)
	exited chan launch.Exit
	hub    queue.Hub
	ports  []*memPort
	wg     sync.WaitGroup
	stops  int
	fail   error
}

func (s *scripted) Launch(_ context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	s.hub, s.ports = newMemHub(len(specs))
	var workers []launch.Worker
	for i := range specs {
		s.wg.Go(func() { s.rank(i, s.ports[i]) })
		workers = append(workers, launch.Worker{Rank: i, Node: "node-a", PID: 100 + i, Hub: s.hub})
	}
	return workers, nil
}

func (s *scripted) Exited() <-chan launch.Exit { return s.exited }

func (s *scripted) Stop(context.Context, error) error {
	s.stops++
	if s.hub != nil {
		s.hub.Close()
	}
	s.wg.Wait()
	return nil
}

// obedient is a rank that gets ready, answers plans on rank 0 and calls everywhere, as long as on
// lets it.
func obedient(on func(kind queue.Kind, body []byte, c *memPort) bool) func(int, *memPort) {
	return func(rank int, c *memPort) {
		for {
			c.status.Set(status.Idle, 0)
			record, err := c.Recv(time.Time{})
			if err != nil {
				return
			}
			kind, body, _ := queue.Split(record)
			if kind == queue.KindPlan {
				var p step.Plan
				step.DecodePlan(body, &p)
				c.status.Received(p.ID)
				c.status.Started(p.ID)
			}
			if on != nil && !on(kind, body, c) {
				continue
			}
			switch kind {
			case queue.KindInit:
				queue.SendJSON(c, queue.KindReady, queue.Ready{Rank: rank, PID: 100 + rank})
			case queue.KindPlan:
				var p step.Plan
				step.DecodePlan(body, &p)
				if rank == 0 {
					c.Send(step.AppendResult([]byte{byte(queue.KindResult)},
						&step.Result{Plan: p.ID, Slot: []uint32{3}, End: []uint32{1},
							Token: []int32{int32(p.ID)}}), time.Time{})
				}
				c.status.Finished(p.ID)
			case queue.KindCall:
				answer(c, body, "", "")
			case queue.KindShutdown:
				return
			}
		}
	}
}

// answer replies to a call with its method, arguments and the rank, or with a failure.
func answer(c *memPort, body []byte, kind, failure string) {
	call, _ := queue.ParseCall(body)
	value := append([]byte(call.Method+":"), append(slices.Clone(call.Args), byte('0'+c.rank))...)
	c.Send(queue.AppendReply(nil, &queue.Reply{ID: call.ID, Rank: uint32(c.rank), Type: kind,
		Failure: failure, Value: value}), time.Time{})
}

func start(
	t *testing.T, ranks int, rank func(int, *memPort), change ...func(*Options),
) (*Executor, *scripted) {
	t.Helper()
	s := &scripted{rank: rank, exited: make(chan launch.Exit, 4)}
	o := Options{Launcher: s, InProcess: true, Init: queue.Init{Layout: layout.Layout{TP: ranks}}}
	for _, f := range change {
		f(&o)
	}
	e, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Shutdown(context.Background()) })
	return e, s
}

func execute(t *testing.T, e *Executor, id uint64) (*step.Result, error) {
	t.Helper()
	f, err := e.Execute(&step.Plan{ID: id})
	if err != nil {
		return nil, err
	}
	return f.Wait()
}

func TestExecute(t *testing.T) {
	e, s := start(t, 3, obedient(nil))
	for id := uint64(1); id < 200; id++ {
		r, err := execute(t, e, id)
		if err != nil || r.Plan != id || r.Token[0] != int32(id) {
			t.Fatalf("plan %d: %v, %v", id, r, err)
		}
	}
	if err := checkHealth(t.Context(), e); err != nil {
		t.Error(err)
	}
	for range 3 {
		if err := e.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if s.stops != 1 {
		t.Errorf("launcher stopped %d times", s.stops)
	}
	if _, err := execute(t, e, 1000); !errors.Is(err, ErrShutdown) {
		t.Errorf("after shutdown: %v", err)
	}
	if err := checkHealth(t.Context(), e); !errors.Is(err, ErrShutdown) {
		t.Errorf("health after shutdown: %v", err)
	}
}

func method(body []byte) string {
	c, _ := queue.ParseCall(body)
	return c.Method
}

func TestCollectiveRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := start(t, 3, obedient(func(kind queue.Kind, body []byte, c *memPort) bool {
			if kind != queue.KindCall {
				return true
			}
			switch m := method(body); {
			case m == "fails" && c.rank == 2:
				answer(c, body, "*worker.cheese", "out of cheese")
				return false
			case m == "silent" && c.rank == 1:
				return false
			}
			return true
		}))
		if _, err := execute(t, e, 5); err != nil {
			t.Fatal(err)
		}
		all, err := e.CollectiveRPC(t.Context(), "m", []byte("x"), RPCOptions{})
		if err != nil || len(all) != 3 || string(all[2]) != "m:x2" {
			t.Errorf("all ranks: %q, %v", all, err)
		}
		one, err := e.CollectiveRPC(t.Context(), "m", nil,
			RPCOptions{UniqueReply: true, ReplyRank: 1})
		if err != nil || len(one) != 1 || string(one[0]) != "m:1" {
			t.Errorf("one rank: %q, %v", one, err)
		}
		if _, err := e.CollectiveRPC(t.Context(), "m", nil,
			RPCOptions{UniqueReply: true, ReplyRank: 3}); err == nil {
			t.Error("reply rank out of range accepted")
		}
		_, err = e.CollectiveRPC(t.Context(), "fails", nil, RPCOptions{})
		var failed *RPCError
		if !errors.As(err, &failed) || *failed != (RPCError{"fails", 2, "node-a", 102, 5,
			"*worker.cheese", "out of cheese"}) {
			t.Errorf("error of rank 2: %v", err)
		}
		// The silent rank's reply is missed at the timeout; the others' are no longer expected
		// then.
		_, err = e.CollectiveRPC(t.Context(), "silent", nil,
			RPCOptions{Timeout: 20 * time.Millisecond})
		if !errors.Is(err, queue.ErrTimeout) || !strings.Contains(err.Error(), "silent") {
			t.Errorf("silent rank: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := e.CollectiveRPC(ctx, "silent", nil, RPCOptions{}); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("silent rank: %v", err)
		}
		again, err := e.CollectiveRPC(t.Context(), "after", nil, RPCOptions{})
		if err != nil || string(again[1]) != "after:1" {
			t.Errorf("call after a time-out: %q, %v", again, err)
		}
	})
}

// TestErrorOfSilentRank fails a call whose only wanted reply never comes, because another rank has
// an error.
func TestErrorOfSilentRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := start(t, 3, obedient(func(kind queue.Kind, body []byte, c *memPort) bool {
			if kind == queue.KindCall && c.rank == 2 {
				answer(c, body, "*worker.cheese", "out of cheese")
			}
			return kind != queue.KindCall
		}))
		_, err := e.CollectiveRPC(t.Context(), "m", nil,
			RPCOptions{UniqueReply: true, ReplyRank: 1, Timeout: time.Minute})
		if err == nil || !strings.Contains(err.Error(),
			"rank 2 (node-a, pid 102, after step 0): *worker.cheese: out of cheese") {
			t.Errorf("error %v", err)
		}
	})
}

// TestOwed: the group fails by the rank that does not answer a call that it owes, once no rank has
// moved for so long.
func TestOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := start(t, 3, obedient(func(kind queue.Kind, body []byte, c *memPort) bool {
			return kind != queue.KindCall || c.rank != 1
		}))
		began := time.Now()
		_, err := e.CollectiveRPC(t.Context(), "m", nil, RPCOptions{Owed: time.Minute})
		var f *Failure
		if !errors.As(err, &f) || f.Rank != 1 || !strings.Contains(err.Error(),
			"no answer to call m after 1m0s in which no rank has moved") {
			t.Errorf("silent rank: %v", err)
		}
		if took := time.Since(began); took < time.Minute {
			t.Errorf("it failed after %v", took)
		}
	})
}

// TestLateReplies lets replies come after their call is over: they are dropped, counted, and answer
// no other call.
func TestLateReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var held [][]byte
		e, _ := start(t, 1, obedient(func(kind queue.Kind, body []byte, c *memPort) bool {
			if kind == queue.KindCall && method(body) == "slow" {
				held = append(held, slices.Clone(body))
				return false
			}
			for _, b := range held {
				answer(c, b, "", "")
			}
			held = nil
			return true
		}))
		for range 3 {
			if _, err := e.CollectiveRPC(t.Context(), "slow", nil,
				RPCOptions{Timeout: 10 * time.Millisecond}); !errors.Is(err, queue.ErrTimeout) {
				t.Fatalf("slow call: %v", err)
			}
		}
		got, err := e.CollectiveRPC(t.Context(), "fast", nil, RPCOptions{})
		if err != nil || string(got[0]) != "fast:0" {
			t.Errorf("call after late replies: %q, %v", got, err)
		}
		if e.calls.late.Load() != 3 {
			t.Errorf("%d late replies counted, not 3", e.calls.late.Load())
		}
	})
}

// TestCallsInOrder makes calls from several goroutines beside steps: every rank sees calls and
// plans in one order, and each caller has the answer to its own call.
func TestCallsInOrder(t *testing.T) {
	var orders [2][]string // what each rank received
	e, s := start(t, 2, obedient(func(kind queue.Kind, body []byte, c *memPort) bool {
		if kind == queue.KindCall || kind == queue.KindPlan {
			orders[c.rank] = append(orders[c.rank], string(body))
		}
		return true
	}))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for range 10 {
				opt := RPCOptions{UniqueReply: true, ReplyRank: 1}
				got, err := e.CollectiveRPC(t.Context(), "m", []byte{byte(i)}, opt)
				if err != nil || got[0][2] != byte(i) {
					t.Errorf("call %d: %q, %v", i, got, err)
				}
			}
		})
	}
	wg.Go(func() {
		for id := uint64(1); id < 100; id++ {
			if r, err := execute(t, e, id); err != nil || r.Plan != id {
				t.Errorf("plan %d: %v, %v", id, r, err)
			}
		}
	})
	wg.Go(func() {
		for range 50 {
			if err := checkHealth(t.Context(), e); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if err := e.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	s.wg.Wait()
	if len(orders[0]) != 20*10+99+50 || !slices.Equal(orders[0], orders[1]) {
		t.Errorf("%d and %d records, in one order: %v", len(orders[0]), len(orders[1]),
			slices.Equal(orders[0], orders[1]))
	}
}

// killed is the end of a process by SIGKILL, exited that with a status.
var killed = launch.End{How: launch.Signalled, Signal: "killed"}

func exited(code int) launch.End { return launch.End{How: launch.Exited, Code: code} }

// TestFirstErrorWins lets ranks fail in different ways while rank 0 stays silent.
func TestFirstErrorWins(t *testing.T) {
	for name, c := range map[string]struct {
		how  func(s *scripted, c *memPort)
		want string
	}{
		"own report": {func(_ *scripted, c *memPort) {
			queue.SendJSON(c, queue.KindFailure, queue.Failure{Rank: 1, PID: 101, Phase: "step",
				Step: 7, Message: "no such block"})
		}, "rank 1 on node-a (pid 101), step 7, step: no such block"},
		"process exit": {func(s *scripted, _ *memPort) {
			s.exited <- launch.Exit{Rank: 1, PID: 101, End: killed}
		}, "rank 1 on node-a (pid 101): signal: killed"},
		"report before exit": {func(s *scripted, c *memPort) {
			queue.SendJSON(c, queue.KindFailure, queue.Failure{Rank: 1, Phase: "load",
				Message: "no weights"})
			s.exited <- launch.Exit{Rank: 1, PID: 101, End: exited(1)}
		}, "load: no weights"},
		"report of a follower": {func(s *scripted, c *memPort) {
			other := s.ports[0]
			queue.SendJSON(other, queue.KindFailure, queue.Failure{Rank: 0, PID: 100,
				Phase: "forward", Message: "rank 1 has left", Follows: true})
			s.exited <- launch.Exit{Rank: 0, PID: 100, End: exited(1)}
			s.exited <- launch.Exit{Rank: 1, PID: 101, End: killed}
		}, "rank 1 on node-a (pid 101): signal: killed"},
		"nonsense": {func(_ *scripted, c *memPort) { c.Send([]byte{250}, time.Time{}) },
			"protocol: record of unknown kind 250"},
		"bad result": {func(_ *scripted, c *memPort) {
			c.Send([]byte{byte(queue.KindResult), 1, 2}, time.Time{})
		}, "rank 1 on node-a (pid 101), protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s *scripted
				e, s2 := start(t, 2, obedient(func(kind queue.Kind, _ []byte, port *memPort) bool {
					if kind != queue.KindPlan {
						return true
					}
					if port.rank == 1 {
						c.how(s, port)
					}
					return false
				}))
				s = s2
				failures := make(chan *Failure, 2)
				e.OnFailure(func(f *Failure) { failures <- f })
				started := time.Now()
				_, err := execute(t, e, 7)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, not %q", err, c.want)
				}
				if took := time.Since(started); took > time.Second {
					t.Errorf("known after %v", took)
				}
				f := <-failures
				if f.Rank != 1 || f.Error() != err.Error() {
					t.Errorf("callback got %v", f)
				}
				e.OnFailure(func(*Failure) { t.Error("called twice") })
			})
		})
	}
}

// TestFailureBeforeRegistration calls the callback at once.
func TestFailureBeforeRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, s := start(t, 1, obedient(nil))
		s.exited <- launch.Exit{Rank: 0, PID: 100, End: exited(3)}
		<-e.Dead()
		var got *Failure
		e.OnFailure(func(f *Failure) { got = f })
		if got == nil || got.Cause != "exit status 3" {
			t.Errorf("callback got %v", got)
		}
	})
}

// TestStartFails leaves nothing running and says what happened.
func TestStartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{exited: make(chan launch.Exit, 4),
			rank: obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
				if c.rank == 1 && kind == queue.KindInit {
					queue.SendJSON(c, queue.KindFailure, queue.Failure{Rank: 1, Phase: "load",
						Message: "tensor missing"})
					return false
				}
				return true
			})}
		_, err := Start(t.Context(), Options{Launcher: s, InProcess: true,
			Init: queue.Init{Layout: layout.Layout{TP: 2}}})
		if err == nil || !strings.Contains(err.Error(),
			"rank 1 on node-a (pid 101), load: tensor missing") {
			t.Errorf("error %v", err)
		}
		if s.stops != 1 {
			t.Errorf("launcher stopped %d times", s.stops)
		}

		silent := &scripted{exited: make(chan launch.Exit, 4),
			rank: obedient(func(queue.Kind, []byte, *memPort) bool { return false })}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := Start(ctx, Options{Launcher: silent, InProcess: true,
			Init: queue.Init{Layout: layout.Layout{TP: 2}}}); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("silent ranks: %v", err)
		}
		refuses := &scripted{fail: errors.New("no room")}
		if _, err := Start(t.Context(), Options{Launcher: refuses, InProcess: true,
			Init: queue.Init{Layout: layout.Layout{TP: 2}}}); err == nil ||
			err.Error() != "no room" {
			t.Errorf("launcher that refuses: %v", err)
		}
	})
}

// TestStepTimeout names the rank that is furthest behind.
func TestStepTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := start(t, 3, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind == queue.KindPlan && c.rank == 1 {
				c.status.Set(status.Forward, 7)
				c.Recv(time.Time{}) // until it is shut down
			}
			return kind != queue.KindPlan || c.rank == 2
		}), func(o *Options) { o.StepTimeout = 50 * time.Millisecond })
		_, err := execute(t, e, 4)
		const want = "rank 0 on node-a (pid 100), step 4, idle: no result after 50ms in which no " +
			"rank has moved"
		if err == nil || err.Error() != want {
			t.Errorf("error %v", err)
		}
	})
}

// TestLonelyFollower takes a follower's report for the failure when nothing better comes.
func TestLonelyFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := start(t, 2, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind == queue.KindPlan && c.rank == 0 {
				queue.SendJSON(c, queue.KindFailure, queue.Failure{Rank: 0, PID: 100,
					Phase: "forward", Message: "rank 1 has left", Follows: true})
			}
			return kind != queue.KindPlan
		}))
		if _, err := execute(t, e, 7); err == nil || !strings.Contains(err.Error(),
			"rank 0 on node-a (pid 100), forward: rank 1 has left") {
			t.Errorf("error %v", err)
		}
	})
}
