package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/executor"
	"github.com/eagleray/eagleray/internal/metrics"
	"github.com/eagleray/eagleray/internal/sample"
	"github.com/eagleray/eagleray/internal/schedule"
	"github.com/eagleray/eagleray/internal/status"
	"github.com/eagleray/eagleray/internal/step"
	"github.com/eagleray/eagleray/internal/tokenizer"
)

// Engine runs the requests of one model on one group of ranks.
type Engine struct {
	// number is the engine's among those opened together, from 0.
	number  int
	info    Info
	ranks   *supervisor
	metrics *metrics.Engine
	events  status.Listener
	sched   *schedule.Scheduler
	room    *waitingRoom
	// slowStep is how long a step may take before it is called slow.
	slowStep time.Duration
	// maxInFlight is how many plans may be in flight.
	maxInFlight int
	// ownThread says that the loop waits for other processes, and does so on a thread of its own.
	ownThread bool

	// The inbox is how other goroutines reach the loop.
	mu       sync.Mutex
	added    []*request
	aborted  []uint64
	nextKey  uint64
	queued   int // waiting requests as of the last step, plus those in the inbox
	stopping bool
	drained  bool // no request is left and none will come
	cut      int  // requests that Stop ended before they were done
	failure  error
	totals   Totals
	failed   chan struct{} // closed when failure is set and Stop was not called
	wake     chan struct{}
	done     chan struct{}

	// The rest belongs to the loop.
	group    *executor.Executor
	requests map[uint64]*request
	plan     step.Plan
	flights  []flight  // sent and not applied, oldest first
	applied  time.Time // when the last result was applied
	outputs  []schedule.Output
	seen     schedule.Stats
	prompted uint64
	sampled  uint64
	steps    uint64
	stepTime time.Duration
}

// request is a Request that was admitted, with the scheduler's state of it and the engine's own.
type request struct {
	Request
	stream *stream
	// choice is the request's number in the stream.
	choice  int
	decoder *tokenizer.Stream
	stops   stopFinder
	outputs int
	text    int // bytes of output text so far, held text included
	// prompted tells that log-probabilities of the prompt were delivered.
	prompted bool

	arrived, scheduled, first, last time.Time
}

func (e *Engine) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Info describes the model that is served.
func (e *Engine) Info() *Info { return &e.info }

// Healthy tells whether a request would be served now; the error says why not.
func (e *Engine) Healthy(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failure != nil {
		return e.failure
	}
	if e.stopping {
		return ErrStopped
	}
	return nil
}

// Report says of every rank what it is doing.
func (e *Engine) Report() []executor.RankStatus {
	report := e.ranks.report()
	for i := range report {
		report[i].Engine = e.number
	}
	return report
}

// Links are the figures of the connections to ranks of other hosts.
func (e *Engine) Links() []metrics.Link {
	links := e.ranks.links()
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
	e.signal()
	if first {
		e.events.Emit(status.Stopping{Running: totals.Running, Waiting: totals.Waiting})
	}
	select {
	case <-e.done:
	case <-ctx.Done():
		e.mu.Lock()
		e.drained = true
		e.mu.Unlock()
		e.signal()
	}
	err := e.ranks.stop(ctx)
	<-e.done
	return err
}

// Cut is how many requests Stop ended before they were done.
func (e *Engine) Cut() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cut
}

// admit moves the inbox into the scheduler. It returns false when the engine is to end.
func (e *Engine) admit() bool {
	e.mu.Lock()
	added, aborted := e.added, e.aborted
	e.added, e.aborted = nil, nil
	stopping, drained := e.stopping, e.drained
	e.setQueued(e.sched.Waiting() + len(added))
	e.mu.Unlock()
	for _, q := range added {
		e.requests[q.Key] = q
		e.sched.Add(&q.Request.Request)
	}
	for _, key := range aborted {
		e.cancel(key)
	}
	if drained {
		e.mu.Lock()
		e.cut += len(e.requests)
		e.mu.Unlock()
		for key := range e.requests {
			e.cancel(key)
		}
	}
	return !stopping || len(e.requests) > 0
}

// cancel aborts a request that may already be over.
func (e *Engine) cancel(key uint64) {
	q := e.requests[key]
	if q == nil {
		return
	}
	e.sched.Abort(key)
	e.finish(q, sample.FinishAbort)
	q.stream.publish(q.choice, func(d *Delta) { d.Finish = sample.FinishAbort })
}

