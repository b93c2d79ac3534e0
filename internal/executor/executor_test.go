package executor

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/step"
	"github.com/eagleray/eagleray/internal/worker"
)

// scripted is a launcher whose ranks are functions.
type scripted struct {
	rank   func(rank int, c queue.Conn)
	exited chan launch.Exit
	conns  []queue.Conn
	wg     sync.WaitGroup
	stops  int
	fail   error
}

func (s *scripted) Launch(_ context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	var workers []launch.Worker
	for i := range specs {
		driver, rank := queue.Pipe()
		s.conns = append(s.conns, driver)
		s.wg.Go(func() { s.rank(i, rank) })
		workers = append(workers, launch.Worker{Rank: i, Node: "node-a", PID: 100 + i, Conn: driver})
	}
	return workers, nil
}

func (s *scripted) Exited() <-chan launch.Exit { return s.exited }

func (s *scripted) Stop(context.Context) error {
	s.stops++
	for _, c := range s.conns {
		c.Close()
	}
	s.wg.Wait()
	return nil
}

// obedient is a rank that gets ready, answers plans on rank 0 and calls everywhere, as long as on lets it.
func obedient(on func(rank int, kind queue.Kind, body []byte, c queue.Conn) bool) func(int, queue.Conn) {
	return func(rank int, c queue.Conn) {
		for {
			record, err := c.Recv()
			if err != nil {
				return
			}
			kind, body, _ := queue.Split(record)
			if on != nil && !on(rank, kind, body, c) {
				continue
			}
			switch kind {
			case queue.KindInit:
				queue.SendJSON(c, queue.KindReady, queue.Ready{Rank: rank, PID: 100 + rank})
			case queue.KindPlan:
				var p step.Plan
				step.DecodePlan(body, &p)
				if rank == 0 {
					c.Send(step.AppendResult([]byte{byte(queue.KindResult)}, &step.Result{Plan: p.ID, Slot: []uint32{3}, Token: []int32{int32(p.ID)}}))
				}
			case queue.KindCall:
				id, method, args, _ := queue.ParseCall(body)
				c.Send(queue.AppendReply(nil, id, "", append([]byte(method+":"), append(args, byte('0'+rank))...)))
			case queue.KindShutdown:
				return
			}
		}
	}
}

func start(t *testing.T, ranks int, rank func(int, queue.Conn)) (*Executor, *scripted) {
	t.Helper()
	s := &scripted{rank: rank, exited: make(chan launch.Exit, 4)}
	e, err := Start(t.Context(), Options{Launcher: s, Init: worker.Init{WorldSize: ranks}})
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
	if err := e.CheckHealth(t.Context()); err != nil {
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
	if err := e.CheckHealth(t.Context()); !errors.Is(err, ErrShutdown) {
		t.Errorf("health after shutdown: %v", err)
	}
}

func TestCollectiveRPC(t *testing.T) {
	e, _ := start(t, 3, obedient(func(rank int, kind queue.Kind, body []byte, c queue.Conn) bool {
		if kind != queue.KindCall {
			return true
		}
		id, method, _, _ := queue.ParseCall(body)
		switch {
		case method == "fails" && rank == 2:
			c.Send(queue.AppendReply(nil, id, "out of cheese", nil))
			return false
		case method == "silent" && rank == 1:
			return false
		}
		return true
	}))
	all, err := e.CollectiveRPC(t.Context(), "m", []byte("x"), RPCOptions{})
	if err != nil || len(all) != 3 || string(all[2]) != "m:x2" {
		t.Errorf("all ranks: %q, %v", all, err)
	}
	one, err := e.CollectiveRPC(t.Context(), "m", nil, RPCOptions{UniqueReply: true, ReplyRank: 1})
	if err != nil || len(one) != 1 || string(one[0]) != "m:1" {
		t.Errorf("one rank: %q, %v", one, err)
	}
	// The error of a rank that need not reply fails the call too, and names it.
	_, err = e.CollectiveRPC(t.Context(), "fails", nil, RPCOptions{UniqueReply: true, ReplyRank: 1})
	if err != nil && !strings.Contains(err.Error(), "rank 2 (node-a, pid 102): out of cheese") {
		t.Errorf("error of rank 2: %v", err)
	}
	_, err = e.CollectiveRPC(t.Context(), "fails", nil, RPCOptions{})
	if err == nil || !strings.Contains(err.Error(), "rank 2 (node-a, pid 102): out of cheese") {
		t.Errorf("error of rank 2: %v", err)
	}
	// A call that times out answers nobody later.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := e.CollectiveRPC(ctx, "silent", nil, RPCOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silent rank: %v", err)
	}
	again, err := e.CollectiveRPC(t.Context(), "after", nil, RPCOptions{})
	if err != nil || string(again[1]) != "after:1" {
		t.Errorf("call after a time-out: %q, %v", again, err)
	}
}

