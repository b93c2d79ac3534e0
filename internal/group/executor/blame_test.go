package executor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/fanin"
	"github.com/eagleray/eagleray/internal/link/queue/link"
	"github.com/eagleray/eagleray/internal/link/queue/ring"
	"github.com/eagleray/eagleray/internal/link/status"
)

// TestStoppedRankIsBlamed stops a rank in a step: it is the failure, whether the driver's time is
// over first or that of the ranks that wait for it in a sum. The other rank of each is a transcript
// (verdict/testdata/overdue.txt).
func TestStoppedRankIsBlamed(t *testing.T) {
	t.Parallel()
	for victim, first := range []string{"rank", "driver"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			o := processes(2, false)
			if first == "driver" {
				o.StepTimeout = 2 * time.Second
			} else {
				o.CollectiveTimeout = 2 * time.Second
			}
			e := group(t, o)
			stop(t, e.Ranks()[victim].PID)
			f, err := e.Execute(prompt(1, 5, 6, 7))
			if err == nil {
				_, err = f.Wait()
			}
			var blamed *Failure
			if !errors.As(err, &blamed) || blamed.Rank != victim ||
				!strings.Contains(blamed.Cause, "its process is stopped") {
				t.Errorf("rank %d is stopped, and the failure %+v", victim, blamed)
			}
		})
	}
}

// TestComputingRankIsBlamed has rank 0 wait for rank 1, which computes the same layer for ever.
func TestComputingRankIsBlamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := start(t, 2, obedient(func(kind queue.Kind, _ []byte, c *memPort) bool {
			if kind != queue.KindPlan {
				return true
			}
			c.status.Set([]status.Phase{status.Collective, status.Forward}[c.rank], 5)
			c.Recv(time.Time{}) // until it is shut down
			return false
		}), func(o *Options) { o.StepTimeout = 500 * time.Millisecond })
		_, err := execute(t, e, 4)
		var f *Failure
		if !errors.As(err, &f) || f.Rank != 1 {
			t.Errorf("failure %v", err)
		}
	})
}

// TestSlowMesh has rank 1 need a while to reach the other rank, and then give up. The driver waits
// for it before links, which may not be silent, begin: its own end is the cause.
func TestSlowMesh(t *testing.T) {
	t.Setenv(endVariable, "1 slowmesh")
	_, err := Start(t.Context(), processes(2, true))
	var f *Failure
	if !errors.As(err, &f) || f.Rank != 1 || f.Phase != "meet" || f.Cause != "exit status 3" ||
		!strings.Contains(strings.Join(f.Stderr, "\n"), "i/o timeout") {
		t.Errorf("failure %+v of %v", f, err)
	}
}

// TestRankThatDoesNotCome names a rank that hangs before the group has met.
func TestRankThatDoesNotCome(t *testing.T) {
	eachTransport(t, func(t *testing.T, links bool) {
		t.Setenv(endVariable, "1 silent")
		o := processes(2, links)
		o.MeetTimeout = 2 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := Start(ctx, o)
		var f *Failure
		if ctx.Err() != nil || !errors.As(err, &f) || f.Rank != 1 {
			t.Errorf("failure %v", err)
		}
	})
}

// failing is a hub whose Send fails when err is set.
type failing struct {
	queue.Hub
	mu  sync.Mutex
	err error
}

func (h *failing) Send(record []byte, until time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	return h.Hub.Send(record, until)
}

// rehubbed is a scripted launcher whose ranks are reached over a failing hub.
type rehubbed struct {
	*scripted
	hub failing
}

func (r *rehubbed) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	workers, err := r.scripted.Launch(ctx, specs)
	r.hub.Hub = r.scripted.hub
	for i := range workers {
		workers[i].Hub = &r.hub
	}
	return workers, err
}

