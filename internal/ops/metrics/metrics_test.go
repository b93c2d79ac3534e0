package metrics

import (
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/status"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files in testdata")

// exercised returns a Metrics on which everything has been called once.
func exercised() *Metrics {
	m := New(Options{ModelName: "tiny", MaxModelLen: 2048})
	m.Engine(0).SetQueues(3, 5, 0.25)
	m.Engine(0).Iteration(100, 7)
	m.Engine(0).FirstToken(30 * time.Millisecond)
	m.Engine(0).NextToken(12 * time.Millisecond)
	m.Engine(0).PrefixCache(100, 64)
	m.Engine(0).Preempted(2)
	m.Engine(0).ObserveRequest(Request{Finish: sample.FinishLength, E2E: 3 * time.Second,
		Queue: time.Second, Inference: 2 * time.Second,
		Prefill: time.Second, Decode: time.Second, PromptTokens: 100, OutputTokens: 11})
	m.Engine(0).ObserveParams(2, 64)
	m.Engine(0).Listen(status.GrammarCompiled{Took: 3 * time.Millisecond})
	m.Engine(0).Listen(status.GrammarCompiled{Cached: true, Took: time.Millisecond})
	m.Engine(0).Deferred(2)
	m.Engine(0).SetDrafts(2)
	m.Engine(0).Drafted(5, 12, []uint64{4, 3, 0})
	m.Rejected("queue_full")
	m.Engine(0).SetCacheConfig(CacheConfig{BlockSize: 16, Blocks: 1000, PrefixCaching: true,
		Dtype: "bfloat16"})
	m.Expect("/v1/completions", "POST")
	m.HTTP("/v1/completions", "POST", 200, time.Second)
	m.Engine(0).WatchLinks(func() []Link {
		return []Link{{Rank: 5, RTT: time.Millisecond, SentBytes: 10, ReceivedBytes: 20,
			Resumes: 1}}
	})
	m.Engine(0).WatchGPUs(func() []GPU { return []GPU{measured(5)} })
	m.Engine(0).WatchExperts(func() []Experts { return []Experts{{Layer: 3, Rows: 8}} })
	return m
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("scrape answered %d", rec.Code)
	}
	return rec.Body.String()
}

// TestNames holds the API: kinds, names, labels and buckets of everything that is ours.
func TestNames(t *testing.T) {
	var lines []string
	for line := range strings.Lines(scrape(t, exercised())) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "# HELP"):
		case strings.Contains(line, "eagleray:"), strings.Contains(line, "http_request"):
			if !strings.HasPrefix(line, "#") {
				line = line[:strings.LastIndexByte(line, ' ')]
			}
			lines = append(lines, line)
		}
	}
	got := strings.Join(lines, "\n") + "\n"
	const golden = "testdata/names.txt"
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the exposed names differ from %s; if that is meant, run with -rewrite.\ngot:\n%s",
			golden, got)
	}
}

