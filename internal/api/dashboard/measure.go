package dashboard

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Measurement is what a page asks to be measured: random prompts, as `eagleray bench serve` sends
// them.
type Measurement struct {
	// Prompts is how many requests are sent, Concurrency how many are under way at a time; InputLen
	// and OutputLen are tokens of each.
	Prompts, Concurrency, InputLen, OutputLen int
	// Header is what the page's request has its API key in: those that are measured have the same.
	Header http.Header
}

// Bounds of a Measurement; its lengths end with the model's.
const (
	MaxMeasuredPrompts     = 10_000
	MaxMeasuredConcurrency = 1024
)

// Measure measures this server and returns the figures that `bench serve` saves. It calls progress
// after each request, and ends with the context.
type Measure func(ctx context.Context, m Measurement, progress func(done int)) (map[string]any,
	error)

// ErrMeasuring says that another page measures: each would disturb the other.
var ErrMeasuring = errors.New("a measurement is under way: one runs at a time")

// MeasurePath answers with the server-sent events of Measure.
const MeasurePath = Prefix + "measure"

// Measures says whether the page can measure.
func (p *Page) Measures() bool { return p.opt.Measure != nil }

// Measure sends "progress" with how many of how many requests are done, and at the end "result"
// with the figures, or "error" with why there are none. It ends with the viewer and with the page.
func (p *Page) Measure(w http.ResponseWriter, r *http.Request, m Measurement) error {
	if !p.measuring.CompareAndSwap(false, true) {
		return ErrMeasuring
	}
	defer p.measuring.Store(false)
	ctx, cancel := context.WithCancel(r.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	var done atomic.Int64
	var figures map[string]any
	var failure error
	ended := make(chan struct{})
	running.Go(func() {
		defer close(ended)
		figures, failure = p.opt.Measure(ctx, m, func(n int) { done.Store(int64(n)) })
	})
	s := beginStream(w)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := s.send("progress", map[string]int64{"done": done.Load(), "total": int64(m.Prompts)})
		if err != nil {
			return nil // the viewer has gone
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		case <-p.closed:
			return nil
		case <-ended:
			if failure != nil {
				_ = s.send("error", map[string]string{"message": failure.Error()})
				return nil
			}
			_ = s.send("result", figures)
			return nil
		}
	}
}
