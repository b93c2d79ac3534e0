package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
	"github.com/eagleray/eagleray/internal/rank/weights"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// Engine runs the requests of one model on one group of ranks.
type Engine struct {
	// number is the engine's among those opened together, from 0.
	number  int
	left    sync.Once
	info    open.Info
	ranks   *groups.Supervisor
	metrics *metrics.Engine
	events  status.Listener
	sched   *schedule.Scheduler
	room    *waitingRoom
	// launching is what the ranks are started by, shown what clients may know; info does not
	// change.
	launching *groups.Launch
	shown     atomic.Pointer[open.Info]
	// steering is shared like room.
	steering *Steering
	// model is its configuration.
	model *checkpoint.Config
	// onStep is notified of every step that was applied; nil is not called.
	onStep func(StepTimes)
	// slowStep is how long a step may take before it is called slow.
	slowStep time.Duration
	// maxInFlight is how many plans may be in flight.
	maxInFlight int
	// ownThread says that the loop waits for other processes, and does so on a thread of its own.
	ownThread bool

	health *health
	// transfers exchanges KV blocks with other engines, nil where none are. shares says that
	// sequences find the blocks of others.
	transfers *transfers
	shares    bool

	mu       sync.Mutex
	inbox    inbox
	nextKey  uint64
	queued   int // waiting requests as of the last step, plus those in the inbox
	stopping bool
	drained  bool // Stop waits no longer
	cut      int  // requests that Stop ended before they were done
	failure  error
	totals   Totals
	failed   chan struct{} // closed when failure is set and Stop was not called
	done     chan struct{}

	// batches carries what became known to delivery, used carries the batches back.
	batches, used chan *batch

	// The rest belongs to the loop.
	group    *executor.Executor
	requests map[uint64]*request // those that the scheduler has
	plan     step.Plan
	flights  []flight  // sent and not applied, oldest first
	applied  time.Time // when the last result was applied
	turned   time.Time // when the loop last looked into the inbox
	restarts restarts
	suspects suspects
	todo     []*order        // that have come and are not done
	cached   *weights.Update // by which the prefix cache was computed
	revision int64           // that of the model's files which the group has loaded
	parked   []*request      // in requests, and held by a pause before the scheduler has them
	aborted  []uint64        // memory of admit
	computed []uint64        // by the plans in flight when a group failed
	seen     schedule.Stats
	prompted uint64
	sampled  uint64
	steps    uint64
	stepTime time.Duration
}

// request is a Request that was admitted, with the scheduler's state of it, which belongs to the
// loop, and the engine's own, which belongs to delivery.
type request struct {
	Request
	stream *stream
	// choice is the request's number in the stream.
	choice  int
	arrived time.Time
	decoder *tokenizer.Stream
	stops   stopFinder
	outputs int
	text    int // bytes of output text so far, held text included
	runes   int // likewise in characters
	// prompted tells that log-probabilities of the prompt were delivered, over that the last delta
	// was.
	prompted, over bool
	// asked says that its Ticket is used up. ticket is what it hands over.
	asked  bool
	ticket *kvtransfer.Ticket

	scheduled, first, last time.Time
}

// Model is the configuration of the model that is served.
func (e *Engine) Model() *checkpoint.Config { return e.model }

// Info describes the model that is served.
func (e *Engine) Info() *open.Info { return e.shown.Load() }

// Healthy tells whether a request would be served now; the error says why not.
func (e *Engine) Healthy(context.Context) error {
	e.mu.Lock()
	failure, stopping := e.failure, e.stopping
	e.mu.Unlock()
	switch {
	case failure != nil:
		return failure
	case stopping:
		return ErrStopped
	case e.steering.held():
		return ErrPaused
	}
	if err := e.health.err(); err != nil || e.steering.weights.Load() != nil {
		return err
	}
	if lost := e.info.Files.Overwritten(); lost != nil {
		return fmt.Errorf("%w: %w", ErrRecovering, lost)
	}
	return nil
}

// Report says of every rank what it is doing.
func (e *Engine) Report() []executor.RankStatus {
	report := e.ranks.Report()
	for i := range report {
		report[i].Engine = e.number
	}
	return report
}

// Links are the figures of the connections to ranks of other hosts.
func (e *Engine) Links() []metrics.Link {
	links := e.ranks.Links()
	for i := range links {
		links[i].Engine = e.number
	}
	return links
}

// Failed is closed when the engine has failed; Healthy then says why.
func (e *Engine) Failed() <-chan struct{} { return e.failed }

// Stop refuses new requests, lets those that run finish until ctx ends, then aborts the rest and
// ends the ranks. Stopping twice is harmless.
func (e *Engine) Stop(ctx context.Context) error {
	e.mu.Lock()
	first := !e.stopping
	e.stopping = true
	totals := e.totals
	e.mu.Unlock()
	e.inbox.signal()
	if first {
		e.events.Emit(status.Stopping{Running: totals.Running, Waiting: totals.Waiting})
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		e.mu.Lock()
		e.drained = true
		e.mu.Unlock()
		e.inbox.signal()
	}
	err := e.ranks.Stop(ctx)
	<-e.done
	e.transfers.wait()
	e.mu.Lock()
	cause := e.failure
	e.mu.Unlock()
	if errors.Is(cause, ErrStopped) {
		cause = nil // it was asked to end
	}
	e.left.Do(func() {
		err = errors.Join(err, e.launching.Cluster.Release(context.WithoutCancel(ctx), cause),
			e.launching.Files.Release())
	})
	return err
}

// Cut is how many requests Stop ended before they were done.
func (e *Engine) Cut() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cut
}

// cancel aborts those of the requests that are not over yet.
func (e *Engine) cancel(keys []uint64, drained bool) {
	b := e.empty()
	b.how, b.drained = sample.FinishAbort, drained
	for _, key := range keys {
		q := e.requests[key]
		if q == nil {
			continue
		}
		e.sched.Abort(key)
		delete(e.requests, key)
		e.further(key)
		e.renounce(q)
		e.transfers.withdraw(key)
		b.ended = append(b.ended, q)
	}
	e.forsake()
	e.batches <- b
}
