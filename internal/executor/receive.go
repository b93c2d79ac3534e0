package executor

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/eagleray/eagleray/internal/queue"
	"github.com/eagleray/eagleray/internal/step"
)

// read receives rank's records until its channel ends.
func (e *Executor) read(rank int, ready chan<- struct{}, progress func(int, queue.Progress)) {
	for {
		record, err := e.workers[rank].Conn.Recv()
		if err != nil {
			e.broken(rank, err)
			return
		}
		if err := e.receive(rank, record, ready, progress); err != nil {
			f := e.failure(rank, err.Error())
			f.Phase = "protocol"
			e.die(f)
			return
		}
	}
}

func (e *Executor) receive(rank int, record []byte, ready chan<- struct{}, progress func(int, queue.Progress)) error {
	kind, body, err := queue.Split(record)
	if err != nil {
		return err
	}
	switch kind {
	case queue.KindResult:
		if err := step.DecodeResult(body, &e.future.result); err != nil {
			return err
		}
		if e.future.result.Plan != e.future.plan {
			return fmt.Errorf("result of step %d while step %d is in flight", e.future.result.Plan, e.future.plan)
		}
		e.future.done <- struct{}{}
		return nil
	case queue.KindReply:
		return e.reply(rank, body)
	case queue.KindProgress:
		var p queue.Progress
		if err := json.Unmarshal(body, &p); err != nil {
			return fmt.Errorf("decode progress: %w", err)
		}
		if progress != nil {
			progress(rank, p)
		}
		return nil
	case queue.KindReady:
		if err := json.Unmarshal(body, &e.ready[rank]); err != nil {
			return fmt.Errorf("decode ready: %w", err)
		}
		ready <- struct{}{}
		return nil
	case queue.KindFailure:
		var q queue.Failure
		if err := json.Unmarshal(body, &q); err != nil {
			return fmt.Errorf("decode failure: %w", err)
		}
		f := e.failure(rank, q.Message)
		f.Phase, f.Step, f.Stack = q.Phase, q.Step, q.Stack
		e.die(f)
		return nil
	}
	return fmt.Errorf("record of unknown kind %d", kind)
}

// broken handles the end of a rank's channel. The launcher knows better how the rank ended, and tells it a
// moment later: watch reports it, and only when it stays silent the channel's own error is the cause.
func (e *Executor) broken(rank int, err error) {
	e.mu.Lock()
	over := e.stopped || e.cause != nil
	e.mu.Unlock()
	if over {
		return
	}
	e.readers.Go(func() {
		select {
		case <-e.dead:
		case <-time.After(exitGrace):
			e.die(e.failure(rank, "connection lost: "+err.Error()))
		}
	})
}

// watch turns the end of a rank into the failure of the group.
func (e *Executor) watch() {
	for {
		select {
		case exit := <-e.launcher.Exited():
			e.mu.Lock()
			over := e.stopped
			e.mu.Unlock()
			if over {
				return
			}
			f := e.failure(exit.Rank, exit.Cause)
			f.Stderr = exit.Stderr
			// A rank that ends by an error of its own sends its account first; it is in its channel and
			// says more than an exit status.
			select {
			case <-e.dead:
			case <-time.After(accountGrace):
				e.die(f)
			}
			return
		case <-e.dead:
			return
		}
	}
}

// accountGrace is how long a rank's own account of its failure, sent before it ended, may take to be read.
const accountGrace = 5 * time.Millisecond