// TestFirstErrorWins lets ranks fail in different ways while rank 0 stays silent.
func TestFirstErrorWins(t *testing.T) {
	for name, c := range map[string]struct {
		how  func(s *scripted, rank queue.Conn)
		want string
	}{
		"own account": {func(_ *scripted, c queue.Conn) {
			queue.SendJSON(c, queue.KindFailure, queue.Failure{Rank: 1, PID: 101, Phase: "step", Step: 7, Message: "no such block"})
		}, "rank 1 on node-a (pid 101), step 7, step: no such block"},
		"process exit": {func(s *scripted, _ queue.Conn) {
			s.exited <- launch.Exit{Rank: 1, PID: 101, Cause: "signal: killed"}
		}, "rank 1 on node-a (pid 101): signal: killed"},
		"account before exit": {func(s *scripted, c queue.Conn) {
			queue.SendJSON(c, queue.KindFailure, queue.Failure{Rank: 1, Phase: "load", Message: "no weights"})
			s.exited <- launch.Exit{Rank: 1, PID: 101, Cause: "exit status 1"}
		}, "load: no weights"},
		"nonsense": {func(_ *scripted, c queue.Conn) { c.Send([]byte{250}) }, "protocol: record of unknown kind 250"},
		"bad result": {func(_ *scripted, c queue.Conn) {
			c.Send([]byte{byte(queue.KindResult), 1, 2})
		}, "rank 1 on node-a (pid 101), protocol"},
	} {
		t.Run(name, func(t *testing.T) {
			var s *scripted
			e, s2 := start(t, 2, obedient(func(rank int, kind queue.Kind, _ []byte, conn queue.Conn) bool {
				if kind != queue.KindPlan {
					return true
				}
				if rank == 1 {
					c.how(s, conn)
				}
				return false
			}))
			s = s2
			told := make(chan *Failure, 2)
			e.OnFailure(func(f *Failure) { told <- f })
			begun := time.Now()
			_, err := execute(t, e, 7)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, not %q", err, c.want)
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("known after %v", took)
			}
			f := <-told
			if f.Rank != 1 || f.Error() != err.Error() {
				t.Errorf("callback got %v", f)
			}
			e.OnFailure(func(*Failure) { t.Error("told twice") })
		})
	}
}

// TestFailureBeforeRegistration calls the callback at once.
func TestFailureBeforeRegistration(t *testing.T) {
	e, s := start(t, 1, obedient(nil))
	s.exited <- launch.Exit{Rank: 0, PID: 100, Cause: "exit status 3"}
	<-e.Dead()
	var got *Failure
	e.OnFailure(func(f *Failure) { got = f })
	if got == nil || got.Cause != "exit status 3" {
		t.Errorf("callback got %v", got)
	}
}

// TestStartFails leaves nothing running and says what happened.
func TestStartFails(t *testing.T) {
	s := &scripted{exited: make(chan launch.Exit, 4), rank: obedient(func(rank int, kind queue.Kind, _ []byte, c queue.Conn) bool {
		if rank == 1 && kind == queue.KindInit {
			queue.SendJSON(c, queue.KindFailure, queue.Failure{Rank: 1, Phase: "load", Message: "tensor missing"})
			return false
		}
		return true
	})}
	_, err := Start(t.Context(), Options{Launcher: s, Init: worker.Init{WorldSize: 2}})
	if err == nil || !strings.Contains(err.Error(), "rank 1 on node-a (pid 101), load: tensor missing") {
		t.Errorf("error %v", err)
	}
	if s.stops != 1 {
		t.Errorf("launcher stopped %d times", s.stops)
	}

	silent := &scripted{exited: make(chan launch.Exit, 4), rank: obedient(func(int, queue.Kind, []byte, queue.Conn) bool { return false })}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Start(ctx, Options{Launcher: silent, Init: worker.Init{WorldSize: 2}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silent ranks: %v", err)
	}
	refuses := &scripted{fail: errors.New("no room")}
	if _, err := Start(t.Context(), Options{Launcher: refuses, Init: worker.Init{WorldSize: 2}}); err == nil || err.Error() != "no room" {
		t.Errorf("launcher that refuses: %v", err)
	}
}
