package metrics

import "slices"

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
// two tokens, of all engines together, also of those that were removed.
func (m *Metrics) Latencies() (first, next Histogram) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, next = m.first, m.next
	first.Counts, next.Counts = slices.Clone(first.Counts), slices.Clone(next.Counts)
	for _, e := range m.engines {
		e.first.addTo(&first)
		e.next.addTo(&next)
	}
	return first, next
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
// within its bucket. Above the last bound it is that bound. It is 0 of nothing.
func (h Histogram) Quantile(q float64) float64 {
	if h.Count == 0 || len(h.Bounds) == 0 {
		return 0
	}
	rank := q * float64(h.Count)
	low, below := 0.0, uint64(0)
	for i, c := range h.Counts {
		if float64(c) >= rank && c > below {
			return low + (h.Bounds[i]-low)*(rank-float64(below))/float64(c-below)
		}
		low, below = h.Bounds[i], c
	}
	return h.Bounds[len(h.Bounds)-1]
}
