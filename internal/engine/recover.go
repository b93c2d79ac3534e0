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
func (l *Loop) recover(cause error) error {
	begun := time.Now()
	if !errors.Is(cause, errAdopted) {
		l.condemn(cause)
	}
	failure, cached := cause, l.cached // the failure of the group says what ranks live
	before := l.launching.Spec
	l.lack.stopSearch()
	l.showRanks(0)
	for {
		if l.e.ranks.Life.Err() != nil {
			return cause
		}
		delay, err := l.restarts.next(time.Now(), l.counted.steps, cause)
		if err != nil {
			return err
		}
		l.e.health.recover(cause)
		epoch := l.e.ranks.Failed(cause)
		l.e.events.Emit(status.GroupRestarting{Epoch: epoch, Restart: len(l.restarts.made),
			Allowed: l.restarts.policy.MaxRestarts, Delay: delay, Requests: len(l.requests)})
		select {
		case <-time.After(delay):
		case <-l.e.ranks.Life.Done():
			return cause
		}
		if cause = l.replace(failure); cause == nil {
			break
		}
		if !errors.As(cause, new(groups.FilesError)) {
			failure = cause
		}
	}
	l.flights = l.flights[:0]
	remembered := l.group.HasComputed(l.sched.Applied()) && l.cached == cached
	l.shrunk(before)
	if err := l.regroup(remembered); err != nil {
		return err
	}
	l.recovered(status.GroupRecovered{Reused: l.group.Reused(), CacheKept: remembered,
		Took: time.Since(begun)})
	return nil
}

// recovered says that a group has taken the place of another one, for each of its places.
func (l *Loop) recovered(e status.GroupRecovered) {
	for _, m := range l.series {
		m.Restarted()
	}
	e.Epoch, e.Requests = l.e.ranks.Newest(), len(l.requests)
	l.e.events.Emit(e)
}

// ready starts the next group of ranks in the place of one that ended for a cause, nil for none,
// and returns when it can be sent plans.
func (l *Loop) ready(cause error) error {
	group, err := l.e.ranks.Start(l.e.ranks.Life, cause)
	if err != nil {
		return err
	}
	l.group = group
	return l.equip()
}

// equip brings the ranks of the group, which have just started or are to change, to what is wanted
// of all engines, the revision of the model's files, and the exchange of KV blocks. On an error the
// group cannot go on.
func (l *Loop) equip() error {
	if err := l.e.wanted.Equip(l.group); err != nil {
		return err
	}
	if err := l.placeExperts(); err != nil {
		return err
	}
	l.cached = l.e.wanted.Update()
	l.adopt()
	l.show()
	return l.openExchange()
}

// openExchange has the ranks exchange and store KV blocks, unless the cache sleeps.
func (l *Loop) openExchange() error {
	x, t := l.e.exchange, l.e.offload
	switch {
	case x == nil && t == nil:
		return nil
	case l.e.wanted.CacheSleeps():
		x.Close()
		t.Close()
		return nil
	}
	model, files := l.launching.WeightsName()
	computes := model + ", weights " + files
	if update := l.e.wanted.UpdateName(); update != "" {
		computes = model + ", update " + update
	}
	g := l.launching.Caching(l.group, computes)
	if x != nil {
		return x.Open(g)
	}
	return t.Open(g)
}

// condemn finds out whether a request makes the ranks fail, and fails it alone if so. A failure
// that no request can have caused says nothing of any.
func (l *Loop) condemn(cause error) {
	var f *executor.Failure
	if errors.As(cause, &f) && f.Unrelated {
		return
	}
	l.computed = l.sched.Computed(l.computed[:0])
	killed := f != nil && !f.Reported
	key, found := l.suspects.failed(l.computed, killed)
	if !found {
		return
	}
	b := l.e.delivery.empty()
	b.how, b.err = sample.FinishError, fmt.Errorf("%w: %w", ErrCondemned, cause)
	b.ended = append(b.ended, l.requests[key])
	l.remove(key)
	l.e.delivery.batches <- b
	l.e.events.Emit(status.RequestCondemned{Request: key, Cause: cause.Error()})
}

// further takes note that a request got a token, or ended: it is no suspect any more.
func (l *Loop) further(key uint64) {
	if len(l.suspects.last) > 0 && l.suspects.further(key) {
		l.sched.Suspend(l.suspects.held)
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
	if r.policy.OnFailure == "exit" {
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
