package engine_test

import (
	"fmt"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// byPlace is the value of a series by the place that its label engine says.
func byPlace(t *testing.T, m *metrics.Metrics, name string) map[string]float64 {
	t.Helper()
	rec, found := httptest.NewRecorder(), map[string]float64{}
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(rec.Body.String()) {
		rest, ok := strings.CutPrefix(line, "eagleray:"+name+`{engine="`)
		if !ok {
			continue
		}
		place, _, _ := strings.Cut(rest, `"`)
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		if err != nil {
			t.Fatal(err)
		}
		found[place] += v
	}
	return found
}

// TestSeriesOfPlaces counts by places what requests got there, which is the whole together, also
// after their number has changed.
func TestSeriesOfPlaces(t *testing.T) {
	e, m := openMeasured(t, func(c *config.Config) {
		c.Model.Path, c.Model.SkipTokenizerInit = "../../testdata/models/qwen3moe-tiny", true
		p := &c.Parallel
		p.CPUThreads, p.DataParallelSize, p.ExpertParallel = 1, 2, true
	})
	asked, restarts := 0, 0
	ask := func() {
		t.Helper()
		var streams []func()
		for range 6 {
			q := seeded(e, uint64(asked))
			asked++
			s, err := e.Submit(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			streams = append(streams, func() { collect(t, s, func(int) {}) })
		}
		for _, wait := range streams {
			wait()
		}
	}
	places := func(n int) {
		t.Helper()
		total, want := e.Totals(), uint64(12*asked)
		for begun := time.Now(); total.OutputTokens != want; total = e.Totals() {
			if time.Since(begun) > time.Minute { // a step is counted after its tokens came
				t.Fatalf("%d tokens in all, want %d", total.OutputTokens, want)
			}
		}
		if len(total.Queues) != n {
			t.Errorf("%d queues of %d places", len(total.Queues), n)
		}
		for name, want := range map[string]float64{"generation_tokens_total": 12 * 6,
			"time_to_first_token_seconds_count": 6, "request_success_total": 6,
			"request_params_n_count": 6} {
			got, sum := byPlace(t, m, name), 0.0
			for i := range n {
				v := got[fmt.Sprint(i)]
				if sum += v; v == 0 {
					t.Errorf("place %d has no %s: %v", i, name, got)
				}
			}
			if len(got) != n || n == 2 && sum != want {
				t.Errorf("%s: %v of %d places, want %v", name, got, n, want)
			}
		}
		for _, name := range []string{"num_requests_running", "kv_cache_usage_perc"} {
			if got := byPlace(t, m, name); len(got) != n {
				t.Errorf("%s: %v of %d places", name, got, n)
			}
		}
		for name, want := range map[string]float64{"ranks_wanted": 1, "ranks_serving": 1,
			"worker_restarts_total": float64(min(restarts, 1))} {
			got := byPlace(t, m, name)
			for place, v := range got {
				if place != "0" && v != want || v < want {
					t.Errorf("%s: %v of %d places, want %v", name, got, n, want)
				}
			}
			if len(got) != n {
				t.Errorf("%s: %v of %d places", name, got, n)
			}
		}
	}
	ask()
	places(2)
	for _, n := range []int{1, 3} {
		if err := e.Relayout(t.Context(), open.Sizes{Places: n}); err != nil {
			t.Fatal(err)
		}
		restarts++
		ask()
		places(n)
	}
}
