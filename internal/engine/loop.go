package engine

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/handover"
	"github.com/eagleray/eagleray/internal/engine/offload"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/rank/weights"
)

// flight is a plan that the ranks have been sent, until its result is applied.
type flight struct {
	future *executor.Future
	// began is when the loop turned to the plan, made when it had made it, sent when the ranks had
	// been sent it.
	began, made, sent time.Time
	plan              uint64
	// requests and tokens are those in the plan.
	requests, tokens int
}

// StepTimes are the times of a plan in the step loop, and what it was for.
type StepTimes struct {
	Plan uint64
	// Requests is how many it computed, Sampled how many tokens it brought.
	Requests, Sampled int
	// Began is when the loop turned to it, Made when the plan was made, Sent when its record was in
	// the queue to the ranks, Arrived when the record of its result was there, and Applied when the
	// scheduler knew of it and what it brought had been handed to delivery.
	Began, Made, Sent, Arrived, Applied time.Time
}

// Host is how long the step kept the loop busy: what the loop waits for is not in it.
func (t *StepTimes) Host() time.Duration {
	return t.Sent.Sub(t.Began) + t.Applied.Sub(t.Arrived)
}

// newPlaces makes the scheduler of a group of ranks.
func newPlaces(b *groups.Launch) (*schedule.Places, error) {
	return schedule.NewPlaces(b.Scheduling(), max(1, b.Places()))
}

// Loop is the step loop of an engine: the only goroutine that calls the scheduler. A Task gets it
// between two steps.
type Loop struct {
	e     *Engine
	sched *schedule.Places
	// launching is what the ranks are started by.
	launching *groups.Launch
	group     *executor.Executor
	// onStep is notified of every step that was applied; nil is not called.
	onStep func(StepTimes)
	// slowStep is how long a step may take before it is called slow.
	slowStep time.Duration
	// maxInFlight is how many plans may be in flight.
	maxInFlight int
	// ownThread says that the loop waits for other processes, and does so on a thread of its own.
	ownThread bool

	requests map[uint64]*request // those that the scheduler has
	parked   []*request          // in requests, and held by a pause before the scheduler has them
	plan     step.Plan
	flights  []flight  // sent and not applied, oldest first
	applied  time.Time // when the last result was applied
	turned   time.Time // when the loop last looked into the inbox
	restarts restarts
	lack     lack
	suspects suspects
	tasks    []*task         // that have come and are not done
	cached   *weights.Update // by which the prefix cache was computed
	revision int64           // that of the model's files which the group has loaded
	aborted  []uint64        // memory of admit
	computed []uint64        // by the plans in flight when a group failed
	counted  counted
	// series are the metrics of each place, which placeSeries makes.
	series      []*metrics.Engine
	placeSeries placeSeries
}

// placeSeries makes the metrics of places, and removes them.
type placeSeries struct {
	open   func(place int) *metrics.Engine
	remove func(place int)
}

