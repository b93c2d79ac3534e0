package engine_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

// TestBackground fills every slot and more with requests in the background: others are answered
// before the first of those is over, and have the queue to themselves. Those that made room have
// the tokens that they have alone.
func TestBackground(t *testing.T) {
	e := openEngine(t, func(c *config.Config) {
		c.Schedule.MaxNumSeqs, c.Schedule.MaxNumQueuedReqs = 4, 8
	})
	long := func() *engine.Request {
		r := greedy(e, question, 150)
		r.Params.IgnoreEOS, r.Params.StopTokens = true, nil
		r.Background = true
		return r
	}
	alone := mustAsk(t, e, long())
	var background sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer background.Wait()
	defer cancel()
	answers, ended := make(chan answer, 12), make(chan error, 12)
	for range 12 {
		background.Go(func() {
			a, err := ask(ctx, e, long())
			answers <- a
			ended <- err
		})
	}
	for e.Totals().Running < 4 || e.Totals().Waiting < 8 {
		if len(ended) > 0 {
			t.Fatalf("a request in the background is over: %v", <-ended)
		}
		time.Sleep(time.Millisecond)
	}
	before := e.Totals().Preemptions
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			if a, err := ask(t.Context(), e, greedy(e, question, 5)); err != nil ||
				len(a.tokens) != 5 {
				t.Errorf("%d tokens, %v", len(a.tokens), err)
			}
		})
	}
	others.Wait()
	if n := len(ended); n > 0 {
		t.Errorf("%d requests in the background were over first", n)
	}
	if n := e.Totals().Preemptions; n == before {
		t.Error("none made room")
	}
	for range 12 {
		if a := <-answers; !slices.Equal(a.tokens, alone.tokens) {
			t.Errorf("%d tokens, not those of one alone", len(a.tokens))
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
