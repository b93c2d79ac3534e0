package replicas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// Info describes the model that is served, with the ranks of all engines, engine by engine, as of
// now.
func (r *Router) Info() *open.Info { return r.info.Load() }

// Healthy tells whether a request would be served now: nil while one engine serves, else why none
// does.
func (r *Router) Healthy(ctx context.Context) error {
	all := r.Health(ctx)
	for _, err := range all {
		if err == nil || errors.Is(err, engine.ErrStopped) {
			return err // they stop together
		}
	}
	return r.together(all)
}

// Health says of every engine why it does not serve now, nil for those that do.
func (r *Router) Health(ctx context.Context) []error {
	members := r.list()
	list := make([]error, len(members))
	for i, e := range members {
		list[i] = e.Healthy(ctx)
	}
	return list
}

// together is one error of all engines, in one line. It is one of engine.ErrFailed only if all have
// failed.
func (r *Router) together(errs []error) (all error) {
	if len(errs) == 1 {
		return errs[0]
	}
	failed := true
	var text strings.Builder
	for i, err := range errs {
		failed = failed && errors.Is(err, engine.ErrFailed)
		if i > 0 {
			text.WriteString("; ")
		}
		fmt.Fprintf(&text, "engine %d: %v", r.Info().First+i, err)
	}
	if failed {
		return fmt.Errorf("%w: %s", engine.ErrFailed, text.String())
	}
	return errors.New(text.String())
}

// Failed is closed when every engine has failed; Healthy then says why.
func (r *Router) Failed() <-chan struct{} { return r.failed }

// Totals are the figures of all engines together.
func (r *Router) Totals() engine.Totals {
	var sum engine.Totals
	members := r.list()
	for _, e := range members {
		t := e.Totals()
		sum.PromptTokens += t.PromptTokens
		sum.OutputTokens += t.OutputTokens
		sum.Running += t.Running
		sum.Waiting += t.Waiting
		sum.Queues = append(sum.Queues, t.Queues...)
		sum.CacheUsage += t.CacheUsage / float64(len(members)) // the caches are of one size
		sum.BlocksUsed += t.BlocksUsed
		sum.PrefixQueries += t.PrefixQueries
		sum.ExternalHits += t.ExternalHits
		sum.PrefixHits += t.PrefixHits
		sum.DraftTokens += t.DraftTokens
		sum.AcceptedTokens += t.AcceptedTokens
		sum.Preemptions += t.Preemptions
		sum.Steps += t.Steps
		sum.StepTime += t.StepTime
	}
	return sum
}

// Report says of every rank of every engine what it is doing.
func (r *Router) Report() []executor.RankStatus {
	var list []executor.RankStatus
	for _, e := range r.list() {
		list = append(list, e.Report()...)
	}
	return list
}

// Links are the figures of the connections to ranks of other hosts.
func (r *Router) Links() []metrics.Link {
	var list []metrics.Link
	for _, e := range r.list() {
		list = append(list, e.Links()...)
	}
	return list
}

// ExpertLoads is the load of the experts of each engine, by number (see engine.Engine.ExpertLoad).
func (r *Router) ExpertLoads(ctx context.Context) ([][]engine.ExpertLoad, error) {
	members := r.Engines()
	list, errs := make([][]engine.ExpertLoad, len(members)), make([]error, len(members))
	var asking sync.WaitGroup
	for i, e := range members {
		asking.Go(func() { list[i], errs[i] = e.ExpertLoad(ctx) })
	}
	asking.Wait()
	return list, cmp.Or(errs...)
}

// ExpertLoad is the load of the experts of all engines together.
func (r *Router) ExpertLoad(ctx context.Context) ([]engine.ExpertLoad, error) {
	list, err := r.ExpertLoads(ctx)
	return engine.SumExpertLoads(list), err
}

// AwaitStored is engine.Engine.AwaitStored of all engines.
func (r *Router) AwaitStored(ctx context.Context) {
	for _, e := range r.list() {
		e.AwaitStored(ctx)
	}
}

// Stop stops all engines at the same time; see engine.Engine.Stop. A change of their number that is
// under way is given up.
func (r *Router) Stop(ctx context.Context) error {
	r.end()
	r.scaling.close()
	members := r.list()
	errs := make([]error, len(members))
	var stopping sync.WaitGroup
	for i, e := range members {
		stopping.Go(func() { errs[i] = e.Stop(ctx) })
	}
	stopping.Wait()
	r.watchers.Wait()
	return errors.Join(errs...)
}

// Cut is how many requests Stop ended before they were done.
func (r *Router) Cut() (cut int) {
	for _, e := range r.list() {
		cut += e.Cut()
	}
	return cut
}

// Engines are the engines behind the router that a trainer can steer.
func (r *Router) Engines() []*engine.Engine {
	var list []*engine.Engine
	for _, m := range r.list() {
		if e, ok := m.Engine.(*engine.Engine); ok {
			list = append(list, e)
		}
	}
	return list
}