// TestSendErrorIsBlamed lets the error of Send name rank 1.
func TestSendErrorIsBlamed(t *testing.T) {
	for name, cause := range map[string]error{
		"link":    &fanin.RankError{Rank: 1, Err: queue.ErrClosed},
		"corrupt": &ring.CorruptError{Rank: 1, Detail: "position 7"},
		"slow":    fmt.Errorf("%w: %w", queue.ErrTimeout, &queue.SlowError{Ranks: []int{1}}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &rehubbed{scripted: &scripted{rank: obedient(nil),
					exited: make(chan launch.Exit, 4)}}
				e, err := Start(t.Context(), Options{Launcher: r, InProcess: true,
					Init: queue.Init{Layout: layout.Layout{TP: 2}}})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Shutdown(context.Background())
				r.hub.mu.Lock()
				r.hub.err = cause
				r.hub.mu.Unlock()
				_, err = execute(t, e, 4)
				var f *Failure
				if !errors.As(err, &f) || f.Rank != 1 {
					t.Errorf("failure %v", err)
				}
			})
		})
	}
}

// ringed is a launcher whose ranks are goroutines at the ends of a real ring.
type ringed struct {
	rank   func(rank int, r *ring.Rank, memory *os.File)
	exited chan launch.Exit
	wg     sync.WaitGroup
	ranks  []*ring.Rank
}

func (l *ringed) Launch(_ context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	seg, err := ring.Create(ring.Options{Ranks: len(specs)})
	if err != nil {
		return nil, err
	}
	h := fanin.New(seg.Driver(), make([]*link.Link, len(specs)))
	var workers []launch.Worker
	for i := range specs {
		r, err := ring.Map(seg.File(), i)
		if err != nil {
			return nil, err
		}
		l.ranks = append(l.ranks, r)
		l.wg.Go(func() { l.rank(i, r, seg.File()) })
		workers = append(workers, launch.Worker{Rank: i, Node: "node-a", PID: 100 + i, Hub: h})
	}
	return workers, nil
}

func (l *ringed) Exited() <-chan launch.Exit { return l.exited }

func (l *ringed) Stop(context.Context, error) error {
	for _, r := range l.ranks {
		r.Close()
	}
	l.wg.Wait()
	return nil
}

// serve answers the configuration and hands each plan to on, until the ring is closed.
func serve(rank int, r *ring.Rank, on func()) {
	for {
		record, err := r.Recv(time.Time{})
		if err != nil {
			return
		}
		switch queue.Kind(record[0]) {
		case queue.KindInit:
			ready, _ := queue.AppendJSON(nil, queue.KindReady, queue.Ready{Rank: rank})
			r.Send(ready, time.Time{})
		case queue.KindPlan:
			on()
		}
	}
}

// TestCorruptRing has rank 1 scribble over its part of the ring: that is the failure, at once.
func TestCorruptRing(t *testing.T) {
	scribbled := make(chan struct{})
	l := &ringed{exited: make(chan launch.Exit, 4)}
	l.rank = func(rank int, r *ring.Rank, memory *os.File) {
		serve(rank, r, func() {
			if rank == 0 {
				<-scribbled
				progress, _ := queue.AppendJSON(nil, queue.KindProgress, queue.Progress{})
				r.Send(progress, time.Time{}) // has the driver look
				return
			}
			position := binary.NativeEndian.AppendUint64(nil, 12345)
			memory.WriteAt(position, int64((2+rank)*os.Getpagesize()+128))
			close(scribbled)
		})
	}
	e, err := Start(t.Context(), Options{Launcher: l, InProcess: true,
		Init: queue.Init{Layout: layout.Layout{TP: 2}}, StepTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Shutdown(context.Background())
	_, err = execute(t, e, 4)
	var f *Failure
	if !errors.As(err, &f) || f.Rank != 1 || f.Phase != "protocol" ||
		!strings.Contains(f.Cause, "corrupt") {
		t.Errorf("failure %v", err)
	}
}

// TestFlood has a rank send records without end: the step's deadline holds all the same.
func TestFlood(t *testing.T) {
	done := make(chan struct{})
	l := &ringed{exited: make(chan launch.Exit, 4), rank: func(rank int, r *ring.Rank, _ *os.File) {
		serve(rank, r, func() {
			progress, _ := queue.AppendJSON(nil, queue.KindProgress, queue.Progress{})
			for r.Send(progress, time.Time{}) == nil {
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}}
	e, err := Start(t.Context(), Options{Launcher: l, InProcess: true,
		Init: queue.Init{Layout: layout.Layout{TP: 1}}, StepTimeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Shutdown(context.Background())
	defer close(done)
	const want = "no result after 300ms"
	if _, err := execute(t, e, 4); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("failure %v", err)
	}
}
