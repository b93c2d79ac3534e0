package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/executor"
	"github.com/eagleray/eagleray/internal/metrics"
)

// Info describes the model that is served, with the ranks of all engines, engine by engine.
func (r *Router) Info() *engine.Info { return &r.info }

// Healthy tells whether a request would be served now: nil while one engine serves, else why none
// does.
func (r *Router) Healthy(ctx context.Context) error {
	errs := make([]error, len(r.engines))
	for i, e := range r.engines {
		if errs[i] = e.Healthy(ctx); errs[i] == nil {
			return nil
		}
	}
	for _, err := range errs {
		if !errors.Is(err, engine.ErrFailed) {
			return err // it stops, which is one answer for all
		}
	}
	return together(errs)
}

// together is one error of all failures, in one line.
func together(failures []error) (all error) {
	for i, err := range failures {
		switch {
		case len(failures) == 1:
			all = err
		case i == 0:
			all = fmt.Errorf("engine %d: %w", i, err)
		default:
			all = fmt.Errorf("%w; engine %d: %w", all, i, err)
		}
	}
	return all
}

// Failures says of every engine why it has failed, nil for those that have not.
func (r *Router) Failures() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]error, len(r.states))
	for i := range r.states {
		list[i] = r.states[i].failure
	}
	return list
}

// Failed is closed when every engine has failed; Healthy then says why.
func (r *Router) Failed() <-chan struct{} { return r.failed }

// Totals are the figures of all engines together.
func (r *Router) Totals() engine.Totals {
	var sum engine.Totals
	for _, e := range r.engines {
		t := e.Totals()
		sum.PromptTokens += t.PromptTokens
		sum.OutputTokens += t.OutputTokens
		sum.Running += t.Running
		sum.Waiting += t.Waiting
		sum.CacheUsage += t.CacheUsage / float64(len(r.engines)) // the caches are of one size
		sum.BlocksUsed += t.BlocksUsed
		sum.PrefixQueries += t.PrefixQueries
		sum.PrefixHits += t.PrefixHits
		sum.Preemptions += t.Preemptions
		sum.Steps += t.Steps
		sum.StepTime += t.StepTime
	}
	return sum
}

// Report says of every rank of every engine what it is doing.
func (r *Router) Report() []executor.RankStatus {
	var list []executor.RankStatus
	for _, e := range r.engines {
		list = append(list, e.Report()...)
	}
	return list
}

// Links are the figures of the connections to ranks of other hosts.
func (r *Router) Links() []metrics.Link {
	var list []metrics.Link
	for _, e := range r.engines {
		list = append(list, e.Links()...)
	}
	return list
}

// Stop stops all engines at the same time; see engine.Engine.Stop.
func (r *Router) Stop(ctx context.Context) error {
	r.stop.Do(func() { close(r.ended) })
	errs := make([]error, len(r.engines))
	var stopping sync.WaitGroup
	for i, e := range r.engines {
		stopping.Go(func() { errs[i] = e.Stop(ctx) })
	}
	stopping.Wait()
	r.watchers.Wait()
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return err == nil })...)
}

// Cut is how many requests Stop ended before they were done.
func (r *Router) Cut() (cut int) {
	for _, e := range r.engines {
		cut += e.Cut()
	}
	return cut
}