// run runs the loop until the engine ends. It ends after delivery, which it owns.
func (l *Loop) run() {
	defer close(l.e.done)
	var delivery sync.WaitGroup
	delivery.Go(l.e.delivery.run)
	defer delivery.Wait()
	defer close(l.e.delivery.batches)
	defer l.lack.stopSearch()
	if l.launching.Config.Parallel.EPLB.Enabled {
		var balancing sync.WaitGroup
		ctx, end := context.WithCancel(context.Background())
		balancing.Go(func() { l.e.balance(ctx) })
		defer balancing.Wait()
		defer end()
	}
	if l.ownThread {
		// Waiting for ranks of other processes parks the thread in the kernel.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	steps := l.normalLoop
	if l.maxInFlight > 1 {
		steps = l.overlapLoop
	}
	err := steps()
	for err != nil {
		if err = l.recover(err); err != nil {
			l.fail(err)
			return
		}
		err = steps()
	}
	l.e.offload.Flush()
}

// normalLoop has one plan in flight: each is made with all results known.
func (l *Loop) normalLoop() error {
	for l.admit() {
		if err := l.doTasks(); err != nil {
			return err
		}
		sent, err := l.send()
		switch {
		case err != nil:
		case sent:
			err = l.apply()
		default:
			err = l.idle()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// overlapLoop keeps up to maxInFlight plans in flight: the next one is made and sent while the
// ranks compute, and goes on from tokens that are not known yet.
func (l *Loop) overlapLoop() error {
	for l.admit() {
		if err := l.doTasks(); err != nil {
			return err
		}
		sent, err := l.send()
		switch {
		case err != nil:
		case sent && len(l.flights) < l.maxInFlight:
		case len(l.flights) > 0:
			err = l.apply()
		default:
			err = l.idle()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// send makes a plan and sends it to the ranks. It returns false when there is none to make before
// the next result, or before news from outside.
func (l *Loop) send() (bool, error) {
	if l.waits() {
		return false, nil
	}
	l.e.offload.Store()
	made := l.sched.Schedule(&l.plan)
	l.e.exchange.Planned()
	l.e.offload.Load()
	if !made {
		return false, nil
	}
	f := flight{began: l.turned, made: time.Now(), plan: l.plan.ID, requests: len(l.plan.Rows)}
	f.tokens = l.plan.Tokens()
	var err error
	if f.future, err = l.group.Execute(&l.plan); err != nil {
		return false, err
	}
	f.sent = time.Now()
	l.flights = append(l.flights, f)
	l.e.health.busy()
	l.e.mu.Lock()
	l.e.totals.Running, l.e.totals.Waiting = l.sched.Running(), l.sched.Waiting()
	l.e.mu.Unlock()
	return true, nil
}

// apply waits for the result of the oldest plan in flight, and hands what it brought to delivery.
func (l *Loop) apply() error {
	f := l.flights[0]
	b := l.e.delivery.empty()
	result, err := f.future.Wait()
	if err != nil {
		l.e.delivery.used <- b
		return err
	}
	l.flights = l.flights[:copy(l.flights, l.flights[1:])]
	l.e.health.answered(len(l.flights) > 0)
	if err := l.sched.Check(result); err != nil {
		l.e.delivery.used <- b
		return err
	}
	b.outputs = l.sched.Update(result, b.outputs)
	now := time.Now()
	b.made, b.applied = f.made, now
	b.copyOut()
	sampled := len(b.tokens)
	for i := range b.outputs {
		o := &b.outputs[i]
		if o.HandOver != nil {
			o.Owner.(*request).published = l.e.exchange.Publish(o.Key, o.HandOver)
		}
		if o.Finish != sample.Unfinished {
			delete(l.requests, o.Key)
			l.e.exchange.End(o.Key)
		}
		if len(o.Tokens) > 0 {
			l.further(o.Key)
		}
	}
	l.e.delivery.batches <- b
	// The ranks began with the plan when it was there, and they were done with the one before.
	began := f.sent
	if l.applied.After(began) {
		began = l.applied
	}
	l.applied = now
	l.observeStep(&f, now.Sub(began))
	if l.onStep != nil {
		l.onStep(StepTimes{Plan: f.plan, Requests: f.requests, Sampled: sampled, Began: f.began,
			Made: f.made, Sent: f.sent, Arrived: f.future.Arrived(), Applied: time.Now()})
	}
	return nil
}

// idle waits for news: requests, aborts, the end, or the failure of a rank that had nothing to do.
func (l *Loop) idle() error {
	l.observeQueues()
	l.e.health.answered(false)
	select {
	case <-l.e.inbox.wake:
		return nil
	case <-l.group.Dead():
		return l.group.Err()
	}
}

// fail ends every request with the cause. The engine serves nothing afterwards.
func (l *Loop) fail(cause error) {
	l.e.mu.Lock()
	stopping := l.e.stopping
	err, how := fmt.Errorf("%w: %w", ErrFailed, cause), sample.FinishError
	if stopping {
		err, how = ErrStopped, sample.FinishAbort
	}
	l.e.failure = err
	if !stopping {
		close(l.e.failed)
	}
	messages := l.e.inbox.popAll()
	l.e.setQueued(0)
	l.e.mu.Unlock()
	if !stopping {
		for _, m := range l.series {
			m.SetDown()
		}
		l.e.ranks.Failed(cause)
	}
	b := l.e.delivery.empty()
	b.how, b.err, b.drained = how, err, stopping
	for _, m := range messages {
		switch m := m.(type) {
		case submitted:
			b.ended = append(b.ended, m...)
		case handover.Message:
			l.e.exchange.Handle(m)
		case offload.Message:
			l.e.offload.Handle(m)
		}
	}
	for _, q := range l.requests {
		b.ended = append(b.ended, q)
	}
	l.e.delivery.batches <- b
}
