package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/handover"
	"github.com/eagleray/eagleray/internal/engine/offload"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/steer"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/rank/kvtransfer"
	"github.com/eagleray/eagleray/internal/rank/model"
	"github.com/eagleray/eagleray/internal/text/tokenizer"
)

// Engine runs the requests of one model on one group of ranks. Its methods are for any goroutine;
// what they want of the step loop goes through the inbox.
type Engine struct {
	// number is the engine's among those of all servers, from 0.
	number int
	info   open.Info
	// model is its configuration.
	model  *model.Config
	ranks  *groups.Supervisor
	events status.Listener
	// room and wanted are shared by the engines that were opened together.
	room   *waitingRoom
	wanted *steer.Wanted
	// shown is what clients may know: info, with the ranks of the newest group.
	shown  atomic.Pointer[open.Info]
	health *health
	// exchange is of KV blocks with other engines, nil where there is none. shares says that
	// sequences find the blocks of others.
	exchange *handover.Exchange
	shares   bool
	// offload is where blocks are stored beside the cache, nil where they are not.
	offload  *offload.Tier
	experts  expertLoads
	delivery *delivery
	loop     *Loop
	left     sync.Once
	// unwatch has the model's files, which other engines may have too, forget the engine.
	unwatch func()

	mu       sync.Mutex
	inbox    inbox
	nextKey  uint64
	queued   int // waiting requests as of the last step, plus those in the inbox
	stopping bool
	drained  bool // Stop waits no longer
	cut      int  // requests that Stop ended before they were done
	failure  error
	totals   Totals
	// placed is where experts are; unbalanced says that it is time to look at their loads.
	placed     placements
	unbalanced chan struct{}
	failed     chan struct{} // closed when failure is set and Stop was not called
	done       chan struct{}
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
	// asked is what the first request of several asks for.
	asked *asked
	// published is the ticket of the blocks that it hands over.
	published *kvtransfer.Ticket

	scheduled, first, last time.Time
	// guesses are the steps since the first with drafts.
	guesses []status.Guess
}

// asked are the numbers of outputs, and of tokens at most, that a client asked for.
type asked struct{ outputs, tokens int }

// Model is the configuration of the model that is served.
func (e *Engine) Model() *model.Config { return e.model }

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
	case e.wanted.Paused():
		return ErrPaused
	}
	if err := e.health.err(); err != nil || e.wanted.Update() != nil {
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

// AwaitStored returns when the ranks have stored what the next start finds, when the engine fails,
// or when ctx ends.
func (e *Engine) AwaitStored(ctx context.Context) {
	select {
	case <-e.ranks.Stored():
	case <-e.failed:
	case <-ctx.Done():
	}
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
	e.exchange.Wait()
	e.offload.Wait()
	e.mu.Lock()
	cause, rest := e.failure, e.inbox.popAll()
	e.mu.Unlock()
	for _, m := range rest { // that came after the loop
		switch m := m.(type) {
		case handover.Message:
			e.exchange.Handle(m)
		case offload.Message:
			e.offload.Handle(m)
		}
	}
	if errors.Is(cause, ErrStopped) {
		cause = nil // it was asked to end
	}
	e.left.Do(func() {
		e.unwatch()
		err = errors.Join(err, e.loop.launching.Cluster.Release(context.WithoutCancel(ctx), cause),
			e.loop.launching.Files.Release())
	})
	return err
}

// Cut is how many requests Stop ended before they were done.
func (e *Engine) Cut() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cut
}

// Wanted is what is asked of the engines that were opened together.
func (e *Engine) Wanted() *steer.Wanted { return e.wanted }

// Exchanges says whether the engine exchanges KV blocks with others.
func (e *Engine) Exchanges() bool { return e.exchange != nil }
