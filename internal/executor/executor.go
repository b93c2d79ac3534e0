// Package executor runs step plans on the ranks of a group, wherever they are: a Launcher starts and watches
// them, a queue carries plans out and results back.
package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/executor/launch"
	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/step"
	"github.com/eagleray/eagleray/internal/worker"
)

// Launcher places and watches ranks; it knows nothing of what they do.
type Launcher interface {
	// Launch starts all ranks. After an error Stop is still called, for those that did start.
	Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error)
	// Exited delivers each end of a rank that Stop did not ask for.
	Exited() <-chan launch.Exit
	// Stop ends all ranks and waits for them; stopping twice is harmless.
	Stop(ctx context.Context) error
}

// Failure is why a group cannot go on: the first error of any rank.
type Failure struct {
	Rank  int
	Node  string
	PID   int
	Step  uint64
	Phase string
	// Cause is one line; Stack and Stderr are what else is known.
	Cause  string
	Stack  string
	Stderr []string
}

// Error names the rank, where it ran, what it was doing and the cause.
func (f *Failure) Error() string {
	s := fmt.Sprintf("rank %d on %s (pid %d)", f.Rank, f.Node, f.PID)
	if f.Step > 0 {
		s += fmt.Sprintf(", step %d", f.Step)
	}
	if f.Phase != "" {
		s += ", " + f.Phase
	}
	return s + ": " + f.Cause
}

// ErrShutdown is the error of calls on an executor that was shut down.
var ErrShutdown = errors.New("executor is shut down")

// Options configure a group of ranks.
type Options struct {
	Launcher Launcher
	// Init is the configuration of every rank; Rank is set for each.
	Init worker.Init
	// CollectiveBytes is the largest message between ranks.
	CollectiveBytes int
	// Progress, when not nil, is told how far each rank's start has come.
	Progress func(rank int, p queue.Progress)
}

// Executor is a started group.
type Executor struct {
	launcher Launcher
	workers  []launch.Worker
	ready    []queue.Ready

	future Future
	out    []byte

	readers sync.WaitGroup
	// dead is closed at the first failure or at shutdown; cause is set before.
	dead  chan struct{}
	mu    sync.Mutex
	cause error
	// onFailure is called once, with the first failure.
	onFailure func(*Failure)
	told      bool
	calls     map[uint64]*call
	nextCall  uint64
	stopped   bool
}

// exitGrace is how long a broken channel waits for the launcher to say how the rank ended.
const exitGrace = 2 * time.Second

// Start launches the ranks and returns when all have loaded their shards. On an error nothing is left running.
func Start(ctx context.Context, opt Options) (*Executor, error) {
	e := &Executor{launcher: opt.Launcher, dead: make(chan struct{}), calls: map[uint64]*call{}}
	e.future.e = e
	e.future.done = make(chan struct{}, 1)
	specs := make([]launch.Spec, opt.Init.WorldSize)
	for i := range specs {
		specs[i] = launch.Spec{Rank: i, LocalRank: i, WorldSize: len(specs), CollectiveBytes: opt.CollectiveBytes}
	}
	var err error
	if e.workers, err = opt.Launcher.Launch(ctx, specs); err != nil {
		return nil, errors.Join(err, opt.Launcher.Stop(context.WithoutCancel(ctx)))
	}
	e.ready = make([]queue.Ready, len(e.workers))
	ready := make(chan struct{}, len(e.workers))
	for i := range e.workers {
		init := opt.Init
		init.Rank = i
		if err := queue.SendJSON(e.workers[i].Conn, queue.KindInit, init); err != nil {
			e.broken(i, err)
		}
		e.readers.Go(func() { e.read(i, ready, opt.Progress) })
	}
	e.readers.Go(e.watch)
	for range e.workers {
		select {
		case <-ready:
		case <-e.dead:
			return nil, errors.Join(e.Err(), e.Shutdown(context.Background()))
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("start of %d ranks: %w", len(e.workers), ctx.Err()), e.Shutdown(context.Background()))
		}
	}
	return e, nil
}

// Ranks describes the ranks as they reported themselves.
func (e *Executor) Ranks() []queue.Ready { return e.ready }

// Future is the coming result of a plan.
type Future struct {
	e      *Executor
	plan   uint64
	result step.Result
	done   chan struct{}
}

// Execute sends the plan to all ranks. One plan may be in flight: the previous future must have been waited
// for. The plan may be reused as soon as Execute returns.
func (e *Executor) Execute(p *step.Plan) (*Future, error) {
	e.out = step.AppendPlan(append(e.out[:0], byte(queue.KindPlan)), p)
	e.future.plan = p.ID
	for i := range e.workers {
		if err := e.workers[i].Conn.Send(e.out); err != nil {
			e.broken(i, err)
			<-e.dead
			return nil, e.Err()
		}
	}
	return &e.future, nil
}

// Wait returns the result, valid until the next Execute, or the failure of the group.
func (f *Future) Wait() (*step.Result, error) {
	select {
	case <-f.done:
		return &f.result, nil
	case <-f.e.dead:
		return nil, f.e.Err()
	}
}

// OnFailure registers what is called, once, with the first failure of any rank; at once when the group has
// already failed.
func (e *Executor) OnFailure(f func(*Failure)) {
	e.mu.Lock()
	e.onFailure = f
	var already *Failure
	if !e.told && errors.As(e.cause, &already) {
		e.told = true
	}
	e.mu.Unlock()
	if already != nil {
		f(already)
	}
}

// CheckHealth asks every rank for a sign of life.
func (e *Executor) CheckHealth(ctx context.Context) error {
	_, err := e.CollectiveRPC(ctx, "check_health", nil, RPCOptions{})
	return err
}

// Shutdown ends the ranks and waits for them; calling it again is harmless.
func (e *Executor) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	if e.stopped {
		e.mu.Unlock()
		return nil
	}
	e.stopped = true
	e.mu.Unlock()
	e.die(ErrShutdown)
	for i := range e.workers {
		// A rank that is already gone cannot be told; Stop deals with it.
		_ = e.workers[i].Conn.Send([]byte{byte(queue.KindShutdown)})
	}
	err := e.launcher.Stop(ctx)
	for i := range e.workers {
		e.workers[i].Conn.Close()
	}
	e.readers.Wait()
	return err
}

// Dead is closed when the group has failed or was shut down; Err then says why.
func (e *Executor) Dead() <-chan struct{} { return e.dead }

// Err is why the group is dead: a *Failure or ErrShutdown; nil while it lives.
func (e *Executor) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

// die records the first cause and ends every wait.
func (e *Executor) die(cause error) {
	e.mu.Lock()
	if e.cause != nil {
		e.mu.Unlock()
		return
	}
	e.cause = cause
	var f *Failure
	tell := e.onFailure
	if !errors.As(cause, &f) || tell == nil {
		tell = nil
	} else {
		e.told = true
	}
	e.mu.Unlock()
	close(e.dead)
	if tell != nil {
		tell(f)
	}
}

func (e *Executor) failure(rank int, cause string) *Failure {
	w := e.workers[rank]
	return &Failure{Rank: rank, Node: w.Node, PID: w.PID, Cause: cause}
}
