package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eagleray/eagleray/internal/group/verdict"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/rpc"
)

// RPCOptions shape a collective call.
type RPCOptions struct {
	// UniqueReply waits for the reply of ReplyRank alone; errors of any rank still fail the call.
	UniqueReply bool
	ReplyRank   int
	// Timeout bounds the call, queueing included; 0 is no bound. A rank does not begin it later
	// (queue.Call).
	Timeout time.Duration
	// Owed fails the group when there is no answer, and no rank has moved, for so long, as a step's
	// result does that does not come; 0 is never.
	Owed time.Duration
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
	return fmt.Sprintf("call %s on rank %d (%s, pid %d, after step %d): %s: %s",
		e.Method, e.Rank, e.Node, e.PID, e.Step, e.Type, e.Message)
}

// pending are the collective calls in flight.
type pendingCalls struct {
	mu      sync.Mutex
	pending map[uint64]*call
	last    uint64 // id
	// late counts replies that came after their call was over, and were dropped.
	late atomic.Uint64
}

// oldest is for how long the oldest call has been in flight, 0 for none.
func (c *pendingCalls) oldest(now time.Time) (oldest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pending {
		oldest = max(oldest, now.Sub(p.started), 1)
	}
	return oldest
}

// name is the method of a call, "" for 0.
func (c *pendingCalls) name(id uint64) string {
	if id == 0 {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pending[id]; p != nil {
		return p.method
	}
	return fmt.Sprintf("call %d", id)
}

// owing is the first rank that has not replied to a call.
func (c *pendingCalls) owing(p *call) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Index(p.replied, false)
}

// call is a collective call in flight. Its results are guarded by calls.mu.
type call struct {
	id      uint64
	method  string
	step    uint64
	started time.Time
	// until is when it times out, zero for never.
	until time.Time
	owed  time.Duration
	only  int // the rank whose reply is waited for, -1 for all

	results [][]byte
	// replied are the ranks that have replied.
	replied []bool
	missing int
	err     error
	done    chan struct{}
}

// Call calls a method on every rank and returns the results in rank order, or the one of ReplyRank.
//
// Calls and plans reach every rank in the order in which they are sent, and a rank does them in
// that order: callers in several goroutines order their calls themselves. The first error of any
// rank, reply rank or not, fails the call at once. The call ends with ctx and with its timeout
// (while it is being sent, with ctx's deadline only); a reply that comes later is dropped and
// counted.
func Call[A, R any](ctx context.Context, e *Executor, m rpc.Method[A, R], args A,
	opt RPCOptions) ([]R, error) {
	wait, err := Begin(ctx, e, m, args, opt)
	if err != nil {
		return nil, err
	}
	return wait(ctx)
}

// Begin is the first half of Call: when it has returned, the call is sent, before all later plans
// and calls. It returns the other half, which must be called.
func Begin[A, R any](ctx context.Context, e *Executor, m rpc.Method[A, R], args A,
	opt RPCOptions) (wait func(context.Context) ([]R, error), err error) {
	encoded, err := rpc.Encode(args)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", m.Name, err)
	}
	c, err := e.sendCall(ctx, m.Name, encoded, opt)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) ([]R, error) {
		results, err := e.awaitCall(ctx, c)
		if err != nil {
			return nil, err
		}
		list, err := rpc.DecodeAll[R](results)
		if err != nil {
			return nil, fmt.Errorf("call %s: %w", m.Name, err)
		}
		return list, nil
	}, nil
}

// CollectiveRPC is Call for a method that a user names, with encoded arguments and results.
func (e *Executor) CollectiveRPC(
	ctx context.Context, method string, args []byte, opt RPCOptions,
) ([][]byte, error) {
	c, err := e.sendCall(ctx, method, args, opt)
	if err != nil {
		return nil, err
	}
	return e.awaitCall(ctx, c)
}

