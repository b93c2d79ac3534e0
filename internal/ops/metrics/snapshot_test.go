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
		if got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%s is %v, not %v", name, got, want)
		}
	}
	near("mean", h.Mean(), 0.0475)
	near("p25", h.Quantile(0.25), 0.003)
	near("p50", h.Quantile(0.5), 0.005)
	near("p75", h.Quantile(0.75), 0.09)
	near("p100", h.Quantile(1), 0.1)
	if h.Count != 100 {
		t.Errorf("%d observations", h.Count)
	}
	// Of the first bucket only its bound is known, and above the last bound nothing.
	near("next", next.Quantile(0.5), 0.01)
	m.Engine(0).NextToken(time.Hour)
	_, beyond := m.Latencies()
	near("beyond", beyond.Since(next).Quantile(0.5), 80)
	var none Histogram
	if none.Mean() != 0 || none.Quantile(0.5) != 0 || after.Since(after).Quantile(0.5) != 0 {
		t.Error("of nothing there are figures")
	}
}
