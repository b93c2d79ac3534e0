package metrics

import (
	"testing"
	"time"
)

func TestLatencies(t *testing.T) {
	m := New(Options{ModelName: "tiny", MaxModelLen: 64})
	m.Engine(0).FirstToken(3 * time.Second)
	before, _ := m.Latencies()
	for range 50 {
		// at the bound of the second bucket, 1 to 5 ms
		m.Engine(0).FirstToken(5 * time.Millisecond)
		m.Engine(0).FirstToken(90 * time.Millisecond) // 80 to 100 ms
	}
	m.Engine(0).NextToken(time.Millisecond)
	after, next := m.Latencies()
	h := after.Since(before)
	near := func(name string, got, want float64) {
		t.Helper()
		if got < want*15/16-1e-9 || got > want*17/16+1e-9 {
			t.Errorf("%s is %v, not %v", name, got, want)
		}
	}
	near("mean", h.Mean(), 0.0475)
	near("p25", h.Quantile(0.25), 0.005)
	near("p50", h.Quantile(0.5), 0.005)
	near("p75", h.Quantile(0.75), 0.09)
	near("p100", h.Quantile(1), 0.09)
	if h.Count != 100 {
		t.Errorf("%d observations", h.Count)
	}
	near("next", next.Quantile(0.5), 0.001)
	m.Engine(0).NextToken(time.Hour)
	_, beyond := m.Latencies()
	near("beyond", beyond.Since(next).Quantile(0.5), (1 << 41 * time.Nanosecond).Seconds())
	near("beyond on average", beyond.Since(next).Mean(), 3600)
	var none Histogram
	if none.Mean() != 0 || none.Quantile(0.5) != 0 || after.Since(after).Quantile(0.5) != 0 {
		t.Error("of nothing there are figures")
	}
}

// TestLatenciesWithoutEngine: what a removed engine observed stays, so that what was observed since
// is never less than nothing.
func TestLatenciesWithoutEngine(t *testing.T) {
	m := New(Options{ModelName: "tiny", MaxModelLen: 64, Engines: 2})
	for range 5 {
		m.Engine(1).FirstToken(time.Second)
		m.Engine(1).NextToken(time.Second)
	}
	first, next := m.Latencies()
	m.Remove(1)
	m.Engine(0).FirstToken(10 * time.Millisecond)
	m.Engine(1).NextToken(10 * time.Millisecond) // another engine of that number
	for range 2 {
		firstNow, nextNow := m.Latencies()
		for _, h := range []Histogram{firstNow.Since(first), nextNow.Since(next)} {
			if p := h.Quantile(1); h.Count != 1 || p < 0.009 || p > 0.011 {
				t.Errorf("%d observations, the longest of %v s, not one of 0.01 s", h.Count, p)
			}
		}
	}
}

// TestLatencyBuckets: every time lies within its bucket, and no bucket is wider than an eighth of
// what it holds, or 16 µs.
func TestLatencyBuckets(t *testing.T) {
	for d := time.Duration(0); d < 1<<40; d += d/7 + 1 + 1<<12 {
		i := latencyBucket(d)
		low, high := 0.0, latencyBounds[i]
		if i > 0 {
			low = latencyBounds[i-1]
		}
		if s := d.Seconds(); s < low || s >= high {
			t.Fatalf("%v is in the bucket from %v to %v", d, low, high)
		}
		if high-low > max(low/8, (1<<latencyUnit*time.Nanosecond).Seconds())*1.0001 {
			t.Fatalf("the bucket from %v to %v is wide", low, high)
		}
	}
	if latencyBucket(-1) != 0 || latencyBucket(1<<62) != latencyBuckets-1 {
		t.Error("what lies outside has no bucket")
	}
	var l latency
	if n := testing.AllocsPerRun(100, func() { l.observe(time.Millisecond) }); n != 0 {
		t.Errorf("observing allocates %g times", n)
	}
}