// sendCall sends a call, for which it has time until ctx's deadline, else StepTimeout, and until
// the call's own timeout. The call must then be waited for.
func (e *Executor) sendCall(
	ctx context.Context, method string, args []byte, opt RPCOptions,
) (*call, error) {
	world := len(e.workers)
	c := &call{method: method, step: e.sent.Load(), started: time.Now(), only: -1, owed: opt.Owed,
		results: make([][]byte, world), replied: make([]bool, world), missing: world,
		done: make(chan struct{}, 1)}
	if opt.UniqueReply {
		if opt.ReplyRank < 0 || opt.ReplyRank >= world {
			return nil, fmt.Errorf("call %s: reply rank %d of %d ranks", method, opt.ReplyRank,
				world)
		}
		c.only, c.missing = opt.ReplyRank, 1
	}
	sendUntil, ok := ctx.Deadline()
	if !ok {
		sendUntil = c.started.Add(e.opt.StepTimeout)
	}
	if opt.Timeout > 0 {
		c.until = c.started.Add(opt.Timeout)
		if c.until.Before(sendUntil) {
			sendUntil = c.until
		}
	}
	if err := e.acquireSend(ctx, sendUntil); err != nil {
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	defer func() { <-e.sending }()
	e.calls.mu.Lock()
	e.calls.last++
	c.id = e.calls.last
	e.calls.pending[c.id] = c
	e.calls.mu.Unlock()
	record := queue.AppendCall(nil, &queue.Call{ID: c.id, Step: c.step, Timeout: opt.Timeout,
		Sent: c.started.UnixNano(), Method: method, Args: args})
	if err := e.hub.Send(record, sendUntil); err != nil {
		e.removeCall(c)
		if e.life.ended() {
			return nil, e.Err()
		}
		return nil, fmt.Errorf("call %s: %w", method, err)
	}
	return c, nil
}

// awaitCall receives until the call is answered, failed or out of time.
func (e *Executor) awaitCall(ctx context.Context, c *call) ([][]byte, error) {
	defer e.removeCall(c)
	wait := func() error { return e.await(ctx, c.done, c.until) }
	if c.owed > 0 {
		wait = func() error { return e.awaitOwed(ctx, c) }
	}
	switch err := wait(); {
	case errors.Is(err, queue.ErrTimeout):
		return nil, fmt.Errorf("call %s timed out: %w", c.method, err)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, fmt.Errorf("call %s: %w", c.method, err)
	case err != nil:
		return nil, err
	}
	e.calls.mu.Lock()
	defer e.calls.mu.Unlock()
	switch {
	case c.err != nil:
		return nil, c.err
	case c.only >= 0:
		return c.results[c.only : c.only+1], nil
	}
	return c.results, nil
}

// awaitOwed receives until the call is answered, or has failed the group.
func (e *Executor) awaitOwed(ctx context.Context, c *call) error {
	for since := c.started; ; {
		err := e.await(ctx, c.done, since.Add(c.owed))
		if !errors.Is(err, queue.ErrTimeout) {
			return err
		}
		if moved := e.stall.moved(); moved.After(since) { // ranks that move are slow, not lost
			since = moved
			continue
		}
		e.overdue(verdict.Overdue{Rank: e.calls.owing(c), Step: c.step, Cause: fmt.Sprintf(
			"no answer to call %s after %v in which no rank has moved", c.method, c.owed)})
		<-e.life.dead
		return e.Err()
	}
}

// removeCall ends a call: later replies are dropped.
func (e *Executor) removeCall(c *call) {
	e.calls.mu.Lock()
	defer e.calls.mu.Unlock()
	delete(e.calls.pending, c.id)
}

// reply handles one rank's answer to a call.
func (e *Executor) reply(rank int, body []byte) error {
	p, err := queue.ParseReply(body)
	if err != nil {
		return err
	}
	if int(p.Rank) != rank {
		return fmt.Errorf("reply of rank %d came from rank %d", p.Rank, rank)
	}
	e.calls.mu.Lock()
	defer e.calls.mu.Unlock()
	c := e.calls.pending[p.ID]
	if c == nil {
		e.calls.late.Add(1)
		return nil
	}
	if c.replied[rank] {
		return fmt.Errorf("second reply to call %s", c.method)
	}
	c.replied[rank] = true
	if p.Type != "" || p.Failure != "" {
		w := e.workers[rank]
		if c.err != nil {
			return nil // the first error wins
		}
		c.err = &RPCError{Method: c.method, Rank: rank, Node: w.Node, PID: w.PID, Step: c.step,
			Type: p.Type, Message: p.Failure}
	} else {
		c.results[rank] = append([]byte(nil), p.Value...)
		if c.only < 0 || c.only == rank {
			c.missing--
		}
	}
	if c.err != nil || c.missing == 0 {
		// The other ranks' replies to a unique-reply call are expected: they are not late until the
		// call ends.
		select {
		case c.done <- struct{}{}:
		default:
		}
	}
	return nil
}
