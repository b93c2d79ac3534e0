package dashboard

import (
	"slices"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

const (
	// pastEvery is the time between two points of what a page that opens is shown of the time
	// before, pastPoints how many there are: five minutes, which with the copies of histograms are
	// 300 KB.
	pastEvery  = time.Second
	pastPoints = 300
	// latencyPoints are the points of the minute over which percentiles are taken.
	latencyPoints = 60
	// rateSpan is the time over which rates are taken.
	rateSpan = 2 * time.Second
)

// Point is what the plots show of one time. Rates are per second over the last two.
type Point struct {
	// At is Unix time in milliseconds.
	At         int64   `json:"at"`
	PromptRate float64 `json:"prompt_tokens_per_s"`
	OutputRate float64 `json:"output_tokens_per_s"`
	Running    int     `json:"running"`
	Waiting    int     `json:"waiting"`
	CacheUsage float64 `json:"cache_usage"`
	// PrefixQueries and PrefixHits are those since the start.
	PrefixQueries uint64 `json:"prefix_queries"`
	PrefixHits    uint64 `json:"prefix_hits"`
	// DraftTokens are those guessed since the start, AcceptedTokens those that were right.
	DraftTokens    uint64 `json:"draft_tokens"`
	AcceptedTokens uint64 `json:"accepted_tokens"`
	// StepMillis is how long a step took, on average of those of the last two seconds; 0 for none.
	StepRate   float64 `json:"steps_per_s"`
	StepMillis float64 `json:"step_ms"`
	// TTFT and TPOT are those of the last minute, nil for none.
	TTFT *Latency `json:"ttft"`
	TPOT *Latency `json:"tpot"`
}

// past is what is recorded of the engine whether a page is open or not: who opens one asks what has
// just happened.
type past struct {
	engine  Source
	metrics *metrics.Metrics // nil shows no latencies

	mu sync.Mutex
	// points are the last ones, and counts what the rates of the newest were taken from, both
	// oldest first; latencies the copies of the last minute.
	points     []Point
	counts     []counts
	latencies  []latencies
	ttft, tpot *Latency
}

// counts are the totals of one time that rates are taken from.
type counts struct {
	at             time.Time
	prompt, output uint64
	steps          uint64
	stepTime       time.Duration
}

type latencies struct{ first, next metrics.Histogram }

// record adds a point each second until it is ended.
func (p *past) record(ended <-chan struct{}) {
	tick := time.NewTicker(pastEvery)
	defer tick.Stop()
	p.add(time.Now())
	for {
		select {
		case <-ended:
			return
		case now := <-tick.C:
			p.add(now)
		}
	}
}

// add records the engine as it is now.
func (p *past) add(now time.Time) {
	t := p.engine.Totals()
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.metrics; m != nil {
		first, next := m.Latencies()
		p.latencies = appendLast(p.latencies, latencies{first, next}, latencyPoints+1)
		was := p.latencies[0]
		p.ttft, p.tpot = latencyOf(first.Since(was.first)), latencyOf(next.Since(was.next))
	}
	point := pointOf(t, now)
	p.counts = rates(&point, p.counts, countsOf(t, now))
	point.TTFT, point.TPOT = p.ttft, p.tpot
	p.points = appendLast(p.points, point, pastPoints)
}

// seen are the points so far, and what the rates of the next are taken from.
func (p *past) seen() ([]Point, []counts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.points), slices.Clone(p.counts)
}

// minute are the latencies of the last minute, as of the last point.
func (p *past) minute() (ttft, tpot *Latency) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ttft, p.tpot
}

// appendLast appends to a list of at most so many, whose first is lost if there is one more.
func appendLast[T any](list []T, x T, most int) []T {
	if len(list) == most {
		list = list[:copy(list, list[1:])]
	}
	return append(list, x)
}

func countsOf(t engine.Totals, now time.Time) counts {
	return counts{now, t.PromptTokens, t.OutputTokens, t.Steps, t.StepTime}
}

func pointOf(t engine.Totals, now time.Time) Point {
	return Point{At: now.UnixMilli(), Running: t.Running, Waiting: t.Waiting,
		CacheUsage: t.CacheUsage, PrefixQueries: t.PrefixQueries, PrefixHits: t.PrefixHits,
		DraftTokens: t.DraftTokens, AcceptedTokens: t.AcceptedTokens}
}

// rates fills in what has changed since rateSpan ago, or since the oldest there is, and returns
// what the next rates are taken from. Engines that were taken away count as none: totals that are
// less than they were show no rate.
func rates(p *Point, recent []counts, now counts) []counts {
	recent = append(recent, now)
	for len(recent) > 2 && now.at.Sub(recent[1].at) >= rateSpan {
		recent = recent[:copy(recent, recent[1:])]
	}
	was := recent[0]
	seconds := now.at.Sub(was.at).Seconds()
	if seconds <= 0 {
		return recent
	}
	since := func(was, now uint64) float64 { return float64(now - min(was, now)) }
	p.PromptRate = since(was.prompt, now.prompt) / seconds
	p.OutputRate = since(was.output, now.output) / seconds
	n := since(was.steps, now.steps)
	p.StepRate = n / seconds
	if n > 0 {
		p.StepMillis = (now.stepTime - was.stepTime).Seconds() * 1000 / n
	}
	return recent
}

func latencyOf(h metrics.Histogram) *Latency {
	if h.Count == 0 {
		return nil
	}
	const ms = 1000
	return &Latency{Count: h.Count, Mean: h.Mean() * ms, P50: h.Quantile(0.5) * ms,
		P95: h.Quantile(0.95) * ms, P99: h.Quantile(0.99) * ms}
}
