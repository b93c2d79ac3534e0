package engine_test

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// finishes reads request_success_total by its label finished_reason.
func finishes(t *testing.T, m *metrics.Metrics) map[string]int {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	counts := map[string]int{}
	for line := range strings.Lines(rec.Body.String()) {
		rest, ok := strings.CutPrefix(line,
			`eagleray:request_success_total{engine="0",finished_reason="`)
		if !ok {
			continue
		}
		reason, _, _ := strings.Cut(rest, `"`)
		n := 0
		if _, err := fmt.Sscan(rest[strings.LastIndexByte(rest, ' '):], &n); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		counts[reason] = n
	}
	return counts
}

// TestFailedRequestsAreCounted kills a rank while two requests run and three wait: five end by
// error, and none that come later is counted.
func TestFailedRequestsAreCounted(t *testing.T) {
	e, m := openMeasured(t, func(c *config.Config) {
		c.Parallel.TensorParallelSize, c.Schedule.MaxNumSeqs = 2, 2
		c.Recovery.OnFailure = "exit"
	})
	mustAsk(t, e, greedy(e, question, 100))
	mustAsk(t, e, greedy(e, question, 2))
	const open = 5
	var streams [open]engine.Stream
	for i := range streams {
		r := greedy(e, question, 2000)
		r.Params.IgnoreEOS, r.Params.StopTokens = true, nil
		var err error
		if streams[i], err = e.Submit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		defer streams[i].Close()
	}
	if _, err := streams[0].Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	rank, err := os.FindProcess(e.Info().Ranks[1].PID)
	if err != nil {
		t.Fatal(err)
	}
	if err := rank.Kill(); err != nil {
		t.Fatal(err)
	}
	for i, s := range streams {
		var err error
		for err == nil {
			_, err = s.Next(t.Context())
		}
		if !errors.Is(err, engine.ErrFailed) {
			t.Errorf("request %d ended with %v", i, err)
		}
	}
	if _, err := e.Submit(t.Context(), greedy(e, question, 1)); !errors.Is(err, engine.ErrFailed) {
		t.Errorf("a later request ended with %v", err)
	}
	got := finishes(t, m)
	if want := map[string]int{"stop": 1, "length": 1, "abort": 0, "error": open,
		"repetition": 0}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("finished requests %v, want %v", got, want)
	}
}
