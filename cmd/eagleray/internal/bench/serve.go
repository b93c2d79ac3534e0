package bench

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// ServeOptions describe one run against a server.
type ServeOptions struct {
	Target  Target
	Samples []Sample
	Arrival Arrival
	// MaxConcurrency bounds the requests under way; 0 is no bound.
	MaxConcurrency int
	// ReadyWithin is how long the server may take to answer a first request, which is not measured;
	// 0 sends none.
	ReadyWithin time.Duration
	// Waiting, when not nil, is called with why the server is not ready yet.
	Waiting func(took time.Duration, why error)
	// Warmups are requests sent and waited for before the measurement.
	Warmups int
	// RequestIDPrefix, when not empty, names each request in its X-Request-Id header.
	RequestIDPrefix string
	Goodput         Goodput
	// Percentiles are those computed of each metric.
	Percentiles []float64
	// Progress, when not nil, is called after each request with how many are done.
	Progress func(done, total int)
}

// Serve runs the benchmark. Single requests that fail are counted; an error means that nothing was
// measured.
func Serve(ctx context.Context, o ServeOptions) (*Result, error) {
	if len(o.Samples) == 0 {
		return nil, fmt.Errorf("there are no prompts")
	}
	times, err := o.Arrival.Times(len(o.Samples))
	if err != nil {
		return nil, err
	}
	if o.ReadyWithin > 0 {
		first := func(ctx context.Context) error {
			_, err := o.Target.do(ctx, o.Samples[0], "", time.Now())
			return err
		}
		if err := Wait(ctx, o.ReadyWithin, first, o.Waiting); err != nil {
			return nil, fmt.Errorf("first request: %w", err)
		}
	}
	if err := o.warmUp(ctx); err != nil {
		return nil, err
	}
	started := time.Now()
	outcomes, err := o.send(ctx, times, started)
	if err != nil {
		return nil, err
	}
	r := &Result{MaxConcurrency: o.MaxConcurrency, Arrival: o.Arrival,
		Duration: time.Since(started)}
	r.Compute(outcomes, o.Goodput, o.Percentiles)
	if r.Completed == 0 {
		return nil, fmt.Errorf("all %d requests failed: %s", r.Failed, r.Failures(1)[0])
	}
	return r, nil
}

// warmUp sends the first sample again and again, as vLLM does.
func (o *ServeOptions) warmUp(ctx context.Context) error {
	failures := make([]string, o.Warmups)
	o.inParallel(o.Warmups, func(int) bool { return true }, func(i int) {
		failures[i] = o.Target.Do(ctx, o.Samples[0], "", time.Now()).Err
	})
	for _, f := range failures {
		if f != "" {
			return fmt.Errorf("warm-up request: %s", f)
		}
	}
	return ctx.Err()
}

// send starts each request at its time and waits for all.
func (o *ServeOptions) send(ctx context.Context, times []time.Duration,
	started time.Time) ([]Outcome, error) {
	outcomes := make([]Outcome, len(o.Samples))
	var mu sync.Mutex
	done := 0
	o.inParallel(len(o.Samples), func(i int) bool {
		return sleepUntil(ctx, started.Add(times[i])) == nil
	}, func(i int) {
		id := ""
		if o.RequestIDPrefix != "" {
			id = fmt.Sprintf("%s%d", o.RequestIDPrefix, i)
		}
		outcomes[i] = o.Target.Do(ctx, o.Samples[i], id, started)
		mu.Lock()
		defer mu.Unlock()
		done++
		if o.Progress != nil {
			o.Progress(done, len(o.Samples))
		}
	})
	return outcomes, ctx.Err()
}

// inParallel calls do for 0 to n-1, each once wait has returned true, at most MaxConcurrency at a
// time. Requests that cannot start queue up without delaying the times of later ones.
func (o *ServeOptions) inParallel(n int, wait func(i int) bool, do func(i int)) {
	var slots chan struct{}
	if o.MaxConcurrency > 0 {
		slots = make(chan struct{}, o.MaxConcurrency)
	}
	var wg sync.WaitGroup
	for i := range n {
		if !wait(i) {
			break
		}
		wg.Go(func() {
			if slots != nil {
				slots <- struct{}{}
				defer func() { <-slots }()
			}
			do(i)
		})
	}
	wg.Wait()
}

func sleepUntil(ctx context.Context, at time.Time) error {
	wait := time.Until(at)
	if wait <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
