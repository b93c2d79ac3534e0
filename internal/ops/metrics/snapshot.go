package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Histogram is a copy of a histogram of times in seconds.
type Histogram struct {
	// Bounds are the upper bounds of the buckets, rising. What lies above the last one is counted
	// in Count only.
	Bounds []float64
	// Counts are how many observations lie at or below each bound.
	Counts []uint64
	// Count and Sum are of all observations.
	Count uint64
	Sum   float64
}

// Latencies are copies of the histograms of the time to the first token and of the time between
// two tokens, of all engines together.
func (m *Metrics) Latencies() (first, next Histogram) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.engines {
		first, next = first.and(snapshot(e.ttft)), next.and(snapshot(e.itl))
	}
	return first, next
}

// and is both histograms together; they have the same bounds, or h is empty.
func (h Histogram) and(other Histogram) Histogram {
	for i := range h.Counts {
		other.Counts[i] += h.Counts[i]
	}
	other.Count += h.Count
	other.Sum += h.Sum
	return other
}

func snapshot(h prometheus.Histogram) Histogram {
	var m dto.Metric
	// Writing fails for bad labels only, of which these have none.
	if err := h.Write(&m); err != nil {
		return Histogram{}
	}
	s := Histogram{Count: m.Histogram.GetSampleCount(), Sum: m.Histogram.GetSampleSum()}
	for _, b := range m.Histogram.Bucket {
		s.Bounds = append(s.Bounds, b.GetUpperBound())
		s.Counts = append(s.Counts, b.GetCumulativeCount())
	}
	return s
}

// Since is what was observed after the older copy was taken.
func (h Histogram) Since(older Histogram) Histogram {
	d := Histogram{Bounds: h.Bounds, Counts: make([]uint64, len(h.Counts)),
		Count: h.Count - older.Count, Sum: h.Sum - older.Sum}
	for i := range h.Counts {
		d.Counts[i] = h.Counts[i]
		if i < len(older.Counts) {
			d.Counts[i] -= older.Counts[i]
		}
	}
	return d
}

// Mean is exact; it is 0 of nothing.
func (h Histogram) Mean() float64 {
	if h.Count == 0 {
		return 0
	}
	return h.Sum / float64(h.Count)
}

// Quantile is the time below which the share q (0 to 1) of the observations lies, interpolated
// within its bucket. In the first bucket, where nothing is known but its bound, and above the last
// bound it is that bound. It is 0 of nothing.
func (h Histogram) Quantile(q float64) float64 {
	if h.Count == 0 || len(h.Bounds) == 0 {
		return 0
	}
	rank := q * float64(h.Count)
	for i, c := range h.Counts {
		if float64(c) < rank || c == 0 {
			continue
		}
		if i == 0 {
			return h.Bounds[0]
		}
		low, below := h.Bounds[i-1], h.Counts[i-1]
		return low + (h.Bounds[i]-low)*(rank-float64(below))/float64(c-below)
	}
	return h.Bounds[len(h.Bounds)-1]
}
