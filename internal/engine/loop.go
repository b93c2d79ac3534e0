package engine

import (
	"runtime"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/group/executor"
)

// flight is a plan that the ranks have been sent, until its result is applied.
type flight struct {
	future *executor.Future
	// began is when the loop turned to the plan, made when it had made it, sent when the ranks had
	// been sent it.
	began, made, sent time.Time
	plan              uint64
	// requests and tokens are those in the plan, prefill how many of the tokens are of prompts.
	requests, tokens, prefill int
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

// loop is the only goroutine that calls the scheduler. It ends after delivery, which it owns.
func (e *Engine) loop() {
	defer close(e.done)
	var delivery sync.WaitGroup
	delivery.Go(e.delivery)
	defer delivery.Wait()
	defer close(e.batches)
	if e.ownThread {
		// Waiting for ranks of other processes parks the thread in the kernel.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	run := e.normalLoop
	if e.maxInFlight > 1 {
		run = e.overlapLoop
	}
	err := run()
	for err != nil {
		if err = e.recover(err); err != nil {
			e.fail(err)
			return
		}
		err = run()
	}
}

// normalLoop has one plan in flight: each is made with all results known.
func (e *Engine) normalLoop() error {
	for e.admit() {
		if err := e.turnTo(); err != nil {
			return err
		}
		sent, err := e.send()
		switch {
		case err != nil:
		case sent:
			err = e.apply()
		default:
			err = e.idle()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// overlapLoop keeps up to maxInFlight plans in flight: the next one is made and sent while the
// ranks compute, and goes on from tokens that are not known yet.
func (e *Engine) overlapLoop() error {
	for e.admit() {
		if err := e.turnTo(); err != nil {
			return err
		}
		sent, err := e.send()
		switch {
		case err != nil:
		case sent && len(e.flights) < e.maxInFlight:
		case len(e.flights) > 0:
			err = e.apply()
		default:
			err = e.idle()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// send makes a plan and sends it to the ranks. It returns false when there is none to make before
// the next result, or before news from outside.
func (e *Engine) send() (bool, error) {
	if e.waits() {
		return false, nil
	}
	made := e.sched.Schedule(&e.plan)
	e.fetch()
	e.offer()
	if !made {
		return false, nil
	}
	f := flight{began: e.turned, made: time.Now(), plan: e.plan.ID, requests: len(e.plan.Rows)}
	f.tokens, f.prefill = e.plan.Tokens()
	var err error
	if f.future, err = e.group.Execute(&e.plan); err != nil {
		return false, err
	}
	f.sent = time.Now()
	e.flights = append(e.flights, f)
	e.health.busy()
	e.mu.Lock()
	e.totals.Running, e.totals.Waiting = e.sched.Running(), e.sched.Waiting()
	e.mu.Unlock()
	return true, nil
}

// apply waits for the result of the oldest plan in flight, and hands what it brought to delivery.
func (e *Engine) apply() error {
	f := e.flights[0]
	b := e.empty()
	result, err := f.future.Wait()
	if err != nil {
		e.used <- b
		return err
	}
	e.flights = e.flights[:copy(e.flights, e.flights[1:])]
	e.health.answered(len(e.flights) > 0)
	if err := e.sched.Check(result); err != nil {
		e.used <- b
		return err
	}
	b.outputs = e.sched.Update(result, b.outputs)
	now := time.Now()
	b.sent, b.applied = f.sent, now
	b.keep()
	sampled := len(b.tokens)
	for i := range b.outputs {
		o := &b.outputs[i]
		if o.HandOver != nil {
			e.handOver(o)
		}
		if o.Finish != sample.Unfinished {
			delete(e.requests, o.Key)
			e.transfers.withdraw(o.Key)
		}
		if len(o.Tokens) > 0 {
			e.further(o.Key)
		}
	}
	e.batches <- b
	// The ranks began with the plan when it was there, and they were done with the one before.
	began := f.sent
	if e.applied.After(began) {
		began = e.applied
	}
	e.applied = now
	e.observeStep(&f, sampled, now.Sub(began))
	if e.onStep != nil {
		e.onStep(StepTimes{Plan: f.plan, Requests: f.requests, Sampled: sampled, Began: f.began,
			Made: f.made, Sent: f.sent, Arrived: f.future.Arrived(), Applied: time.Now()})
	}
	return nil
}

// idle waits for news: requests, aborts, the end, or the failure of a rank that had nothing to do.
func (e *Engine) idle() error {
	e.observeQueues()
	e.health.answered(false)
	select {
	case <-e.inbox.wake:
		return nil
	case <-e.group.Dead():
		return e.group.Err()
	}
}
