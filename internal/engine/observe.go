package engine

import (
	"time"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// counted are the figures of the loop since the engine was opened; seen is what the scheduler had
// counted the last time.
type counted struct {
	seen     schedule.Stats
	prompted uint64
	sampled  uint64
	steps    uint64
	stepTime time.Duration
}

// observeStep counts a finished step: what it computed of prompts, what it sampled, how long it
// took, and the queues after it.
func (l *Loop) observeStep(f *flight, sampled int, took time.Duration) {
	if took > l.slowStep {
		l.e.events.Emit(status.StepSlow{Step: f.plan, Requests: f.requests, Tokens: f.tokens,
			Took: took})
	}
	l.e.metrics.Iteration(f.prefill, sampled)
	l.counted.prompted += uint64(f.prefill)
	l.counted.sampled += uint64(sampled)
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

// Totals returns the figures. Requests that no plan has been made after wait too.
func (e *Engine) Totals() Totals {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.totals
	t.Waiting += e.inbox.submitted(false)
	return t
}

// observeQueues shows the scheduler's state and counts what it did since the last time.
func (l *Loop) observeQueues() {
	s, was := l.sched.Stats(), l.counted.seen
	usage := 0.0
	if total := s.Cache.Blocks; total > 0 {
		usage = float64(s.Cache.Used) / float64(total)
	}
	l.e.metrics.SetQueues(s.Running, s.Waiting, usage)
	if n := s.Preemptions - was.Preemptions; n > 0 {
		l.e.events.Emit(status.Preempted{Requests: int(n), Running: s.Running, Waiting: s.Waiting})
	}
	l.e.metrics.Deferred(int(s.Deferred - was.Deferred))
	if n := s.Cache.Queries - was.Cache.Queries; n > 0 {
		l.e.metrics.PrefixCache(int(n), int(s.Cache.Hits-was.Cache.Hits))
	}
	if n := s.ExternalQueries - was.ExternalQueries; n > 0 {
		l.e.metrics.ExternalPrefixCache(int(n), int(s.ExternalHits-was.ExternalHits))
	}
	if d := s.Drafted.Since(&was.Drafted); d.Drafts > 0 {
		l.e.metrics.Drafted(d.Drafts, d.Tokens, d.Positions[:])
	}
	l.counted.seen = s
	l.e.mu.Lock()
	l.e.totals = Totals{PromptTokens: l.counted.prompted, OutputTokens: l.counted.sampled,
		Running: s.Running,
		Waiting: s.Waiting, CacheUsage: usage, BlocksUsed: s.Cache.Used,
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

// observeToken times a token on its way out.
func (d *delivery) observeToken(q *request, now time.Time) {
	if q.outputs == 1 {
		q.first = now
		d.metrics.FirstToken(now.Sub(q.arrived))
	} else {
		d.metrics.NextToken(now.Sub(q.last))
	}
	q.last = now
}

// observeFinish counts a request that ended.
func (d *delivery) observeFinish(q *request, how sample.Finish) {
	if how == sample.FinishAbort || how == sample.FinishError {
		d.metrics.CountFinished(how)
		return
	}
	t := q.times()
	d.metrics.ObserveRequest(metrics.Request{
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
