package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/eagleray/eagleray/internal/group/verdict"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
)

// await receives until done has a value, the group is dead, ctx ends (its error), or until passes
// (queue.ErrTimeout; zero is no deadline). While another goroutine receives, it waits until that
// goroutine sets done or releases the lock.
func (e *Executor) await(ctx context.Context, done <-chan struct{}, until time.Time) error {
	select {
	case <-done:
		return nil
	default:
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, e.hub.Interrupt)()
	}
	for {
		select {
		case e.recvLock <- struct{}{}:
		default:
			if over, err := e.waitTurn(ctx, done, until); over {
				return err
			}
		}
		finished, err := e.receive(ctx, done, until)
		if finished || err != nil {
			return err
		}
		// Records for other waits must not extend this one beyond its deadline.
		if !until.IsZero() && !time.Now().Before(until) {
			return queue.ErrTimeout
		}
	}
}

// alarm fires at until, and never when that is zero.
func alarm(until time.Time) *time.Timer {
	if until.IsZero() {
		return time.NewTimer(math.MaxInt64)
	}
	return time.NewTimer(time.Until(until))
}

// waitTurn waits until recvLock is held (over is false) or the wait is over.
func (e *Executor) waitTurn(
	ctx context.Context, done <-chan struct{}, until time.Time,
) (over bool, err error) {
	t := alarm(until)
	defer t.Stop()
	select {
	case e.recvLock <- struct{}{}:
		return false, nil
	case <-done:
		return true, nil
	case <-e.life.dead:
		return true, e.Err()
	case <-ctx.Done():
		return true, ctx.Err()
	case <-t.C:
		return true, queue.ErrTimeout
	}
}

// receive, with recvLock held, dispatches one record and releases the lock. It reports whether done
// had a value.
func (e *Executor) receive(
	ctx context.Context, done <-chan struct{}, until time.Time,
) (finished bool, err error) {
	defer func() { <-e.recvLock }()
	// done may have been set between the last look and the lock.
	if finished, err = e.look(ctx, done); finished || err != nil {
		return finished, err
	}
	rank, record, err := e.hub.Recv(until)
	switch {
	case err == nil:
		e.dispatch(rank, record)
	case errors.Is(err, queue.ErrTimeout):
		return false, queue.ErrTimeout
	case errors.Is(err, queue.ErrInterrupted):
	case !errors.Is(err, queue.ErrClosed):
		e.observe(verdict.Corrupt{Rank: rankOf(err), Cause: err.Error()})
	default:
		// The hub is closed, or no rank is left in it: by the failure that is about to be known, or
		// by shutdown.
		t := alarm(until)
		defer t.Stop()
		select {
		case <-e.life.dead:
		case <-ctx.Done():
		case <-t.C:
			return false, queue.ErrTimeout
		}
	}
	return e.look(ctx, done)
}

// look reports whether done has a value, else the error that ends the wait.
func (e *Executor) look(ctx context.Context, done <-chan struct{}) (finished bool, err error) {
	select {
	case <-done:
		return true, nil
	case <-e.life.dead:
		return false, e.Err()
	case <-ctx.Done():
		return false, ctx.Err()
	default:
		return false, nil
	}
}

// dispatch handles one record.
func (e *Executor) dispatch(rank int, record []byte) {
	kind, body, err := queue.Split(record)
	if err == nil {
		err = e.handle(rank, kind, body)
	}
	if err != nil {
		e.observe(verdict.Corrupt{Rank: rank, Cause: err.Error()})
	}
}

func (e *Executor) handle(rank int, kind queue.Kind, body []byte) error {
	switch kind {
	case queue.KindResult:
		return e.handleResult(rank, body)
	case queue.KindReply:
		return e.reply(rank, body)
	case queue.KindProgress:
		var p queue.Progress
		if err := json.Unmarshal(body, &p); err != nil {
			return fmt.Errorf("decode progress: %w", err)
		}
		e.opt.Events.Emit(status.Progress{Rank: rank, Phase: p.Phase, Done: p.Done, Total: p.Total})
		return nil
	case queue.KindWeightsCache:
		var c queue.WeightsCache
		if err := json.Unmarshal(body, &c); err != nil {
			return fmt.Errorf("decode what became of cached weights: %w", err)
		}
		if c.Found || c.Stored || c.Failure != "" {
			e.opt.Events.Emit(status.WeightsCache{Rank: rank, Found: c.Found, Stored: c.Stored,
				Bytes: c.Bytes, Failure: c.Failure})
		}
		if c.Over {
			e.loading.handleStored(rank)
		}
		return nil
	case queue.KindReady:
		return e.loading.handleReady(rank, body)
	case queue.KindFailure:
		var q queue.Failure
		if err := json.Unmarshal(body, &q); err != nil {
			return fmt.Errorf("decode failure: %w", err)
		}
		e.reported(rank, &q)
		return nil
	}
	return fmt.Errorf("record of unknown kind %d", kind)
}