// deliver hands one request's news to its stream.
func (e *Engine) deliver(o *schedule.Output, start, now time.Time) {
	q := e.requests[o.Key]
	if q == nil {
		return
	}
	if q.scheduled.IsZero() {
		q.scheduled = start
	}
	if len(o.Tokens) == 0 {
		e.deliverPrompt(q, o)
		return
	}
	for i := range o.Tokens {
		if e.deliverToken(q, o, i, now); e.requests[o.Key] == nil {
			return // a stop string ended it
		}
	}
}

// deliverToken hands over the i-th token of a run. What ends the request is the last of them, or a
// stop string.
func (e *Engine) deliverToken(q *request, o *schedule.Output, i int, now time.Time) {
	q.outputs++
	finish := sample.Unfinished
	if i == len(o.Tokens)-1 {
		finish = o.Finish
	}
	offset := q.text
	text, stop := q.advance(o.Tokens[i], finish)
	if stop != "" && o.Finish == sample.Unfinished {
		e.sched.Abort(q.Key)
	}
	if stop != "" {
		finish = sample.FinishStop
	}
	e.observeToken(q, now)
	q.stream.publish(q.choice, func(d *Delta) {
		d.Text += text
		d.Tokens = append(d.Tokens, o.Tokens[i])
		d.TextOffsets = append(d.TextOffsets, offset)
		if o.Logprobs != nil {
			d.Logprobs = append(d.Logprobs, cloneLogprobs(o.Logprobs[i]))
		}
		if i == 0 {
			q.addPromptLogprobs(d, o)
		}
		d.Finish, d.StopString = finish, stop
		if finish != sample.Unfinished && stop == "" {
			d.StopToken = o.StopToken
		}
		d.PromptTokens, d.CachedTokens, d.OutputTokens = len(q.Prompt), o.Cached, q.outputs
	})
	if finish != sample.Unfinished {
		e.finish(q, finish)
	}
}

// deliverPrompt hands over log-probabilities of a prompt that is not complete yet.
func (e *Engine) deliverPrompt(q *request, o *schedule.Output) {
	if o.PromptLogprobs == nil {
		return
	}
	q.stream.hold(q.choice, func(d *Delta) { q.addPromptLogprobs(d, o) })
}

// addPromptLogprobs appends the positions that became known. The first token has none: nothing
// precedes it.
func (q *request) addPromptLogprobs(d *Delta, o *schedule.Output) {
	if o.PromptLogprobs == nil {
		return
	}
	if !q.prompted {
		q.prompted = true
		d.PromptLogprobs = append(d.PromptLogprobs,
			step.Logprobs{Sampled: step.TokenLogprob{Token: q.Prompt[0]}})
	}
	for _, l := range o.PromptLogprobs.Entries {
		d.PromptLogprobs = append(d.PromptLogprobs, cloneLogprobs(l))
	}
}

// cloneLogprobs copies what lies in the memory of a step's result, which the next step overwrites.
func cloneLogprobs(l step.Logprobs) step.Logprobs {
	l.Top = slices.Clone(l.Top)
	return l
}

// advance decodes one token. It returns the text that became certain and the stop string that ended
// the output, if one did.
func (q *request) advance(token int32, finish sample.Finish) (text, stop string) {
	if q.decoder == nil {
		return "", ""
	}
	// A token that stops the output is not part of its text unless asked for.
	var piece string
	if finish != sample.FinishStop || q.IncludeStop {
		piece = q.decoder.Push(token)
	}
	if finish != sample.Unfinished {
		piece += q.decoder.Flush()
	}
	q.text += len(piece)
	if q.outputs <= int(q.Params.MinTokens) && finish == sample.Unfinished {
		return q.stops.flush() + piece, ""
	}
	text, stop = q.stops.push(piece)
	if stop == "" && finish != sample.Unfinished {
		text += q.stops.flush()
	}
	return text, stop
}

// finish forgets a request and counts it.
func (e *Engine) finish(q *request, how sample.Finish) {
	delete(e.requests, q.Key)
	e.observeFinish(q, how)
}

// fail ends every request with the cause. The engine serves nothing afterwards.
func (e *Engine) fail(cause error) {
	e.mu.Lock()
	stopping := e.stopping
	err, how := fmt.Errorf("%w: %w", ErrFailed, cause), sample.FinishError
	if stopping {
		err, how = ErrStopped, sample.FinishAbort
	}
	e.failure = err
	if stopping {
		e.cut += len(e.requests) + len(e.added)
	} else {
		close(e.failed)
	}
	added := e.added
	e.added = nil
	e.setQueued(0)
	e.mu.Unlock()
	if !stopping {
		e.metrics.SetDown()
		e.ranks.failed(cause)
	}
	for _, q := range added {
		e.requests[q.Key] = q
	}
	for _, q := range e.requests {
		e.finish(q, how)
		q.stream.fail(err)
	}
}
