package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/process"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/rank/calls"
	"github.com/eagleray/eagleray/internal/sys/synctext"
	"github.com/eagleray/eagleray/internal/sys/testchild"
)

// eachTransport runs a test with two ranks that are processes, over the ring and over links.
func eachTransport(t *testing.T, f func(t *testing.T, links bool)) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) { f(t, tr.links) })
	}
}

// TestAliveThenDead looks at the processes of a group before and after its shutdown, which may be
// repeated, and at what a dead group answers.
func TestAliveThenDead(t *testing.T) {
	eachTransport(t, func(t *testing.T, links bool) {
		e := group(t, processes(2, links))
		var pids []int
		for rank, r := range e.Ranks() {
			if r.Rank != rank || r.PID != e.workers[rank].PID || r.Threads != 1 ||
				r.WeightBytes == 0 || testchild.Gone(r.PID) {
				t.Errorf("rank %d: %+v, gone: %v", rank, r, testchild.Gone(r.PID))
			}
			pids = append(pids, r.PID)
		}
		if pids[0] == pids[1] {
			t.Errorf("pids %v", pids)
		}
		first := runs(t, e, 1)
		if again := runs(t, e, 2); again != first {
			t.Errorf("tokens %d and %d for the same prompt", first, again)
		}
		for range 3 {
			if err := e.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
		for _, pid := range pids {
			if syscall.Kill(pid, 0) == nil {
				t.Errorf("pid %d is still there, or was not reaped", pid)
			}
		}
		if _, err := e.Execute(prompt(3, 1)); !errors.Is(err, ErrShutdown) {
			t.Errorf("step after shutdown: %v", err)
		}
		if err := checkHealth(context.Background(), e); !errors.Is(err, ErrShutdown) {
			t.Errorf("call after shutdown: %v", err)
		}
	})
}

// TestRepliesByRank wants each rank's own answer at its place, and one when one is asked for.
func TestRepliesByRank(t *testing.T) {
	eachTransport(t, func(t *testing.T, links bool) {
		e := group(t, processes(2, links))
		info := func(raw []byte) (r queue.Ready) {
			if err := json.Unmarshal(raw, &r); err != nil {
				t.Error(err)
			}
			return r
		}
		for range 50 {
			all, err := e.CollectiveRPC(t.Context(), calls.RankInfo.Name, nil,
				RPCOptions{Timeout: patience})
			if err != nil || len(all) != 2 || info(all[0]) != e.Ranks()[0] ||
				info(all[1]) != e.Ranks()[1] {
				t.Fatalf("all: %q, %v", all, err)
			}
			for rank := range 2 {
				one, err := e.CollectiveRPC(t.Context(), calls.RankInfo.Name, nil,
					RPCOptions{UniqueReply: true, ReplyRank: rank, Timeout: patience})
				if err != nil || len(one) != 1 || info(one[0]) != e.Ranks()[rank] {
					t.Fatalf("rank %d: %q, %v", rank, one, err)
				}
			}
		}
		_, err := e.CollectiveRPC(t.Context(), "make_tea", nil, RPCOptions{Timeout: patience})
		var failed *RPCError
		if !errors.As(err, &failed) || failed.Method != "make_tea" ||
			failed.PID != e.Ranks()[failed.Rank].PID ||
			!strings.Contains(failed.Message, `unknown method "make_tea"`) {
			t.Errorf("unknown method: %v", err)
		}
		runs(t, e, 1)
	})
}

// TestLargeArguments sends arguments and replies far larger than any ring or window.
func TestLargeArguments(t *testing.T) {
	eachTransport(t, func(t *testing.T, links bool) {
		o := processes(2, links)
		o.QueueMemory = 1 << 20
		e := group(t, o)
		most := 20 << 20
		if testing.Short() {
			most = 5 << 20 // five times the queue's memory, too
		}
		for _, size := range []int{0, 1, 100 << 10, 3 << 20, most, 5} {
			args := make([]byte, size)
			for i := range args {
				args[i] = byte(i * 7 >> 3)
			}
			all, err := e.CollectiveRPC(t.Context(), calls.Echo.Name, args,
				RPCOptions{Timeout: patience})
			if err != nil || len(all) != 2 || !slices.Equal(all[0], args) ||
				!slices.Equal(all[1], args) {
				t.Fatalf("%d bytes: %v", size, err)
			}
		}
	})
}

// TestTimeoutThenNext stops a rank, lets calls run out of time, and goes on: late replies
// are dropped.
func TestTimeoutThenNext(t *testing.T) {
	eachTransport(t, func(t *testing.T, links bool) {
		e := group(t, processes(2, links))
		pid := e.Ranks()[1].PID
		stop(t, pid)
		const n = 3
		for i := range n {
			_, err := e.CollectiveRPC(t.Context(), calls.Echo.Name, []byte{byte(i)},
				RPCOptions{Timeout: 30 * time.Millisecond})
			if !isTimeout(err) || !strings.Contains(err.Error(), calls.Echo.Name) {
				t.Fatalf("call of a stopped rank: %v", err)
			}
		}
		signal(t, pid, syscall.SIGCONT)
		for id := range uint64(20) {
			runs(t, e, id+1)
		}
		// On a busy machine the other rank may have been late too.
		if late := e.calls.late.Load(); late < n || late > 2*n {
			t.Errorf("%d late replies to %d calls of which each had one at least", late, n)
		}
	})
}

// victims is how many ranks of two have something happen to them, one after the other.
func victims() int {
	if testing.Short() {
		return 1
	}
	return 2
}

// TestKilledWhileWaiting kills a rank on whose reply the driver waits without a limit: the wait
// ends with the cause, as do the waits of others, and so does every later call.
func TestKilledWhileWaiting(t *testing.T) {
	eachTransport(t, func(t *testing.T, links bool) {
		for victim := range victims() {
			for _, waits := range []string{"call", "step", "nothing"} {
				t.Run(fmt.Sprint(victim, waits), func(t *testing.T) {
					e := group(t, processes(2, links))
					pid := e.Ranks()[victim].PID
					stop(t, pid) // so that no reply comes before it is killed
					failures := make(chan *Failure, 1)
					e.OnFailure(func(f *Failure) { failures <- f })
					done := make(chan error, 1)
					switch waits {
					case "call":
						go func() {
							_, err := e.CollectiveRPC(context.Background(), calls.Echo.Name, nil,
								RPCOptions{UniqueReply: true, ReplyRank: victim})
							done <- err
						}()
					case "step":
						f, err := e.Execute(prompt(1, 5))
						if err != nil {
							t.Fatal(err)
						}
						go func() {
							_, err := f.Wait()
							done <- err
						}()
					case "nothing":
						done <- nil
					}
					if waits != "nothing" {
						eventually(t, "the wait", func() bool { return len(e.recvLock) == 1 })
					}
					started := time.Now()
					signal(t, pid, syscall.SIGKILL)
					var f *Failure
					select {
					case f = <-failures:
					case <-time.After(patience):
						t.Fatal("no failure although a rank was killed")
					}
					t.Logf("known after %v: %v", time.Since(started), f)
					if f.Rank != victim || f.PID != pid || f.Cause != "signal: killed" {
						t.Errorf("failure %+v", f)
					}
					if err := <-done; waits != "nothing" && !errors.As(err, &f) {
						t.Errorf("the wait ends with %v", err)
					}
					if err := checkHealth(t.Context(), e); !errors.As(err, &f) {
						t.Errorf("call of a group that failed: %v", err)
					}
				})
			}
		}
	})
}

// TestCutAndResume cuts the connections of ranks again and again under steps and calls: nothing is
// lost, nothing comes twice.
func TestCutAndResume(t *testing.T) {
	o := processes(1, true)
	d := &detour{Launcher: o.Launcher, t: t}
	o.Launcher = d
	e := group(t, o)
	end := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		for n := uint64(0); ; {
			select {
			case <-end:
				return
			case <-time.After(time.Duration(2+n*7%20) * time.Millisecond):
			}
			// A slow machine must get through its handshakes within the link's grace.
			if resumes := e.Links()[0].Resumes; resumes >= n {
				n = resumes + 1
				d.proxy.cut()
			}
		}
	})
	var resumes uint64
	id := uint64(0)
	for started := time.Now(); resumes < 10 && time.Since(started) < patience; {
		for range 20 {
			id++
			runs(t, e, id)
		}
		resumes = e.Links()[0].Resumes
	}
	close(end)
	cutter.Wait()
	t.Logf("%d steps and calls, %d resumes", id, resumes)
	if resumes < 10 {
		t.Errorf("only %d resumes", resumes)
	}
	if n := e.calls.late.Load(); n != 0 {
		t.Errorf("%d replies came twice", n)
	}
}

