package engine

import (
	"runtime"
	"time"

	"github.com/eagleray/eagleray/internal/executor"
)

// flight is a plan that the ranks have been sent, until its result is applied.
type flight struct {
	future *executor.Future
	sent   time.Time
	plan   uint64
	// requests and tokens are those in the plan, prefill how many of the tokens are of prompts.
	requests, tokens, prefill int
}

// loop is the only goroutine that calls the scheduler.
func (e *Engine) loop() {
	defer close(e.done)
	if e.ownThread {
		// Waiting for ranks of other processes parks the thread in the kernel.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	run := e.normalLoop
	if e.maxInFlight > 1 {
		run = e.overlapLoop
	}
	if err := run(); err != nil {
		e.fail(err)
	}
}

// normalLoop has one plan in flight: each is made with all results known.
func (e *Engine) normalLoop() error {
	for e.admit() {
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
	if !e.sched.Schedule(&e.plan) {
		return false, nil
	}
	f := flight{sent: time.Now(), plan: e.plan.ID, requests: len(e.plan.Rows)}
	f.tokens, f.prefill = e.plan.Tokens()
	var err error
	if f.future, err = e.group.Execute(&e.plan); err != nil {
		return false, err
	}
	e.flights = append(e.flights, f)
	e.mu.Lock()
	e.totals.Running, e.totals.Waiting = e.sched.Running(), e.sched.Waiting()
	e.mu.Unlock()
	return true, nil
}

// apply waits for the result of the oldest plan in flight, and delivers it.
func (e *Engine) apply() error {
	f := e.flights[0]
	result, err := f.future.Wait()
	if err != nil {
		return err
	}
	e.flights = e.flights[:copy(e.flights, e.flights[1:])]
	if err := e.sched.Check(result); err != nil {
		return err
	}
	e.outputs = e.sched.Update(result, e.outputs[:0])
	now := time.Now()
	sampled := 0
	for i := range e.outputs {
		sampled += len(e.outputs[i].Tokens)
		e.deliver(&e.outputs[i], f.sent, now)
	}
	// The ranks began with the plan when it was there, and they were done with the one before.
	began := f.sent
	if e.applied.After(began) {
		began = e.applied
	}
	e.applied = now
	e.observeStep(&f, sampled, now.Sub(began))
	return nil
}

// idle waits for news: requests, aborts, the end, or the failure of a rank that had nothing to do.
func (e *Engine) idle() error {
	e.observeQueues()
	select {
	case <-e.wake:
		return nil
	case <-e.group.Dead():
		return e.group.Err()
	}
}
