package engine

import (
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// counted are the figures of the loop since the engine was opened; seen is what the scheduler had
// counted the last time.
type counted struct {
	seen     []schedule.Stats // of each place
	now      []schedule.Stats // memory of observeQueues
	steps    uint64
	stepTime time.Duration
}

// observeStep counts a finished step: how long it took, and the queues after it.
func (l *Loop) observeStep(f *flight, took time.Duration) {
	if took > l.slowStep {
		l.e.events.Emit(status.StepSlow{Step: f.plan, Requests: f.requests, Tokens: f.tokens,
			Took: took})
	}
	l.counted.steps++
	if p := &l.launching.Config.Parallel.EPLB; p.Enabled && l.counted.steps%p.StepInterval == 0 {
		select {
		case l.e.unbalanced <- struct{}{}:
		default: // it is being looked at
		}
	}
	l.counted.stepTime += took
	l.observeQueues()
}

// Totals are the engine's figures since it was opened as of the last step, and the requests as of
// the last plan.
type Totals struct {
	PromptTokens, OutputTokens uint64
	Running, Waiting           int
	// Queues are those of each engine, or of each place of one that has several.
	Queues []Queue
	// CacheUsage is the share of KV blocks in use, 0 to 1; BlocksUsed is their number.
	CacheUsage float64
	BlocksUsed int
	// PrefixQueries and PrefixHits count prompt tokens looked up in the prefix cache, and found.
	PrefixQueries, PrefixHits uint64
	// ExternalHits counts those that came from files.
	ExternalHits uint64
	// DraftTokens counts guessed tokens, AcceptedTokens those that were right.
	DraftTokens, AcceptedTokens uint64
	// Preemptions counts requests put back to wait.
	Preemptions uint64
	// Steps counts finished steps, StepTime sums how long they took.
	Steps    uint64
	StepTime time.Duration
}

// Queue are the requests of a place, and the share of its KV blocks in use.
type Queue struct {
	Running, Waiting int
	CacheUsage       float64
}

// Totals returns the figures. Requests that no plan has been made after wait too.
func (e *Engine) Totals() Totals {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.totals
	t.Queues = slices.Clone(t.Queues)
	t.Waiting += e.inbox.submitted(false)
	return t
}

// observeQueues shows the scheduler's state and counts what it did since the last time.
func (l *Loop) observeQueues() {
	c, preempted := &l.counted, uint64(0)
	c.now = l.sched.Each(c.now[:0])
	for place := range c.now {
		was, is := &c.seen[place], &c.now[place]
		preempted += is.Preemptions - was.Preemptions
		observePlace(l.series[place], was, is)
		*was = *is
	}
	s := l.sched.Sum(c.now)
	if preempted > 0 {
		l.e.events.Emit(status.Preempted{Requests: int(preempted), Running: s.Running,
			Waiting: s.Waiting})
	}
	l.e.mu.Lock()
	queues := l.e.totals.Queues[:0]
	for i := range c.now {
		queues = append(queues, Queue{Running: c.now[i].Running, Waiting: c.now[i].Waiting,
			CacheUsage: usage(&c.now[i])})
	}
	l.e.totals = Totals{PromptTokens: s.PromptTokens, OutputTokens: s.OutputTokens,
		Queues: queues, Running: s.Running,
		Waiting: s.Waiting, CacheUsage: usage(&s), BlocksUsed: s.Cache.Used,
		DraftTokens: s.Drafted.Tokens, AcceptedTokens: s.Drafted.Accepted,
		PrefixQueries: s.Cache.Queries, PrefixHits: s.Cache.Hits, ExternalHits: s.ExternalHits,
		Preemptions: s.Preemptions,
		Steps:       l.counted.steps, StepTime: l.counted.stepTime}
	l.e.mu.Unlock()
}

// mostGuesses is how many steps of a request are kept for a page to draw.
const mostGuesses = 1024

// observeGuess notes what a step guessed, and how much of that was right.
func (q *request) observeGuess(o *schedule.Output) {
	if len(o.Tokens) == 0 || o.Guessed == 0 && len(q.guesses) == 0 ||
		len(q.guesses) == mostGuesses {
		return
	}
	q.guesses = append(q.guesses, status.Guess{Drafts: uint8(o.Guessed),
		Tokens: uint8(len(o.Tokens))})
}

// usage is the share of blocks in use, 0 to 1.
func usage(s *schedule.Stats) float64 {
	if s.Cache.Blocks == 0 {
		return 0
	}
	return float64(s.Cache.Used) / float64(s.Cache.Blocks)
}

// observePlace shows the state of a place, and counts what it did since another one.
func observePlace(m *metrics.Engine, was, is *schedule.Stats) {
	m.SetQueues(is.Running, is.Waiting, usage(is))
	prompt, sampled := is.PromptTokens-was.PromptTokens, is.OutputTokens-was.OutputTokens
	if prompt+sampled > 0 {
		m.Iteration(int(prompt), int(sampled))
	}
	m.Preempted(int(is.Preemptions - was.Preemptions))
	m.Deferred(int(is.Deferred - was.Deferred))
	if n := is.Cache.Queries - was.Cache.Queries; n > 0 {
		m.PrefixCache(int(n), int(is.Cache.Hits-was.Cache.Hits))
	}
	if n := is.ExternalQueries - was.ExternalQueries; n > 0 {
		m.ExternalPrefixCache(int(n), int(is.ExternalHits-was.ExternalHits))
	}
	if d := is.Drafted.Since(&was.Drafted); d.Drafts > 0 {
		m.Drafted(d.Drafts, d.Tokens, d.Positions[:])
	}
}

// showPlaces has as many places in the metrics as the scheduler has, whose counters begin anew.
func (l *Loop) showPlaces() {
	n := len(l.sched.Each(nil))
	series := slices.Clone(l.series[:min(n, len(l.series))]) // delivery may use the one before
	for place := len(series); place < n; place++ {
		series = append(series, l.placeSeries.open(place))
	}
	for place := n; place < len(l.series); place++ {
		l.placeSeries.remove(place)
	}
	l.series, l.e.delivery.series = series, series
	l.counted.seen = make([]schedule.Stats, n)
}

// observeRun times a run of tokens of a place on its way out: its first has been counted.
func observeRun(m *metrics.Engine, q *request, now time.Time) {
	if q.outputs == 1 {
		q.first = now
		m.FirstToken(now.Sub(q.arrived))
	} else {
		m.NextToken(now.Sub(q.last))
	}
	q.last = now
}

// observeFinish counts a request that ended at a place.
func observeFinish(m *metrics.Engine, q *request, how sample.Finish) {
	if how == sample.FinishAbort || how == sample.FinishError {
		m.CountFinished(how)
		return
	}
	t := q.times()
	m.ObserveRequest(metrics.Request{
		Finish:       how,
		E2E:          q.last.Sub(q.arrived),
		Queue:        t.Queue,
		Inference:    t.Prefill + t.Decode,
		Prefill:      t.Prefill,
		Decode:       t.Decode,
		PromptTokens: len(q.Prompt),
		OutputTokens: q.outputs,
	})
}

// times are those of a request that has an output.
func (q *request) times() Times {
	return Times{Queue: q.scheduled.Sub(q.arrived), Prefill: q.first.Sub(q.scheduled),
		Decode: q.last.Sub(q.first)}
}
