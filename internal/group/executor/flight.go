package executor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/verdict"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/step"
)

// flights are the futures of the plans in flight, in a ring. Plans are answered in the order in
// which they were sent, so that the oldest one is always the one whose result comes next.
type flights struct {
	mu sync.Mutex
	// ring holds Options.MaxInFlight futures. The next plan gets the future at next. Of the futures
	// before it the last held have not been waited for, and the last due have no result yet.
	ring            []Future
	next, held, due int
	// since is the time from which the ranks owe the oldest result: its plan was sent, or the plan
	// before was answered.
	since time.Time
}

// Future is the coming result of a plan.
type Future struct {
	e      *Executor
	plan   uint64
	result step.Result
	// arrived is the time at which the result's record was received.
	arrived time.Time
	done    chan struct{} // has a value once result has
}

// Arrived returns the time at which the record of the result was received, before it was decoded.
// Wait has returned.
func (f *Future) Arrived() time.Time { return f.arrived }

func (f *flights) init(e *Executor, n int) {
	f.ring = make([]Future, n)
	for i := range f.ring {
		f.ring[i].e, f.ring[i].done = e, make(chan struct{}, 1)
	}
}

// open returns the future of a plan that is about to be sent.
func (f *flights) open(plan uint64, now time.Time) (*Future, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == len(f.ring) {
		return nil, fmt.Errorf("step %d: %d steps are in flight already", plan, f.held)
	}
	future := &f.ring[f.next]
	future.plan = plan
	f.next = (f.next + 1) % len(f.ring)
	f.held++
	f.due++
	if f.due == 1 {
		f.since = now
	}
	return future, nil
}

// oldest returns the future whose result comes next, or an error if it is not the plan's.
func (f *flights) oldest(plan uint64) (*Future, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.due == 0 {
		return nil, fmt.Errorf("result of step %d while none is in flight", plan)
	}
	future := &f.ring[(f.next-f.due+len(f.ring))%len(f.ring)]
	if future.plan != plan {
		return nil, fmt.Errorf("result of step %d while step %d is in flight", plan, future.plan)
	}
	return future, nil
}

// answered records that the oldest future got its result at now.
func (f *flights) answered(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.due--
	if f.due > 0 {
		f.since = now
	}
}

// waited records that a future has been waited for.
func (f *flights) waited() {
	f.mu.Lock()
	f.held--
	f.mu.Unlock()
}

// dueSince returns since when the ranks have owed the result of the oldest plan in flight; false
// means that they owe none.
func (f *flights) dueSince() (time.Time, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.since, f.due > 0
}

// Execute sends the plan to all ranks. Up to Options.MaxInFlight plans may be in flight: the
// futures of older ones must have been waited for. The plan may be reused as soon as Execute
// returns. Execute is for one goroutine.
func (e *Executor) Execute(p *step.Plan) (*Future, error) {
	now := time.Now()
	future, err := e.flights.open(p.ID, now)
	if err != nil {
		return nil, err
	}
	e.out = step.AppendPlan(append(e.out[:0], byte(queue.KindPlan)), p)
	e.sent.Store(p.ID)
	until := now.Add(e.opt.StepTimeout)
	if err = e.acquireSend(context.Background(), until); err == nil {
		err = e.hub.Send(e.out, until)
		<-e.sending
	}
	if err != nil {
		return nil, e.sendFailed(err)
	}
	return future, nil
}

// Wait returns the result, or the failure of the group. Futures are waited for once each, in the
// order of their plans. The result is valid until the next Execute.
func (f *Future) Wait() (*step.Result, error) {
	e := f.e
	since, _ := e.flights.dueSince()
	for {
		err := e.await(context.Background(), f.done, since.Add(e.opt.StepTimeout))
		if errors.Is(err, queue.ErrTimeout) {
			// The time is that of the oldest plan, which may be another one by now, and ranks that
			// move are slow, not lost.
			now, due := e.flights.dueSince()
			if now = later(now, e.stall.moved()); due && now.After(since) {
				since = now
				continue
			}
			e.overdue(verdict.Overdue{Rank: -1, Step: f.plan,
				Cause: fmt.Sprintf("no result after %v in which no rank has moved",
					e.opt.StepTimeout)})
			<-e.life.dead
			err = e.Err()
		}
		if err != nil {
			return nil, err
		}
		e.flights.waited()
		return &f.result, nil
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// handleResult decodes a result into the future of its plan. It rejects a result that is not due
// before it decodes it.
func (e *Executor) handleResult(rank int, body []byte) error {
	plan, err := step.ResultPlan(body)
	if err != nil {
		return err
	}
	if output := e.opt.Init.Layout.Output(); rank != output {
		return fmt.Errorf("result of step %d, which rank %d owes", plan, output)
	}
	future, err := e.flights.oldest(plan)
	if err != nil {
		return err
	}
	future.arrived = time.Now()
	if err := step.DecodeResult(body, &future.result); err != nil {
		return err
	}
	e.flights.answered(future.arrived)
	future.done <- struct{}{}
	return nil
}
