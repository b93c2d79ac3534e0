package engine

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// Submit queues requests whose outputs belong together, such as the choices of one answer: all of
// them, or none. It fails with an error wrapping *sample.ParamError, a *constrain.Error, or one
// naming the prompt for a bad request, ErrOverloaded, ErrStopped, or an error wrapping ErrFailed.
// The stream must be closed. ctx bounds only the call. Requests in the background take no place in
// the queue, and are refused while it is full.
func (e *Engine) Submit(ctx context.Context, list ...*Request) (Stream, error) {
	if len(list) == 0 {
		return nil, fmt.Errorf("no request to submit")
	}
	outputs := Outputs(list)
	places := outputs
	if list[0].Background {
		places = 0 // their number has a bound of its own
	}
	if err := e.refusal(places); err != nil { // before the work of preparing them
		return nil, err
	}
	s := newStream(e, outputs)
	added := make([]*request, 0, outputs)
	now := time.Now()
	for i, r := range list {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := e.checkPrompt(r); err != nil {
			return nil, err
		}
		if i == 0 || r.Constraint != list[i-1].Constraint {
			if err := e.checkConstraint(ctx, r); err != nil {
				return nil, err
			}
		}
		for n := range r.Outputs() {
			q := &request{Request: r.Output(n), stream: s, choice: len(added), arrived: now}
			if err := e.prepare(q); err != nil {
				return nil, err
			}
			if len(added) == 0 {
				q.asked = &asked{r.Outputs(), int(r.Params.MaxTokens)}
			}
			added = append(added, q)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refusalLocked(places); err != nil {
		return nil, err
	}
	if !e.room.reserve(places) {
		return nil, ErrOverloaded
	}
	for i, q := range added {
		e.nextKey++
		q.Key = e.nextKey
		s.choices[i].key, s.choices[i].every = q.Key, q.Interval
		if q.FinalOnly {
			s.choices[i].every, s.choices[i].begun = math.MaxInt, true
		}
		if q.Ticket != nil && (i == 0 || e.shares) {
			q.Source, q.Remote = added[0].Key, q.Ticket.Tokens
		}
	}
	e.queued += places
	e.inbox.post(submitted(added))
	return s, nil
}

// prepare checks one output's request, of which the prompt and the constraint are right, and makes
// what delivery needs of it.
func (e *Engine) prepare(q *request) error {
	q.Index = q.choice
	if q.Pooling == step.NotPooled { // else its one token takes no place
		e.info.Fit(&q.Params, len(q.Prompt))
	}
	if q.Constraint.Kind != constrain.None {
		q.Params.IgnoreEOS = false // what is complete can only end
	}
	if err := q.Params.Validate(e.info.VocabSize); err != nil {
		return err
	}
	if err := e.exchange.Check(q.Ticket, q.HandOver, q.choice); err != nil {
		return err
	}
	q.stops = stopFinder{stops: q.Stop, include: q.IncludeStop}
	if !q.Raw && e.info.Tokenizer != nil {
		q.decoder = e.info.Tokenizer.NewStream(q.Prompt, !q.KeepSpecial)
	}
	q.Owner = q
	if e.offload != nil {
		q.AdapterName = e.wanted.AdapterName(q.Adapter)
		e.offload.Find(&q.Request.Request)
	}
	return nil
}

// checkConstraint finds out whether the constraint of a request can be enforced, which may take a
// while.
func (e *Engine) checkConstraint(ctx context.Context, r *Request) error {
	switch {
	case r.Constraint.Kind == constrain.None:
		return nil
	case e.info.Grammars == nil:
		return &constrain.Error{Reason: "the server runs without a tokenizer"}
	case e.info.EOS < 0 && len(r.Params.StopTokens) == 0:
		return &constrain.Error{Reason: "the model has no token that ends an output"}
	}
	began := time.Now()
	kept, err := e.info.Grammars.Check(ctx, r.Constraint)
	e.events.Emit(status.GrammarCompiled{Cached: kept, Took: time.Since(began)})
	return err
}

// refusal is why so many sequences would not be queued now, nil if they would.
func (e *Engine) refusal(sequences int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.refusalLocked(sequences)
}

func (e *Engine) refusalLocked(sequences int) error {
	switch {
	case e.failure != nil:
		return e.failure
	case e.stopping:
		return ErrStopped
	case !e.room.has(sequences):
		return ErrOverloaded
	}
	return nil
}

// waitingRoom counts the sequences that wait in the engines that share it.
type waitingRoom struct {
	// bound is the most of them; 0 is no bound.
	bound  int
	queued atomic.Int64
}

// has reports whether so many sequences would be let in.
func (w *waitingRoom) has(sequences int) bool {
	return roomInQueue(w.bound, int(w.queued.Load()), sequences)
}

// reserve lets sequences in, if they have room.
func (w *waitingRoom) reserve(sequences int) bool {
	for {
		queued := w.queued.Load()
		if !roomInQueue(w.bound, int(queued), sequences) {
			return false
		}
		if w.queued.CompareAndSwap(queued, queued+int64(sequences)) {
			return true
		}
	}
}

// setQueued corrects the engine's part of those that wait. The caller holds mu.
func (e *Engine) setQueued(sequences int) {
	e.room.queued.Add(int64(sequences - e.queued))
	e.queued = sequences
}

// roomInQueue reports whether so many sequences may join those queued; 0 is no bound. What finds
// nothing queued is always admitted, so that no request is larger than any bound. Other requests
// take at most half of the room left: those with hundreds of choices do not shut out those with
// one.
func roomInQueue(bound, queued, sequences int) bool {
	return bound <= 0 || queued == 0 || sequences <= (bound-queued+1)/2
}

func (e *Engine) checkPrompt(r *Request) error {
	prompt := r.Prompt
	if len(prompt) == 0 {
		return fmt.Errorf("prompt is empty")
	}
	states := r.Pooling != step.NotPooled && r.Pooling != step.PoolLogits
	if e.info.Encoder && !states {
		return fmt.Errorf("the model is an encoder: it says no token")
	}
	switch most := e.info.MaxModelLen; {
	case r.Pooling == step.NotPooled && len(prompt) >= most:
		return fmt.Errorf("prompt of %d tokens leaves no room for output: the "+
			"model's maximum is %d", len(prompt), most)
	case len(prompt) > most:
		return fmt.Errorf("prompt of %d tokens is longer than the model's maximum of %d",
			len(prompt), most)
	}
	for _, t := range prompt {
		if t < 0 || int(t) >= e.info.VocabSize {
			return fmt.Errorf("prompt has token id %d, outside the vocabulary of %d", t,
				e.info.VocabSize)
		}
	}
	return nil
}
