package metrics

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// latency is a histogram of times that is finer than those of /metrics: their first bucket of 10 ms
// holds every token of a small model. Buckets are 2^14 ns (16 µs) wide up to 8 of them, and from
// there on an eighth of a power of two: a percentile is off by a sixteenth of its value at most.
// Observing is two additions.
type latency struct {
	counts [latencyBuckets]atomic.Uint64
	nanos  atomic.Uint64
}

const (
	latencyUnit = 14 // of which power of two nanoseconds
	// latencyBuckets reach to 2^41 ns, 37 minutes; what is longer is in the last.
	latencyBuckets = 8 * (41 - latencyUnit - 2)
)

// latencyBounds are the upper bounds of the buckets in seconds.
var latencyBounds = func() []float64 {
	list := make([]float64, latencyBuckets)
	for i := range list {
		// Bucket i of 8 or more holds (8 + i%8) << (i/8 - 1) units and up to the next.
		units := uint64(i + 1)
		if i >= 8 {
			units = uint64(8+i%8+1) << (i/8 - 1)
		}
		list[i] = time.Duration(units << latencyUnit).Seconds()
	}
	return list
}()

func latencyBucket(d time.Duration) int {
	units := uint64(max(d, 0)) >> latencyUnit
	if units < 8 {
		return int(units)
	}
	shift := bits.Len64(units) - 4
	return min(8*shift+int(units>>shift), latencyBuckets-1)
}

func (l *latency) observe(d time.Duration) {
	l.counts[latencyBucket(d)].Add(1)
	l.nanos.Add(uint64(max(d, 0)))
}

// addTo adds what was observed to a copy.
func (l *latency) addTo(h *Histogram) {
	if h.Counts == nil {
		h.Bounds, h.Counts = latencyBounds, make([]uint64, latencyBuckets)
	}
	n := uint64(0)
	for i := range l.counts {
		n += l.counts[i].Load()
		h.Counts[i] += n
	}
	h.Count += n
	h.Sum += time.Duration(l.nanos.Load()).Seconds()
}
