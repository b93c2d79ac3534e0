package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/step"
)

// await receives until done has a value, the group is dead, or until passes (ErrTimeout). When somebody else
// is receiving it waits for him to pass on what it waits for, or the baton.
func (e *Executor) await(done <-chan struct{}, until time.Time) error {
	select {
	case <-done:
		return nil
	default:
	}
	for {
		select {
		case e.baton <- struct{}{}:
		default:
			if err, over := e.waitTurn(done, until); over {
				return err
			}
		}
		finished, err := e.receive(done, until)
		if finished || err != nil {
			return err
		}
		// Records for others must not keep this wait beyond its time.
		if !until.IsZero() && !time.Now().Before(until) {
			return queue.ErrTimeout
		}
	}
}

// waitTurn waits until the baton is ours (over is false) or the wait is over.
func (e *Executor) waitTurn(done <-chan struct{}, until time.Time) (err error, over bool) {
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case e.baton <- struct{}{}:
		return nil, false
	case <-done:
		return nil, true
	case <-e.dead:
		return e.Err(), true
	case <-t.C:
		return queue.ErrTimeout, true
	}
}

// awaitDead waits for the end of the group; false means that until, if there is one, came first.
func (e *Executor) awaitDead(until time.Time) bool {
	if until.IsZero() {
		<-e.dead
		return true
	}
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-e.dead:
		return true
	case <-t.C:
		return false
	}
}

// receive, with the baton held, takes one record and gives the baton back. It reports whether done had a value.
func (e *Executor) receive(done <-chan struct{}, until time.Time) (finished bool, err error) {
	defer func() { <-e.baton }()
	// What is waited for may have come between the last look and the baton.
	select {
	case <-done:
		return true, nil
	case <-e.dead:
		return false, e.Err()
	default:
	}
	rank, record, err := e.hub.Recv(until)
	switch {
	case err == nil:
		e.dispatch(rank, record)
	case errors.Is(err, queue.ErrTimeout):
		return false, queue.ErrTimeout
	case errors.Is(err, queue.ErrInterrupted):
	case !errors.Is(err, queue.ErrClosed):
		// What came cannot be, or cannot be received: no end of a rank explains it.
		f := e.failure(blamed(err), err.Error())
		f.Phase = "protocol"
		e.die(f)
	default:
		// The hub is closed, or no rank is left in it: by the failure that is about to be known, or by shutdown.
		// Whoever makes it known may be this caller, when his time is up.
		if e.awaitDead(until) {
			return false, e.Err()
		}
		return false, queue.ErrTimeout
	}
	select {
	case <-done:
		return true, nil
	case <-e.dead:
		return false, e.Err()
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
		f := e.failure(rank, err.Error())
		f.Phase = "protocol"
		e.die(f)
	}
}

func (e *Executor) handle(rank int, kind queue.Kind, body []byte) error {
	switch kind {
	case queue.KindResult:
		if err := step.DecodeResult(body, &e.future.result); err != nil {
			return err
		}
		if e.sentAt.Load() == 0 {
			return fmt.Errorf("result of step %d while none is in flight", e.future.result.Plan)
		}
		if e.future.result.Plan != e.future.plan {
			return fmt.Errorf("result of step %d while step %d is in flight", e.future.result.Plan, e.future.plan)
		}
		select {
		case e.future.done <- struct{}{}:
		default:
			return fmt.Errorf("second result of step %d", e.future.plan)
		}
		return nil
	case queue.KindReply:
		return e.reply(rank, body)
	case queue.KindProgress:
		var p queue.Progress
		if err := json.Unmarshal(body, &p); err != nil {
			return fmt.Errorf("decode progress: %w", err)
		}
		if e.opt.Progress != nil {
			e.opt.Progress(rank, p)
		}
		return nil
	case queue.KindReady:
		if e.isReady[rank] {
			return fmt.Errorf("rank is ready twice")
		}
		e.isReady[rank] = true
		if err := json.Unmarshal(body, &e.ready[rank]); err != nil {
			return fmt.Errorf("decode ready: %w", err)
		}
		if !slices.Contains(e.isReady, false) {
			e.loaded <- struct{}{}
		}
		return nil
	case queue.KindFailure:
		var q queue.Failure
		if err := json.Unmarshal(body, &q); err != nil {
			return fmt.Errorf("decode failure: %w", err)
		}
		f := e.failure(rank, q.Message)
		f.Phase, f.Step, f.Detail = q.Phase, q.Step, q.Stack
		switch {
		case q.Follows:
			e.follow(f)
		case len(q.Missing) > 0:
			e.die(e.missed(f, q.Missing))
		default:
			e.die(f)
		}
		return nil
	}
	return fmt.Errorf("record of unknown kind %d", kind)
}