// TestSeveralStart starts groups at the same moment: each reaches its own ranks.
func TestSeveralStart(t *testing.T) {
	const groups = 6
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[int]bool{}
	for i := range groups {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			e, err := Start(ctx, processes(1+i%2, i%3 == 0))
			if err != nil {
				t.Error(err)
				return
			}
			for range 20 {
				all, err := e.CollectiveRPC(ctx, calls.RankInfo.Name, nil, RPCOptions{})
				if err != nil {
					t.Error(err)
					break
				}
				for rank, raw := range all {
					var r queue.Ready
					if err := json.Unmarshal(raw, &r); err != nil || r != e.Ranks()[rank] {
						t.Errorf("group %d, rank %d: %s, %v", i, rank, raw, err)
					}
				}
			}
			mu.Lock()
			for _, r := range e.Ranks() {
				if seen[r.PID] {
					t.Errorf("pid %d is in two groups", r.PID)
				}
				seen[r.PID] = true
			}
			mu.Unlock()
			if err := e.Shutdown(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestEndsWhileStarting lets a rank end, or hang, at each point of the start: the start ends soon,
// long before any deadline, and says which rank it was and what it said last. Nothing is left.
func TestEndsWhileStarting(t *testing.T) {
	for _, tr := range transports {
		for _, stage := range []string{"start", "handshake", "admitted"} {
			for victim := range victims() {
				t.Run(fmt.Sprintf("%s/%s/%d", tr.name, stage, victim), func(t *testing.T) {
					t.Setenv(endVariable, fmt.Sprintf("%d %s", victim, stage))
					started := time.Now()
					_, err := Start(t.Context(), processes(2, tr.links))
					took := time.Since(started)
					t.Logf("after %v: %v", took, err)
					var f *Failure
					if !errors.As(err, &f) || f.Rank != victim || f.PID == 0 ||
						!strings.HasPrefix(f.Cause, "exit status") {
						t.Fatalf("failure %+v of %v", f, err)
					}
					if len(f.Stderr) == 0 || f.Stderr[0] != "about to end: out of cheese" {
						t.Errorf("last output %q", f.Stderr)
					}
					if took > 20*time.Second {
						t.Errorf("known after %v", took)
					}
				})
			}
		}
	}
	t.Run("silent", func(t *testing.T) {
		eachTransport(t, func(t *testing.T, links bool) {
			t.Setenv(endVariable, "1 silent")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			started := time.Now()
			if _, err := Start(ctx, processes(2, links)); !errors.Is(err,
				context.DeadlineExceeded) {
				t.Errorf("a rank that hangs: %v", err)
			}
			// What is under way then would give up by itself after ten seconds.
			if took := time.Since(started); took > 9*time.Second {
				t.Errorf("a rank that hangs: given up after %v", took)
			}
		})
	})
}

// TestRootCause gives ranks a configuration with which they cannot start: the error is the rank's
// own, with the phase in which it arose.
func TestRootCause(t *testing.T) {
	eachTransport(t, func(t *testing.T, links bool) {
		o := processes(2, links)
		o.Init.ModelDir = "/no/such/model"
		_, err := Start(t.Context(), o)
		var f *Failure
		if !errors.As(err, &f) || f.PID == 0 || f.Phase != "load" ||
			!strings.Contains(err.Error(), "/no/such/model") ||
			!strings.Contains(err.Error(), fmt.Sprintf("rank %d on localhost (pid %d)", f.Rank,
				f.PID)) {
			t.Errorf("%+v: %v", f, err)
		}
	})
}

// TestOutput relays what ranks print with their number before it.
func TestOutput(t *testing.T) {
	t.Setenv(endVariable, "0 start")
	var b synctext.Buffer
	o := processes(1, false)
	o.Launcher = process.New(launch.Print(&b))
	if _, err := Start(t.Context(), o); err == nil {
		t.Fatal("started without a rank")
	}
	if got := b.String(); got != "[rank 0] about to end: out of cheese\n" {
		t.Errorf("printed %q", got)
	}
}

// TestShutdownWhileSending shuts a group down while a call waits for room at a rank that does not
// read.
func TestShutdownWhileSending(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, links bool) {
		o := processes(1, links)
		o.QueueMemory = 1 << 20
		e := group(t, o)
		stop(t, e.Ranks()[0].PID)
		done := make(chan error, 1)
		go func() {
			_, err := e.CollectiveRPC(context.Background(), calls.Echo.Name, make([]byte, 40<<20),
				RPCOptions{})
			done <- err
		}()
		eventually(t, "the call", func() bool { return len(e.sending) == 1 })
		ended := make(chan error, 1)
		go func() { ended <- e.Shutdown(context.Background()) }()
		for _, c := range []chan error{ended, done} {
			select {
			case err := <-c:
				if err != nil && !errors.Is(err, ErrShutdown) {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Fatal("shutdown waits for a call, the call for a rank")
			}
		}
	})
}

// late stops the ranks only once they have ended by themselves, or patience is over.
type late struct {
	Launcher
	t    *testing.T
	pids []int
}

func (l *late) Stop(ctx context.Context, cause error) error {
	eventually(l.t, "ranks that end when they are told to", func() bool {
		return !slices.ContainsFunc(l.pids, func(pid int) bool { return !testchild.Gone(pid) })
	})
	return l.Launcher.Stop(ctx, cause)
}

// TestShutdownIsRead wants ranks to end because they are told to, also one that is slow to read it:
// those of actors wait for another driver when their connection ends before.
func TestShutdownIsRead(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, links bool) {
		o := processes(2, links)
		l := &late{Launcher: o.Launcher, t: t}
		o.Launcher = l
		e := group(t, o)
		for _, r := range e.Ranks() {
			l.pids = append(l.pids, r.PID)
			stop(t, r.PID)
			time.AfterFunc(shutdownNotice/10, func() { _ = syscall.Kill(r.PID, syscall.SIGCONT) })
		}
		if err := e.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestQueueingCounts lets a call run out of time, or be given up, while it waits for its turn
// behind one that is still being sent.
func TestQueueingCounts(t *testing.T) {
	o := processes(1, false)
	o.QueueMemory = 1 << 20
	e := group(t, o)
	stop(t, e.Ranks()[0].PID)
	done := make(chan error, 1)
	large := make([]byte, 8<<20)
	go func() {
		_, err := e.CollectiveRPC(context.Background(), calls.Echo.Name, large,
			RPCOptions{Timeout: patience})
		done <- err
	}()
	eventually(t, "the first call", func() bool { return len(e.sending) == 1 })
	if _, err := e.CollectiveRPC(t.Context(), calls.Echo.Name, nil,
		RPCOptions{Timeout: 20 * time.Millisecond}); !isTimeout(err) {
		t.Errorf("call with a timeout: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := checkHealth(ctx, e); !isTimeout(err) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("call with a context: %v", err)
	}
	signal(t, e.Ranks()[0].PID, syscall.SIGCONT)
	if err := <-done; err != nil {
		t.Errorf("the first call: %v", err)
	}
	runs(t, e, 1)
}

// TestReplyBeforeFailure sends a large call and then a record that ends the rank: the reply, which
// fills windows and rings many times, arrives whole before the rank's report.
func TestReplyBeforeFailure(t *testing.T) {
	eachTransport(t, func(t *testing.T, links bool) {
		o := processes(2, links)
		o.QueueMemory = 1 << 20
		e := group(t, o)
		size := 16 << 20
		if testing.Short() {
			size /= 4
		}
		args := make([]byte, size)
		for i := range args {
			args[i] = byte(i >> 5)
		}
		c, err := e.sendCall(t.Context(), calls.Echo.Name, args, RPCOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.acquireSend(t.Context(), time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		err = e.hub.Send([]byte{200}, time.Now().Add(patience))
		<-e.sending
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		all, err := e.awaitCall(ctx, c)
		var f *Failure
		if err == nil {
			if len(all) != 2 || !slices.Equal(all[0], args) || !slices.Equal(all[1], args) {
				t.Error("the replies differ from the arguments")
			}
		} else if !errors.As(err, &f) { // one rank may end before the other has answered
			t.Fatal(err)
		}
		select {
		case <-e.Dead():
		case <-time.After(patience):
			t.Fatal("the ranks go on")
		}
		const why = "record of unknown kind 200"
		switch {
		case errors.As(e.Err(), &f) && f.Phase == "recv" && strings.Contains(f.Cause, why):
		case links && f != nil && strings.Contains(strings.Join(f.Stderr, "\n"), why):
			// A link that closes gives its last records a second; on a slow machine only the last
			// output is left.
		default:
			t.Errorf("failure %+v", e.Err())
		}
	})
}
