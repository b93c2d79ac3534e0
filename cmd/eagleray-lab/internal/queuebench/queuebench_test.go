package queuebench

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// The test binary is its own reader process.
const verb = "queue-reader"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == verb {
		if err := Child(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func options(readers int, d time.Duration) Options {
	return Options{Readers: readers, Seed: 7, Duration: d, Command: []string{os.Args[0], verb}}
}

func TestRun(t *testing.T) {
	for _, o := range []Options{options(1, 400*time.Millisecond), options(3, 400*time.Millisecond),
		{Readers: 2, Size: 16, ReplySize: 100_000, Rate: 1000},
		{Transport: "link", Readers: 2}} {
		t.Run(fmt.Sprint(o.Transport, o.Readers), func(t *testing.T) {
			o.Duration, o.Command = 400*time.Millisecond, []string{os.Args[0], verb}
			r, err := Run(o)
			if err != nil {
				t.Fatal(err)
			}
			for name, q := range map[string]Quantiles{"round trip": r.RoundTrip, "floor": r.Floor,
				"paced": r.PacedRoundTrip, "paced floor": r.PacedFloor} {
				if q.P50 <= 0 || q.P99 < q.P50 || q.P999 < q.P99 {
					t.Errorf("%s %+v", name, q)
				}
			}
			if r.RoundTrips < batch-warmup || r.LargeGBPerS <= 0 ||
				r.RatioP50 != r.RoundTrip.P50/r.Floor.P50 {
				t.Errorf("%+v", r)
			}
			if (r.LargeFloorGBPerS > 0) != (o.Transport == "link") {
				t.Errorf("floor of large payloads %v GB/s", r.LargeFloorGBPerS)
			}
			for _, shares := range [][]float64{r.CPUShare.Idle, r.CPUShare.Paced50Hz} {
				if len(shares) != 1+o.Readers || slices.Min(shares) < 0 || slices.Max(shares) > 16 {
					t.Errorf("shares %v", shares)
				}
			}
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"round_trip_us", "floor_us", "p50", "p99", "p999",
				"ratio_p50", "cpu_share", "idle", "paced_50hz", "large_gb_per_s"} {
				if !strings.Contains(string(text), fmt.Sprintf("%q:", key)) {
					t.Errorf("no %s in %s", key, text)
				}
			}
			if strings.Contains(string(text),
				`"large_floor_gb_per_s":`) != (o.Transport == "link") {
				t.Errorf("floor of large payloads in %s", text)
			}
		})
	}
}

// TestRunRPC runs real steps over both transports.
func TestRunRPC(t *testing.T) {
	for _, transport := range []string{"ring", "link"} {
		o := options(2, 300*time.Millisecond)
		o.Transport = transport
		r, err := RunRPC(o, 256)
		if err != nil {
			t.Fatal(err)
		}
		if r.Steps < 1 || r.StepRoundTrip.P50 <= 0 || r.Floor.P50 <= 0 || r.CodecUS <= 0 ||
			r.CodecAllocs != 0 || r.Bytes.Plan < 256*16 || r.Bytes.Result < 256*8 {
			t.Errorf("%s: %+v", transport, r)
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"step_round_trip_us", "codec_us", "codec_allocs", "bytes"} {
			if !strings.Contains(string(text), fmt.Sprintf("%q:", key)) {
				t.Errorf("no %s in %s", key, text)
			}
		}
	}
	if _, err := RunRPC(options(2, time.Second), 0); err == nil {
		t.Error("steps of no requests")
	}
}

func TestRunRefuses(t *testing.T) {
	for want, o := range map[string]Options{
		`transport "pigeon"`:  {Transport: "pigeon"},
		"-1 readers":          {Readers: -1},
		"1000 readers":        {Readers: 1000},
		"records of 8":        {Size: 8},
		"and 3 bytes":         {ReplySize: 3},
		"-2 records":          {Rate: -2},
		"for -1s":             {Duration: -time.Second},
		"start reader 0":      {Command: []string{"/no/such/program"}},
		"reader 0 (pid":       {Readers: 1, Command: []string{"false"}},
		"without being asked": {Readers: 1, Command: []string{"true"}},
	} {
		if _, err := Run(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	for _, args := range [][]string{nil, {"ring", "0"}, {"pigeon", "0", "16"}, {"ring", "x", "16"},
		{"ring", "0", "1"}, {"ring", "0", "1e9"}} {
		if err := Child(args); err == nil {
			t.Errorf("a reader with %q", args)
		}
	}
}

func TestQuantiles(t *testing.T) {
	var d []time.Duration
	for i := range 1000 {
		d = append(d, time.Duration(1000-i)*time.Microsecond)
	}
	if q := QuantilesOf(d); q != (Quantiles{501, 991, 1000}) {
		t.Errorf("%+v", q)
	}
	if q := QuantilesOf(nil); q != (Quantiles{}) {
		t.Errorf("of nothing: %+v", q)
	}
}

// BenchmarkQueue reports round trips beside the floor of their shape, and the rate of large
// payloads. One iteration takes four seconds: use -benchtime 1x.
func BenchmarkQueue(b *testing.B) {
	for _, readers := range []int{1, 2, 8} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			for range b.N {
				r, err := Run(options(readers, 4*time.Second))
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(r.RoundTrip.P50, "µs")
				b.ReportMetric(r.Floor.P50, "floor-µs")
				b.ReportMetric(r.RatioP50, "ratio")
				b.ReportMetric(r.PacedRoundTrip.P50, "paced-µs")
				b.ReportMetric(r.PacedFloor.P50, "paced-floor-µs")
				b.ReportMetric(100*slices.Max(r.CPUShare.Idle), "idle-%")
				b.ReportMetric(100*slices.Max(r.CPUShare.Paced50Hz), "paced-%")
				b.ReportMetric(r.LargeGBPerS, "large-GB/s")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
