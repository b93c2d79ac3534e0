package bench

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Summary is a set of times in milliseconds.
type Summary struct {
	Mean, Median, Std float64
	// Percentiles are the chosen ones, in order.
	Percentiles []Percentile
}

// Percentile is the value below which P percent lie.
type Percentile struct {
	P, Value float64
}

// summarize computes the figures of xs in milliseconds. The standard deviation is that of the
// population and percentiles are interpolated linearly, as numpy's defaults are; of nothing all are
// 0, as in vLLM.
func summarize(xs []time.Duration, percentiles []float64) Summary {
	ms := make([]float64, len(xs))
	for i, x := range xs {
		ms[i] = float64(x) / float64(time.Millisecond)
	}
	slices.Sort(ms)
	s := Summary{Mean: mean(ms), Std: deviation(ms), Median: percentile(ms, 50)}
	for _, p := range percentiles {
		s.Percentiles = append(s.Percentiles, Percentile{p, percentile(ms, p)})
	}
	return s
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(max(len(xs), 1))
}

func deviation(xs []float64) float64 {
	m, sum := mean(xs), 0.0
	for _, x := range xs {
		sum += (x - m) * (x - m)
	}
	return math.Sqrt(sum / float64(max(len(xs), 1)))
}

func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := p / 100 * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// Goodput holds the limits a request must keep to count as good.
type Goodput struct {
	// TTFT, TPOT and E2EL are limits, nil for none.
	TTFT, TPOT, E2EL *time.Duration
}

// Set tells whether there is any limit.
func (g Goodput) Set() bool { return g.TTFT != nil || g.TPOT != nil || g.E2EL != nil }

func (g Goodput) good(o Outcome, tpot time.Duration) bool {
	within := func(v time.Duration, limit *time.Duration) bool {
		return limit == nil || v <= *limit
	}
	return within(o.TTFT, g.TTFT) && within(tpot, g.TPOT) && within(o.Latency, g.E2EL)
}

// Result are the figures of one run against a server.
type Result struct {
	MaxConcurrency int
	Arrival        Arrival
	Duration       time.Duration

	// Completed and Failed count requests, Good the completed ones within all limits of the
	// goodput.
	Completed, Failed, Good int
	HasGoodput              bool
	// InputTokens and OutputTokens are those of completed requests.
	InputTokens, OutputTokens int
	// PeakOutput is the most pieces that came within one second, PeakConcurrent the most requests
	// under way.
	PeakOutput, PeakConcurrent int
	TTFT, TPOT, ITL, E2EL      Summary
	Outcomes                   []Outcome
}

// Compute derives the figures. TPOT is (latency − TTFT) ÷ (output tokens − 1) of each request with
// more than one token, ITL every gap of every request, E2EL the latency to the last piece.
func (r *Result) Compute(outcomes []Outcome, limits Goodput, percentiles []float64) {
	r.Outcomes, r.HasGoodput = outcomes, limits.Set()
	var ttft, tpot, itl, e2el []time.Duration
	for _, o := range outcomes {
		if o.Err != "" {
			r.Failed++
			continue
		}
		r.Completed++
		r.InputTokens += o.PromptLen
		r.OutputTokens += o.OutputLen
		ttft = append(ttft, o.TTFT)
		e2el = append(e2el, o.Latency)
		itl = append(itl, o.ITL...)
		// A request of one token has no TPOT; for the goodput it counts as 0.
		var each time.Duration
		if o.OutputLen > 1 {
			each = (o.Latency - o.TTFT) / time.Duration(o.OutputLen-1)
			tpot = append(tpot, each)
		}
		if r.HasGoodput && limits.good(o, each) {
			r.Good++
		}
	}
	r.PeakOutput, r.PeakConcurrent = peakOutput(outcomes), peakConcurrent(outcomes)
	r.TTFT, r.TPOT = summarize(ttft, percentiles), summarize(tpot, percentiles)
	r.ITL, r.E2EL = summarize(itl, percentiles), summarize(e2el, percentiles)
}

// Failures returns up to n different errors of failed requests.
func (r *Result) Failures(n int) []string {
	var list []string
	for _, o := range r.Outcomes {
		if o.Err != "" && len(list) < n && !slices.Contains(list, o.Err) {
			list = append(list, o.Err)
		}
	}
	return list
}

// peakOutput counts pieces by the second, from the first request on.
func peakOutput(outcomes []Outcome) int {
	first := time.Duration(math.MaxInt64)
	for _, o := range outcomes {
		if o.Err == "" {
			first = min(first, o.Start)
		}
	}
	perSecond := map[time.Duration]int{}
	most := 0
	count := func(at time.Duration) {
		second := (at - first) / time.Second
		perSecond[second]++
		most = max(most, perSecond[second])
	}
	for _, o := range outcomes {
		if o.Err != "" {
			continue
		}
		at := o.Start + o.TTFT
		count(at)
		for _, gap := range o.ITL {
			at += gap
			count(at)
		}
	}
	return most
}

// peakConcurrent sweeps over the starts and ends of requests; one that ends when another starts
// makes room for it.
func peakConcurrent(outcomes []Outcome) int {
	type change struct {
		at time.Duration
		by int
	}
	var changes []change
	for _, o := range outcomes {
		if o.Err == "" {
			changes = append(changes, change{o.Start, 1}, change{o.Start + o.Latency, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by))
	})
	now, most := 0, 0
	for _, c := range changes {
		now += c.by
		most = max(most, now)
	}
	return most
}
