// Package executor runs step plans on the ranks of a group, wherever they are: a Launcher starts
// and watches them, the queue carries plans out and results back.
package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/queue/fanin"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// Launcher places and watches ranks; it knows nothing of what they do.
type Launcher interface {
	// Launch starts all ranks. Called again, for the group after a failed one (Detach), it may
	// reuse ranks that live (launch.Worker.Reused): it sends them the new invitation, and starts
	// the others. After an error Stop is still called, for the ranks that did start.
	Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error)
	// Exited delivers each end of a rank that Stop did not cause, those of earlier groups too.
	Exited() <-chan launch.Exit
	// Stop ends all ranks and waits for them; stopping twice is harmless. cause is why the group
	// has failed, nil when it was asked to end.
	Stop(ctx context.Context, cause error) error
}

// Options configure a group of ranks.
type Options struct {
	Launcher Launcher
	// InProcess says that the launcher's ranks run in this process and need no handshake.
	InProcess bool
	// Init is the configuration of every rank; Rank is set for each, MaxInFlight is the one below.
	Init queue.Init
	// CollectiveTimeout is how long ranks wait for each other; 0 is ten times StepTimeout: a rank
	// that waits cannot know whether the other one moves, which the driver does.
	CollectiveTimeout time.Duration
	// QueueMemory is the budget of all shared memory of the queue; 0 is 16 MiB.
	QueueMemory int64
	// Address is where ranks of other hosts may connect, "" for none.
	Address string
	// PortRange is the first and last port to listen at there; 0, 0 is any.
	PortRange [2]int
	// LinksOnly gives ranks of this host a link over Address too, instead of shared memory.
	LinksOnly bool
	// StallWarning is how long a rank may be stalled with work queued before it is reported; 0 is 5
	// s.
	StallWarning time.Duration
	// Fits, unless it is nil, is called when all ranks are connected, before they load: an error
	// ends the start. It may change init, which ranks receive next. It is not called for ranks
	// inside the driver's process.
	Fits func(init *queue.Init, workers []launch.Worker, here []join.Location) error
	// MeetTimeout bounds the time from the start of the ranks to their first record; 0 is 90 s.
	MeetTimeout time.Duration
	// Group is the number of this group among the Groups that share the cores of this machine; 0
	// of them is 1.
	Group, Groups int
	// MaxInFlight is how many plans may be in flight at a time; 0 is 1.
	MaxInFlight int
	// Reuse says that the launcher can reuse ranks: after a start that fails with CanReuse the
	// group is detached (Detach), and the launcher not stopped. Fresh are the ranks that must be
	// started anew.
	Reuse bool
	Fresh []int
	// StepTimeout fails the group when no rank has moved for so long during a step; 0 is 300 s.
	StepTimeout time.Duration
	// Events is notified of the ranks' progress and of stalls; nil is no listener.
	Events status.Listener
	// Log receives cuts and refusals of connections to ranks; nil is silence.
	Log *slog.Logger
}

// Executor is a started group.
type Executor struct {
	opt     Options
	workers []launch.Worker
	// pids are the ranks' processes as this one sees them, 0 for one of another host or PID
	// namespace.
	pids []int
	// hub is set when joined is closed.
	hub    queue.Hub
	joined chan struct{}
	// driver is nil for ranks of this process.
	driver *join.Driver
	// closers close the resources of join, background are the goroutines that end with the group,
	// and watchers those that end with the connection of a rank.
	closers              []func() error
	background, watchers sync.WaitGroup

	life    *life
	judge   judge
	loading *loading
	flights flights
	calls   pendingCalls
	stall   explainer

	// recvLock is held by the goroutine that receives: the one that waits for something does so
	// itself, because a record costs more from goroutine to goroutine than between processes.
	recvLock chan struct{}
	// sending is held while a record is sent: plans and calls leave in one order.
	sending chan struct{}
	// sent is the last plan that was sent, out its record.
	sent atomic.Uint64
	out  []byte
}

// ErrShutdown is the error of calls on an executor that was shut down.
var ErrShutdown = errors.New("executor is shut down")

// Defaults of Options.
const (
	defaultStallWarning = 5 * time.Second
	defaultStepTimeout  = 300 * time.Second
	defaultQueueMemory  = 16 << 20
	defaultMeetTimeout  = 90 * time.Second
	// startGrace bounds the end of a start that has failed.
	startGrace = 10 * time.Second
)

// Start launches the ranks and returns when all have loaded their shards. On an error nothing is
// left running, but see Options.Reuse.
func Start(ctx context.Context, opt Options) (*Executor, error) {
	if opt.StallWarning == 0 {
		opt.StallWarning = defaultStallWarning
	}
	if opt.StepTimeout == 0 {
		opt.StepTimeout = defaultStepTimeout
	}
	if opt.MeetTimeout == 0 {
		opt.MeetTimeout = defaultMeetTimeout
	}
	if opt.QueueMemory == 0 {
		opt.QueueMemory = defaultQueueMemory
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.MaxInFlight = max(1, opt.MaxInFlight)
	opt.Init.MaxInFlight = opt.MaxInFlight
	e := &Executor{opt: opt, life: newLife(), joined: make(chan struct{}),
		loading:  newLoading(opt.Init.Layout.World()),
		recvLock: make(chan struct{}, 1), sending: make(chan struct{}, 1)}
	e.calls.pending = map[uint64]*call{}
	e.flights.init(e, opt.MaxInFlight)
	if err := e.start(ctx); err != nil {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), startGrace)
		defer cancel()
		if opt.Reuse && ctx.Err() == nil && CanReuse(err) {
			return nil, errors.Join(err, e.Detach(last))
		}
		return nil, errors.Join(err, e.Shutdown(last))
	}
	return e, nil
}

