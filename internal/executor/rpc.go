package executor

import (
	"context"
	"fmt"

	"github.com/eagleray/eagleray/internal/queue"
)

// RPCOptions shape a collective call.
type RPCOptions struct {
	// UniqueReply waits for the reply of ReplyRank alone; errors of any rank still fail the call.
	UniqueReply bool
	ReplyRank   int
}

// call is a collective call in flight; its fields are guarded by Executor.mu.
type call struct {
	method  string
	results [][]byte
	missing int
	only    int // the rank whose reply is waited for, -1 for all
	err     error
	done    chan struct{}
}

// CollectiveRPC calls method on every rank and returns the results in rank order (one, with UniqueReply). The
// first error of any rank fails the call at once. It ends with ctx; a reply that comes later is dropped.
func (e *Executor) CollectiveRPC(ctx context.Context, method string, args []byte, opt RPCOptions) ([][]byte, error) {
	c := &call{method: method, results: make([][]byte, len(e.workers)), missing: len(e.workers), only: -1, done: make(chan struct{})}
	if opt.UniqueReply {
		c.only, c.missing = opt.ReplyRank, 1
	}
	e.mu.Lock()
	e.nextCall++
	id := e.nextCall
	e.calls[id] = c
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.calls, id)
		e.mu.Unlock()
	}()
	record := queue.AppendCall(nil, id, method, args)
	for i := range e.workers {
		if err := e.workers[i].Conn.Send(record); err != nil {
			e.broken(i, err)
		}
	}
	select {
	case <-c.done:
	case <-e.dead:
		return nil, e.Err()
	case <-ctx.Done():
		return nil, fmt.Errorf("call %s: %w", method, ctx.Err())
	}
	if c.err != nil {
		return nil, c.err
	}
	if c.only >= 0 {
		return c.results[c.only : c.only+1], nil
	}
	return c.results, nil
}

// reply takes one rank's answer to a call; answers to calls that are over are dropped.
func (e *Executor) reply(rank int, body []byte) error {
	id, failure, value, err := queue.ParseReply(body)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.calls[id]
	if c == nil {
		return nil
	}
	if failure != "" {
		w := e.workers[rank]
		c.err = fmt.Errorf("call %s on rank %d (%s, pid %d): %s", c.method, rank, w.Node, w.PID, failure)
	} else {
		c.results[rank] = append([]byte(nil), value...)
		if c.only < 0 || c.only == rank {
			c.missing--
		}
	}
	if c.err != nil || c.missing == 0 {
		delete(e.calls, id)
		close(c.done)
	}
	return nil
}
