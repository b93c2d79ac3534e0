package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// recover puts a new group of ranks in the place of one that failed. All requests are held
// meanwhile, and then go on as preempted ones do: from their prompt and the tokens so far, to the
// very tokens that they would have had. It returns the cause, or what went wrong after it, when the
// engine must end.
func (e *Engine) recover(cause error) error {
	begun := time.Now()
	if !errors.Is(cause, errAdopted) {
		e.condemn(cause)
	}
	failure, cached := cause, e.cached // the failure of the group says what ranks live
	for {
		if e.ranks.Life.Err() != nil {
			return cause
		}
		delay, err := e.restarts.next(time.Now(), e.steps, cause)
		if err != nil {
			return err
		}
		e.health.recover(cause)
		epoch := e.ranks.Failed(cause)
		e.events.Emit(status.GroupRestarting{Epoch: epoch, Restart: len(e.restarts.made),
			Allowed: e.restarts.policy.MaxRestarts, Delay: delay, Requests: len(e.requests)})
		select {
		case <-time.After(delay):
		case <-e.ranks.Life.Done():
			return cause
		}
		if cause = e.ready(failure); cause == nil {
			break
		}
		if !errors.As(cause, new(groups.FilesError)) {
			failure = cause
		}
	}
	e.flights = e.flights[:0]
	remembered := e.group.HasComputed(e.sched.Applied()) && e.cached == cached
	e.sched.PreemptAll(remembered)
	e.sched.Hold(e.suspects.held)
	e.events.Emit(status.GroupRecovered{Epoch: e.ranks.Newest(), Requests: len(e.requests),
		Reused: e.group.Reused(), CacheKept: remembered, Took: time.Since(begun)})
	return nil
}

// ready starts the next group of ranks in the place of one that ended for a cause, nil for none,
// and returns when it can be sent plans.
func (e *Engine) ready(cause error) error {
	group, err := e.ranks.Start(e.ranks.Life, cause)
	if err != nil {
		return err
	}
	e.group = group
	return e.equip()
}

// equip brings the ranks of the group, which have just started or are to change, to what was asked
// of those before: what sleeps, the weights of a trainer, the revision of the model's files, and
// the exchange of KV blocks. On an error the group cannot go on.
func (e *Engine) equip() error {
	if err := catchUp(e.group, e.steering); err != nil {
		return err
	}
	e.cached = e.steering.weights.Load()
	e.adopt()
	e.show()
	return e.openTransfers()
}

// condemn finds out whether a request makes the ranks fail, and fails it alone if so. A failure
// that no request can have caused says nothing of any.
func (e *Engine) condemn(cause error) {
	var f *executor.Failure
	if errors.As(cause, &f) && f.Unrelated {
		return
	}
	e.computed = e.sched.Computed(e.computed[:0])
	killed := f != nil && !f.Reported
	key, found := e.suspects.failed(e.computed, killed)
	if !found {
		return
	}
	b := e.empty()
	b.how, b.err = sample.FinishError, fmt.Errorf("%w: %w", ErrCondemned, cause)
	b.ended = append(b.ended, e.requests[key])
	e.sched.Abort(key)
	delete(e.requests, key)
	e.batches <- b
	e.events.Emit(status.RequestCondemned{Request: key, Cause: cause.Error()})
}

// further takes note that a request got a token, or ended: it is no suspect any more.
func (e *Engine) further(key uint64) {
	if len(e.suspects.last) > 0 && e.suspects.further(key) {
		e.sched.Hold(e.suspects.held)
	}
}

// restarts counts the groups that were started in the place of others.
type restarts struct {
	policy config.Recovery
	// made are the times of those within the window, causes why.
	made   []time.Time
	causes []string
	// steps is how many steps had been finished at the last one, futile how many have followed each
	// other without one between.
	steps  uint64
	futile int
}

// A group that takes the place of one that has finished a step is started at once. After others the
// engine waits, ever longer.
const (
	firstDelay = 100 * time.Millisecond
	maxDelay   = 10 * time.Second
)

// next counts a restart for a cause, after so many finished steps, and returns how long it must
// wait, or why there is none: the causes of all within the window.
func (r *restarts) next(now time.Time, steps uint64, cause error) (time.Duration, error) {
	if r.policy.OnFailure != "restart" {
		return 0, cause
	}
	old := 0
	for old < len(r.made) && now.Sub(r.made[old]) > r.policy.Window {
		old++
	}
	r.made, r.causes = slices.Delete(r.made, 0, old), slices.Delete(r.causes, 0, old)
	if len(r.made) >= r.policy.MaxRestarts {
		if r.policy.MaxRestarts == 0 {
			return 0, cause
		}
		return 0, fmt.Errorf("%w (after --max-restarts %d within %v: %s)", cause,
			r.policy.MaxRestarts, r.policy.Window, strings.Join(r.causes, "; "))
	}
	r.made, r.causes = append(r.made, now), append(r.causes, cause.Error())
	if steps != r.steps {
		r.steps, r.futile = steps, 0
		return 0, nil
	}
	delay := min(maxDelay, firstDelay<<min(r.futile, 10))
	r.futile++
	return delay, nil
}
