package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// Values by hand, and as numpy.percentile gives them.
func TestPercentile(t *testing.T) {
	for _, tt := range []struct {
		xs      []float64
		p, want float64
	}{
		{nil, 50, 0},
		{[]float64{7}, 0, 7}, {[]float64{7}, 99, 7},
		{[]float64{1, 2}, 50, 1.5}, {[]float64{1, 2}, 99, 1.99},
		{[]float64{1, 2, 3, 4, 5}, 50, 3}, {[]float64{1, 2, 3, 4, 5}, 25, 2}, {[]float64{1, 2, 3, 4,
			5}, 90, 4.6},
		{[]float64{1, 2, 3, 10}, 100, 10}, {[]float64{1, 2, 3, 10}, 0, 1}, {[]float64{10, 20, 30,
			40}, 99.9, 39.97},
	} {
		if got := percentile(tt.xs, tt.p); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("P%g of %v is %g, want %g", tt.p, tt.xs, got, tt.want)
		}
	}
	s := summarize([]time.Duration{4e6, 2e6, 6e6}, []float64{50})
	if s.Mean != 4 || s.Median != 4 || math.Abs(s.Std-math.Sqrt(8.0/3)) > 1e-9 ||
		s.Percentiles[0] != (Percentile{50, 4}) {
		t.Errorf("summary %+v", s)
	}
}

func ms(x int) time.Duration { return time.Duration(x) * time.Millisecond }

// example is a run whose figures are easy to check: TPOT 10 and 25 ms, one request of a single
// token, one failed.
func example() []Outcome {
	return []Outcome{
		{Start: 0, TTFT: ms(100), Latency: ms(120), ITL: []time.Duration{ms(10), ms(10)},
			PromptLen: 5, OutputLen: 3, Text: "a b c"},
		{Start: ms(50), TTFT: ms(200), Latency: ms(300), ITL: []time.Duration{ms(100)},
			PromptLen: 7, OutputLen: 5, Text: "d"},
		{Start: ms(120), TTFT: ms(40), Latency: ms(40), PromptLen: 1, OutputLen: 1},
		{Start: ms(130), Err: "status 500: oops"},
	}
}

func limit(d time.Duration) *time.Duration { return &d }

func TestCompute(t *testing.T) {
	r := Result{Duration: time.Second}
	r.Compute(example(), Goodput{TPOT: limit(ms(10)), TTFT: limit(ms(100))}, []float64{99})
	for name, x := range map[string][2]float64{
		"completed": {float64(r.Completed), 3}, "failed": {float64(r.Failed), 1},
		"good":  {float64(r.Good), 2},
		"input": {float64(r.InputTokens), 13}, "output": {float64(r.OutputTokens), 9},
		"TPOT": {r.TPOT.Mean, 17.5}, "TTFT": {r.TTFT.Median, 100}, "ITL": {r.ITL.Mean, 40},
		"E2EL": {r.E2EL.Mean, 460.0 / 3},
		// The first ends when the third starts: there are never three under way.
		"concurrent": {float64(r.PeakConcurrent), 2},
		"pieces":     {float64(r.PeakOutput), 6},
	} {
		if math.Abs(x[0]-x[1]) > 1e-9 {
			t.Errorf("%s: %g, want %g", name, x[0], x[1])
		}
	}
}

func TestGoodput(t *testing.T) {
	o := Outcome{TTFT: ms(100), Latency: ms(500)}
	for _, tt := range []struct {
		g    Goodput
		want bool
	}{
		{Goodput{}, true}, {Goodput{TTFT: limit(ms(100))}, true}, {Goodput{TTFT: limit(ms(99))},
			false},
		{Goodput{TPOT: limit(ms(20))}, true}, {Goodput{TPOT: limit(ms(19))}, false},
		{Goodput{TTFT: limit(ms(100)), E2EL: limit(ms(499))}, false},
		{Goodput{E2EL: limit(ms(500))}, true},
	} {
		if got := tt.g.good(o, ms(20)); got != tt.want {
			t.Errorf("%+v: %v", tt.g, got)
		}
	}
}

func TestPeaks(t *testing.T) {
	outcomes := []Outcome{
		{Start: ms(700), TTFT: ms(200), Latency: ms(1600), ITL: []time.Duration{ms(900), ms(500)}},
		{Start: ms(800), TTFT: ms(1000), Latency: ms(1000)},
		{Start: ms(900), Latency: ms(5), Err: "x"},
	}
	// Seconds count from the first start: pieces at 0.2, 1.1, 1.6 and 1.1.
	if n := peakOutput(outcomes); n != 3 {
		t.Errorf("peak of %d pieces a second, want 3", n)
	}
	if n := peakConcurrent(outcomes); n != 2 {
		t.Errorf("peak of %d requests, want 2", n)
	}
	if peakOutput(nil) != 0 || peakConcurrent(nil) != 0 {
		t.Error("nothing has a peak")
	}
}

// The printed table, byte for byte.
func TestPrint(t *testing.T) {
	for name, o := range map[string]struct {
		r      Result
		limits Goodput
		p      []float64
		show   []string
	}{
		"table_plain.txt": {Result{Duration: 2500 * time.Millisecond,
			Arrival: Arrival{Rate: math.Inf(1)}}, Goodput{}, []float64{99}, []string{"ttft", "tpot",
			"itl"}},
		"table_full.txt": {Result{Duration: time.Second, Arrival: Arrival{Rate: 2.5},
			MaxConcurrency: 8}, Goodput{E2EL: limit(ms(150))}, []float64{50, 99.9}, []string{"e2el",
			"itl", "ttft", "tpot"}},
	} {
		o.r.Compute(example(), o.limits, o.p)
		var got bytes.Buffer
		o.r.Print(&got, o.show)
		path := "testdata/" + name
		if *rewrite {
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s: printed\n%s\nwant\n%s", name, got.Bytes(), want)
		}
	}
}

func TestJSON(t *testing.T) {
	r := Result{Duration: time.Second, Arrival: Arrival{Rate: math.Inf(1), Burstiness: math.Inf(1)}}
	r.Compute(example(), Goodput{}, []float64{99, 99.9})
	for _, detailed := range []bool{false, true} {
		raw, err := json.Marshal(r.JSON(detailed))
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		if m["request_rate"] != "inf" || m["burstiness"] != "inf" || m["mean_tpot_ms"] != 17.5 ||
			m["completed"] != 3.0 || m["output_throughput"] != 9.0 {
			t.Errorf("figures %v", m)
		}
		for _, key := range []string{"p99_ttft_ms", "p99.9_itl_ms", "std_e2el_ms",
			"max_concurrent_requests", "request_goodput"} {
			if _, ok := m[key]; !ok {
				t.Errorf("no %s", key)
			}
		}
		lists, ok := m["ttfts"].([]any)
		if ok != detailed || detailed && (lists[0] != 0.1 ||
			m["errors"].([]any)[3] != "status 500: oops") {
			t.Errorf("detailed %v: ttfts %v", detailed, lists)
		}
	}
}