func (e *Executor) start(ctx context.Context) error {
	if err := e.connect(ctx); err != nil {
		return err
	}
	e.stall.start(e)
	e.opt.Init.Nodes = e.Nodes()
	record, err := queue.AppendJSON(nil, queue.KindInit, e.opt.Init)
	if err != nil {
		return err
	}
	if err := e.hub.Send(record, time.Now().Add(e.opt.StepTimeout)); err != nil {
		return fmt.Errorf("send configuration: %w", err)
	}
	if err := e.awaitReady(ctx); err != nil {
		return err
	}
	e.receiveStored()
	return nil
}

// Nodes returns the number of the node that each rank is on, from 0 in the order of the ranks.
func (e *Executor) Nodes() []int {
	var names []string
	nodes := make([]int, len(e.workers))
	for r, w := range e.workers {
		at := slices.Index(names, w.Node)
		if at < 0 {
			at, names = len(names), append(names, w.Node)
		}
		nodes[r] = at
	}
	return nodes
}

// Links returns the figures of the connections to ranks of other hosts.
func (e *Executor) Links() []metrics.Link {
	h, ok := e.hub.(*fanin.Hub)
	if !ok {
		return nil
	}
	var links []metrics.Link
	for r := range e.workers {
		if s, ok := h.Stats(r); ok {
			links = append(links, metrics.Link{Rank: r, RTT: s.SmoothRTT, SentBytes: s.BytesSent,
				ReceivedBytes: s.BytesReceived, Resumes: s.Resumes})
		}
	}
	return links
}

// GPUs are the GPUs of ranks, as far as they have measured them.
func (e *Executor) GPUs() []metrics.GPU {
	var list []metrics.GPU
	for r := range e.workers {
		if s, _ := e.hub.Status(r); s.GPU != (status.GPU{}) {
			list = append(list, metrics.GPU{Rank: r, GPU: s.GPU})
		}
	}
	return list
}

// Shutdown ends the ranks and waits for them; calling it again waits for the first call.
func (e *Executor) Shutdown(ctx context.Context) error {
	return e.shutdown(ctx, func(cause error) error { return e.opt.Launcher.Stop(ctx, cause) })
}

// Detach ends a group that has failed, but not its ranks: the launcher may reuse those that live.
// Without a Shutdown before the launcher is the caller's to stop.
func (e *Executor) Detach(ctx context.Context) error {
	return e.shutdown(ctx, func(error) error { return nil })
}

// shutdown ends the group, and what it has of its ranks by stop.
func (e *Executor) shutdown(ctx context.Context, stop func(cause error) error) error {
	if !e.life.beginShutdown() {
		select {
		case <-e.life.down:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(e.life.down)
	e.finish(ErrShutdown)
	var errs []error
	var failed *Failure
	var cause error
	if errors.As(e.Err(), &failed) {
		cause = failed
	}
	if e.hub != nil && failed == nil {
		e.notifyShutdown()
	}
	e.stall.stop()
	if e.hub != nil {
		// A goroutine that receives sees that the group is dead and returns.
		e.hub.Interrupt()
		e.recvLock <- struct{}{}
		errs = append(errs, e.hub.Close())
		<-e.recvLock
	}
	// Ranks that wait for others in a collective do not read the queue: closing their connection
	// ends the wait.
	for _, f := range e.closers {
		errs = append(errs, f())
	}
	errs = append(errs, stop(cause))
	e.watchers.Wait()
	e.background.Wait()
	return errors.Join(errs...)
}

// acquireSend acquires the lock on sending; a receive from sending releases it. The wait ends with
// until (queue.ErrTimeout), with ctx and with the group.
func (e *Executor) acquireSend(ctx context.Context, until time.Time) error {
	select {
	case e.sending <- struct{}{}:
		return nil
	default:
	}
	t := alarm(until)
	defer t.Stop()
	select {
	case e.sending <- struct{}{}:
		return nil
	case <-e.life.dead:
		return e.Err()
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return queue.ErrTimeout
	}
}

// notifyShutdown tells the ranks to end, and lets them read it: one whose connection ends before
// takes this driver for lost, and waits for another one. While a record waits for a rank that does
// not read, none can be told: Stop ends them.
func (e *Executor) notifyShutdown() {
	t := time.NewTimer(shutdownNotice)
	defer t.Stop()
	select {
	case e.sending <- struct{}{}:
		_ = e.hub.Send([]byte{byte(queue.KindShutdown)}, time.Now().Add(shutdownNotice))
		<-e.sending
	case <-t.C:
		return
	}
	left := make(chan struct{})
	e.background.Go(func() {
		e.watchers.Wait()
		close(left)
	})
	select {
	case <-left:
	case <-t.C:
	}
}

// shutdownNotice bounds notifyShutdown: ranks may be within a step, or have no processor.
const shutdownNotice = 300 * time.Millisecond
