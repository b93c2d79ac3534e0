package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/queue"
)

// RPCOptions shape a collective call.
type RPCOptions struct {
	// UniqueReply waits for the reply of ReplyRank alone; errors of any rank still fail the call.
	UniqueReply bool
	ReplyRank   int
	// Timeout bounds the call, queueing included; 0 is no bound. A rank does not begin it later (queue.Call).
	Timeout time.Duration
}

// RPCError is a method's own error on one rank. The rank goes on.
type RPCError struct {
	Method string
	Rank   int
	Node   string
	PID    int
	Step   uint64
	// Type is the Go type of the error on the rank.
	Type, Message string
}

// Error names the method, the rank, where it ran and the message.
func (e *RPCError) Error() string {
	return fmt.Sprintf("call %s on rank %d (%s, pid %d, after step %d): %s: %s", e.Method, e.Rank, e.Node, e.PID, e.Step, e.Type, e.Message)
}

// call is a collective call in flight; its fields are guarded by Executor.mu.
type call struct {
	method  string
	step    uint64
	begun   time.Time
	results [][]byte
	// answered are the ranks that have replied.
	answered []bool
	missing  int
	only     int // the rank whose reply is waited for, -1 for all
	err      error
	done     chan struct{}
}

// Reply is the coming answer to a call that does not block.
type Reply struct {
	e     *Executor
	id    uint64
	call  *call
	until time.Time
	// before is the call made earlier, guarded by Executor.mu: futures complete in the order of their calls.
	before *Reply
}

// CollectiveRPC calls method on every rank and returns the results in rank order, or one with UniqueReply. The
// first error of any rank, reply rank or not, fails the call at once. It ends with ctx and with the timeout (while the
// call is being sent, with ctx's deadline only); a reply that comes later is dropped and counted.
func (e *Executor) CollectiveRPC(ctx context.Context, method string, args []byte, opt RPCOptions) ([][]byte, error) {
	until, ok := ctx.Deadline()
	if !ok {
		until = time.Now().Add(e.opt.StepTimeout)
	}
	r, err := e.startRPC(method, args, opt, until)
	if err != nil {
		return nil, err
	}
	return r.Wait(ctx)
}

// StartRPC sends a call and returns at once; the reply must be waited for.
func (e *Executor) StartRPC(method string, args []byte, opt RPCOptions) (*Reply, error) {
	return e.startRPC(method, args, opt, time.Now().Add(e.opt.StepTimeout))
}

// startRPC sends a call, for which it has time until sendUntil or the call's own timeout.
func (e *Executor) startRPC(method string, args []byte, opt RPCOptions, sendUntil time.Time) (*Reply, error) {
	if opt.UniqueReply && (opt.ReplyRank < 0 || opt.ReplyRank >= len(e.workers)) {
		return nil, fmt.Errorf("call %s: reply rank %d of %d ranks", method, opt.ReplyRank, len(e.workers))
	}
	c := &call{method: method, step: e.sent.Load(), begun: time.Now(), results: make([][]byte, len(e.workers)), answered: make([]bool, len(e.workers)), missing: len(e.workers), only: -1, done: make(chan struct{}, 1)}
	if opt.UniqueReply {
		c.only, c.missing = opt.ReplyRank, 1
	}
	r := &Reply{e: e, call: c}
	if opt.Timeout > 0 {
		r.until = time.Now().Add(opt.Timeout)
		if r.until.Before(sendUntil) {
			sendUntil = r.until
		}
	}
	if err := e.turn(sendUntil); err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	defer func() { <-e.sending }()
	e.mu.Lock()
	e.nextCall++
	r.id = e.nextCall
	e.calls[r.id] = c
	r.before, e.lastCall = e.lastCall, r
	e.mu.Unlock()
	record := queue.AppendCall(nil, &queue.Call{ID: r.id, Step: c.step, Timeout: opt.Timeout, Sent: c.begun.UnixNano(), Method: method, Args: args})
	if err := e.hub.Send(record, sendUntil); err != nil {
		e.forget(r.id)
		if e.over() {
			return nil, e.Err()
		}
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	return r, nil
}

// Wait returns the results, after those of all calls made before.
func (r *Reply) Wait(ctx context.Context) ([][]byte, error) {
	defer r.e.forget(r.id)
	for _, b := range r.earlier() {
		// Its own error is its caller's business.
		_ = r.e.awaitCall(ctx, b)
	}
	if err := r.e.awaitCall(ctx, r); err != nil {
		return nil, err
	}
	if r.call.only >= 0 {
		return r.call.results[r.call.only : r.call.only+1], nil
	}
	return r.call.results, nil
}

// earlier lists the calls made before this one that may not be over, and forgets them: several goroutines may
// wait for replies of one chain.
func (r *Reply) earlier() []*Reply {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	var list []*Reply
	for b := r.before; b != nil; b = b.before {
		list = append(list, b)
	}
	r.before = nil
	return list
}

// awaitCall receives until the call is answered, failed or out of time.
func (e *Executor) awaitCall(ctx context.Context, r *Reply) error {
	for {
		until := time.Now().Add(pollCancel)
		if !r.until.IsZero() && r.until.Before(until) {
			until = r.until
		}
		err := e.await(r.call.done, until)
		switch {
		case err == nil:
			// Leave the mark for others who wait for this call to be over.
			select {
			case r.call.done <- struct{}{}:
			default:
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			return r.call.err
		case !errors.Is(err, queue.ErrTimeout):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("call %s: %w", r.call.method, ctx.Err())
		case !r.until.IsZero() && !time.Now().Before(r.until):
			return fmt.Errorf("call %s timed out: %w", r.call.method, queue.ErrTimeout)
		}
	}
}

// forget ends a call: what still comes for it is late.
func (e *Executor) forget(id uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.calls[id]; c != nil {
		// Those who wait for it before their own need wait no longer.
		select {
		case c.done <- struct{}{}:
		default:
		}
		delete(e.calls, id)
	}
	if e.lastCall != nil && e.lastCall.id == id {
		e.lastCall = nil
	}
}

// reply takes one rank's answer to a call.
func (e *Executor) reply(rank int, body []byte) error {
	p, err := queue.ParseReply(body)
	if err != nil {
		return err
	}
	if int(p.Rank) != rank {
		return fmt.Errorf("reply of rank %d came from rank %d", p.Rank, rank)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.calls[p.ID]
	if c == nil {
		e.late.Add(1)
		return nil
	}
	if c.answered[rank] {
		return fmt.Errorf("second reply to call %s", c.method)
	}
	c.answered[rank] = true
	if p.Type != "" || p.Failure != "" {
		w := e.workers[rank]
		if c.err != nil {
			return nil // the first error wins
		}
		c.err = &RPCError{Method: c.method, Rank: rank, Node: w.Node, PID: w.PID, Step: c.step, Type: p.Type, Message: p.Failure}
	} else {
		c.results[rank] = append([]byte(nil), p.Value...)
		if c.only < 0 || c.only == rank {
			c.missing--
		}
	}
	if c.err != nil || c.missing == 0 {
		// The other ranks' replies to a unique-reply call are expected: they are not late until the call ends.
		select {
		case c.done <- struct{}{}:
		default:
		}
	}
	return nil
}