func TestValues(t *testing.T) {
	text := scrape(t, exercised())
	const l = `{engine="0",model_name="tiny"}`
	for _, want := range []string{
		"eagleray:spec_decode_num_drafts_total" + l + " 5",
		"eagleray:spec_decode_num_draft_tokens_total" + l + " 12",
		"eagleray:spec_decode_num_accepted_tokens_total" + l + " 7",
		"eagleray:num_requests_running" + l + " 3",
		"eagleray:num_requests_waiting" + l + " 5",
		"eagleray:kv_cache_usage_perc" + l + " 0.25",
		"eagleray:prompt_tokens_total" + l + " 100",
		"eagleray:generation_tokens_total" + l + " 7",
		"eagleray:iteration_tokens_total_sum" + l + " 107",
		"eagleray:num_preemptions_total" + l + " 2",
		"eagleray:prefix_cache_queries_total" + l + " 100",
		"eagleray:prefix_cache_hits_total" + l + " 64",
		`eagleray:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 1`,
		`eagleray:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 0`,
		"eagleray:time_to_first_token_seconds_sum" + l + " 0.03",
		"eagleray:inter_token_latency_seconds_sum" + l + " 0.012",
		"eagleray:request_time_per_output_token_seconds_sum" + l + " 0.1",
		"eagleray:e2e_request_latency_seconds_sum" + l + " 3",
		"eagleray:request_params_n_sum" + l + " 2",
		"eagleray:grammar_cache_queries_total" + l + " 2",
		"eagleray:grammar_cache_hits_total" + l + " 1",
		"eagleray:grammar_compile_seconds_sum" + l + " 0.003",
		"eagleray:grammar_deferred_tokens_total" + l + " 2",
		`http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the exposition lacks %q", want)
		}
	}
}

// TestGPUs shows figures in base units, and of each GPU those that are known.
func TestGPUs(t *testing.T) {
	m := New(Options{ModelName: "m", MaxModelLen: 10})
	whole := GPU{Rank: 0}
	for f, v := range map[status.Figure]uint64{status.GPUMemoryUsed: 3 << 30, status.GPUBusy: 97,
		status.GPUMemoryBusy: 0, status.GPUClock: 1980, status.GPUPower: 687500,
		status.GPUThrottled: 0x24, status.GPUUncorrected: 2} {
		whole.Know(f, v)
	}
	part := GPU{Rank: 1}
	part.Know(status.GPUMemoryTotal, 5<<30)
	m.Engine(0).WatchGPUs(func() []GPU { return []GPU{whole, part} })
	var got []string
	for line := range strings.Lines(scrape(t, m)) {
		if name, ok := strings.CutPrefix(line, "eagleray:gpu_"); ok {
			got = append(got, strings.Replace(strings.TrimSpace(name),
				`engine="0",model_name="m",`, "", 1))
		}
	}
	want := []string{`ecc_uncorrected_errors_total{rank="0"} 2`,
		`memory_copy_utilization_perc{rank="0"} 0`, `memory_total_bytes{rank="1"} 5.36870912e+09`,
		`memory_used_bytes{rank="0"} 3.221225472e+09`, `power_usage_watts{rank="0"} 687.5`,
		`sm_clock_hertz{rank="0"} 1.98e+09`,
		`throttled{rank="0",reason="hw_power_brake_slowdown"} 0`,
		`throttled{rank="0",reason="hw_slowdown"} 0`,
		`throttled{rank="0",reason="hw_thermal_slowdown"} 0`,
		`throttled{rank="0",reason="sw_power_cap"} 1`,
		`throttled{rank="0",reason="sw_thermal_slowdown"} 1`,
		`throttled{rank="0",reason="sync_boost"} 0`, `utilization_perc{rank="0"} 0.97`}
	if !slices.Equal(got, want) {
		t.Errorf("%s\ninstead of\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestEngines: each engine has its own series, and the latencies of the page are those of all.
func TestEngines(t *testing.T) {
	m := New(Options{ModelName: "m", MaxModelLen: 10, Engines: 2})
	m.Engine(1).FirstToken(time.Second)
	m.Engine(0).FirstToken(2 * time.Second)
	m.Engine(1).SetDown()
	m.Engine(1).WatchLinks(func() []Link { return []Link{{Rank: 3, Resumes: 4}} })
	text := scrape(t, m)
	for _, want := range []string{
		`eagleray:engine_up{engine="0",model_name="m"} 1`,
		`eagleray:engine_up{engine="1",model_name="m"} 0`,
		`eagleray:time_to_first_token_seconds_sum{engine="0",model_name="m"} 2`,
		`eagleray:time_to_first_token_seconds_sum{engine="1",model_name="m"} 1`,
		`eagleray:link_resumes_total{engine="1",model_name="m",rank="3"} 4`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the exposition lacks %q", want)
		}
	}
	first, next := m.Latencies()
	if first.Count != 2 || first.Sum != 3 || first.Counts[len(first.Counts)-1] != 2 ||
		next.Count != 0 {
		t.Errorf("latencies of all %+v, %+v", first, next)
	}
}

// TestFinishes counts every way a request ends under its own name.
func TestFinishes(t *testing.T) {
	m := New(Options{ModelName: "m", MaxModelLen: 10})
	for f := sample.FinishStop; f < sample.Finishes; f++ {
		for range f {
			m.Engine(0).CountFinished(f)
		}
	}
	text := scrape(t, m)
	for i, reason := range []string{"stop", "length", "abort", "error"} {
		if !strings.Contains(text, fmt.Sprintf("finished_reason=%q,model_name=\"m\"} %d\n", reason,
			i+1)) {
			t.Errorf("%s was not counted %d times", reason, i+1)
		}
	}
}

func TestOneTwoFive(t *testing.T) {
	for _, c := range []struct {
		limit int
		want  []float64
	}{
		{0, []float64{1}},
		{1, []float64{1}},
		{4, []float64{1, 2}},
		{100, []float64{1, 2, 5, 10, 20, 50, 100}},
		{2048, []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000}},
	} {
		if got := oneTwoFive(c.limit); !slices.Equal(got, c.want) {
			t.Errorf("oneTwoFive(%d) = %v, want %v", c.limit, got, c.want)
		}
	}
}

func TestStatusClass(t *testing.T) {
	for status, want := range map[int]string{100: "1xx", 200: "2xx", 204: "2xx", 304: "3xx",
		404: "4xx", 503: "5xx", 0: "5xx", 999: "5xx"} {
		if got := statusClass(status); got != want {
			t.Errorf("statusClass(%d) = %q, want %q", status, got, want)
		}
	}
}

// TestHotPathDoesNotAllocate covers what is called for every step and every token.
func TestHotPathDoesNotAllocate(t *testing.T) {
	m := New(Options{ModelName: "m", MaxModelLen: 4096})
	for name, f := range map[string]func(){
		"SetQueues":   func() { m.Engine(0).SetQueues(1, 2, 0.5) },
		"Iteration":   func() { m.Engine(0).Iteration(0, 256) },
		"FirstToken":  func() { m.Engine(0).FirstToken(time.Millisecond) },
		"NextToken":   func() { m.Engine(0).NextToken(time.Millisecond) },
		"PrefixCache": func() { m.Engine(0).PrefixCache(100, 16) },
		"Preemptions": func() { m.Engine(0).Preempted(1) },
		"ObserveRequest": func() {
			m.Engine(0).ObserveRequest(Request{Finish: sample.FinishStop,
				OutputTokens: 5})
		},
		"ObserveParams": func() { m.Engine(0).ObserveParams(1, 16) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	m := New(Options{ModelName: "m", MaxModelLen: 4096})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				m.Engine(0).Iteration(1, 1)
				m.HTTP("/health", "GET", 200, time.Millisecond)
				m.Engine(0).SetCacheConfig(CacheConfig{BlockSize: 16})
			}
		})
	}
	scrape(t, m)
	wg.Wait()
	if !strings.Contains(scrape(t, m),
		`eagleray:prompt_tokens_total{engine="0",model_name="m"} 800`) {
		t.Error("counts were lost")
	}
}

func BenchmarkNextToken(b *testing.B) {
	m := New(Options{ModelName: "m", MaxModelLen: 4096})
	for b.Loop() {
		m.Engine(0).NextToken(20 * time.Millisecond)
	}
}

// TestPrefixes: the series have the same names, labels and values under every prefix asked for.
func TestPrefixes(t *testing.T) {
	names := func(prefixes ...string) string {
		m := New(Options{ModelName: "tiny", MaxModelLen: 2048, Prefixes: prefixes})
		m.Engine(0).Iteration(100, 7)
		m.Engine(0).WatchLinks(func() []Link { return []Link{{Rank: 5, SentBytes: 10}} })
		var lines []string
		for line := range strings.Lines(scrape(t, m)) {
			if strings.Contains(line, "eagleray:") || strings.Contains(line, "vllm:") {
				lines = append(lines, line)
			}
		}
		slices.Sort(lines)
		return strings.Join(lines, "")
	}
	ours := names()
	theirs := strings.ReplaceAll(ours, "eagleray:", "vllm:")
	if !strings.Contains(theirs, `vllm:prompt_tokens_total{engine="0",model_name="tiny"} 100`) ||
		!strings.Contains(theirs, `vllm:link_sent_bytes_total`) {
		t.Fatalf("no series:\n%s", theirs)
	}
	if got := names("vllm"); got != theirs {
		t.Errorf("under vllm:\n%s", got)
	}
	both := slices.Sorted(strings.Lines(ours + theirs))
	if got := names("eagleray", "vllm"); got != strings.Join(both, "") {
		t.Errorf("under both:\n%s", got)
	}
}

// TestSeriesFromTheStart: what has happened never yet is shown as zero.
func TestSeriesFromTheStart(t *testing.T) {
	fresh := New(Options{ModelName: "tiny", MaxModelLen: 2048})
	fresh.Expect("/v1/completions", "POST")
	fresh.Engine(0).SetDrafts(2)
	fresh.Engine(0).SetCacheConfig(CacheConfig{BlockSize: 16, Blocks: 1000, PrefixCaching: true,
		Dtype: "bfloat16"})
	text := scrape(t, fresh)
	golden, err := os.ReadFile("testdata/names.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(golden)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") || strings.Contains(line,
			":link_") || strings.Contains(line, ":gpu_") || strings.Contains(line, ":expert_") {
			continue // links, GPUs and layers with experts are those there are
		}
		value := " 0\n"
		if strings.Contains(line, "cache_config_info") || strings.Contains(line, "engine_up") {
			value = " 1\n"
		}
		if !strings.Contains(text, line+value) {
			t.Errorf("%s is not shown from the start", line)
		}
	}
}
