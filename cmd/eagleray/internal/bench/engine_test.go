package bench

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/config"
)

func openBuiltin(t *testing.T) *engine.Engine {
	t.Helper()
	cfg := config.Default()
	cfg.Cache.MemoryBytes = 64 << 20
	e, _, err := engine.Open(t.Context(), engine.Options{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func TestMeasureThroughput(t *testing.T) {
	e := openBuiltin(t)
	s := []Sample{{Tokens: []int32{1, 2, 3}, OutputLen: 5}, {Text: "func Index", OutputLen: 2}}
	last, total := 0, 0
	r, err := MeasureThroughput(t.Context(), e, ThroughputOptions{Samples: s, N: 3, Warmups: 2,
		Progress: func(d, n int) { last, total = d, n }})
	if err != nil {
		t.Fatal(err)
	}
	in := 3 + len(e.Info().Tokenizer.Encode("func Index", true))
	// A step is counted after its answers have gone out.
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		n := e.Totals().OutputTokens
		if n == 3*7+2*5 {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("%d tokens, with those before what is measured", n)
		}
	}
	if r.Requests != 2 || r.PromptTokens != in || r.OutputTokens != 3*7 || r.Elapsed <= 0 ||
		total != 21 || last > 21 {
		t.Errorf("%+v, progress %d of %d", r, last, total)
	}
	s[1].OutputLen = 1 << 20
	s[1].Tokens = make([]int32, e.Info().MaxModelLen)
	if _, err := MeasureThroughput(t.Context(), e, ThroughputOptions{Samples: s,
		N: 1}); err == nil || !strings.Contains(err.Error(), "prompt 1 of 2048") {
		t.Errorf("error %v", err)
	}
}

func TestThroughputFigures(t *testing.T) {
	r := Throughput{Elapsed: 2 * time.Second, Requests: 3, PromptTokens: 10, OutputTokens: 7}
	var got bytes.Buffer
	r.Print(&got)
	want := "Throughput: 1.50 requests/s, 8.50 total tokens/s, 3.50 output tokens/s\nTotal num " +
		"prompt tokens:  10\nTotal num output tokens:  7\n"
	if got.String() != want {
		t.Errorf("printed %q, want %q", got.String(), want)
	}
	m := r.JSON()
	if m["elapsed_time"] != 2.0 || m["num_requests"] != 3 || m["total_num_tokens"] != 17 ||
		m["requests_per_second"] != 1.5 || m["tokens_per_second"] != 8.5 {
		t.Errorf("%v", m)
	}
}

func TestMeasureLatency(t *testing.T) {
	e := openBuiltin(t)
	runs := 0
	l, err := MeasureLatency(t.Context(), e, LatencyOptions{InputLen: 5, OutputLen: 8, BatchSize: 2,
		N: 2, Warmups: 1, Iterations: 3, ReadBytes: 8 << 20,
		Progress: func(d, n int) { runs = d }})
	if err != nil {
		t.Fatal(err)
	}
	if n := e.Totals().OutputTokens; n != 4*2*2*8 {
		t.Errorf("%d tokens of 4 runs", n)
	}
	if len(l.Latencies) != 3 || runs != 4 || l.Step <= 0 || l.Threads < 1 ||
		l.WeightBytes != e.Info().WeightBytes {
		t.Errorf("%+v after %d runs", l, runs)
	}
	// Each run has seven steps after its first token, and two of the three have steps that take the
	// median or longer, however unequal a busy machine makes the runs.
	if middle := slices.Sorted(slices.Values(l.Latencies))[1]; middle < 7*l.Step {
		t.Errorf("runs took %v, yet a step %v", l.Latencies, l.Step)
	}
	// No machine that runs this reads slower than a disk, or faster than any memory there is.
	if len(l.Steps) != 3 || len(l.Readings) != 4 || l.Share() <= 0 {
		t.Errorf("%+v, share %v", l, l.Share())
	}
	if gb := l.ReadBandwidth / 1e9; gb < 0.1 || gb > 20000 {
		t.Errorf("read bandwidth %g GB/s", gb)
	}
	one, err := MeasureLatency(t.Context(), e, LatencyOptions{InputLen: 5, OutputLen: 1,
		BatchSize: 1, N: 1, Iterations: 1, ReadBytes: 8 << 20})
	if err != nil || one.Step != 0 || one.WeightRate() != 0 || one.Share() != 0 {
		t.Errorf("%+v, error %v", one, err)
	}
}

func TestLatencyFigures(t *testing.T) {
	l := Latency{Latencies: []time.Duration{3e9, 1e9, 2e9}, Step: 2 * time.Millisecond,
		Steps:       []time.Duration{2e6, 1e6, 4e6},
		WeightBytes: 1 << 40, Threads: 2, ReadBandwidth: 1 << 50,
		// The second step's share is the median: 1,000 a second of 2^40 of three times 2^50.
		Readings: []float64{1 << 50, 1 << 50, 5 << 50, 3 << 50}}
	var got bytes.Buffer
	l.Print(&got)
	for _, want := range []string{"Avg latency: 2 seconds\n",
		"10% percentile latency: 1.2 seconds\n", "50% percentile latency: 2 seconds\n",
		"99% percentile latency: 2.98 seconds\n",
		"Decode step: 2.000 ms (median), 549755.81 GB/s of weights", "share of it: 33%"} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("printed\n%swithout %q", got.String(), want)
		}
	}
	m := l.JSON()
	if s := m["bandwidth_share"].(float64); math.Abs(s-1000./1024/3) > 1e-9 {
		t.Errorf("a share of %v", s)
	}
	if m["avg_latency"] != 2.0 || m["latencies"].([]float64)[0] != 3 ||
		math.Abs(m["percentiles"].(map[string]any)["75"].(float64)-2.5) > 1e-9 {
		t.Errorf("%v", m)
	}
}
