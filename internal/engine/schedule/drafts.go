package schedule

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/draft"
)

// Drafted counts guessed tokens since the beginning.
type Drafted struct {
	// Drafts is how many guesses there were, Tokens of how many tokens, Accepted how many of those
	// were right, Positions how many by their place in the guess.
	Drafts, Tokens, Accepted uint64
	Positions                [draft.Most]uint64
}

func (d *Drafted) add(o *Drafted) {
	d.Drafts += o.Drafts
	d.Tokens += o.Tokens
	d.Accepted += o.Accepted
	for i := range d.Positions {
		d.Positions[i] += o.Positions[i]
	}
}

// awaitsDrafts tells whether the newest plan in flight verifies drafts, and none is made before its
// result: the requests that it verifies some for would miss a turn, for which no guess makes up. With
// stages requests take turns anyway.
func (s *Scheduler) awaitsDrafts() bool {
	return s.config.Stages == 1 && s.owed > 0 &&
		s.flights[(s.first+s.owed-1)%len(s.flights)].drafts > 0
}

// draftable is how many tokens may be drafted beside the requests that run.
func (s *Scheduler) draftable() int {
	if s.config.Draft.Tokens == 0 {
		return 0
	}
	return max(0, s.config.Draft.Rows-len(s.running))
}

// draft guesses tokens of a request that is about to go on from one that it has just got: no more
// than can be of its output.
func (s *Scheduler) draft(t *turn, r *Request) {
	if t.drafts == 0 || r.length() <= r.sent {
		return
	}
	n := min(t.drafts, int(r.Params.MaxTokens)-(r.length()-r.prompt), s.config.MaxModelLen-r.length())
	r.drafts = r.drafter.Draft(r.drafts[:0], r.tokens, r.pending, n-1, &s.config.Draft)
	t.drafts -= len(r.drafts)
}

// checkRun returns an error unless a run is what a row can have sampled: drafts, and then what was
// no draft, or came after them all.
func (e *entry) checkRun(run []int32) error {
	if len(run) < 1 || len(run) > 1+e.drafts {
		return fmt.Errorf("has %d tokens for slot %d, 1 is due and %d more may be", len(run), e.slot,
			e.drafts)
	}
	last := len(run) - 1
	if !slices.Equal(run[:last], e.request.drafts[:last]) {
		return fmt.Errorf("has tokens %v for slot %d, whose drafts are %v", run, e.slot,
			e.request.drafts)
	}
	if t := run[last]; t < sample.Spent || t <= sample.Pending && e.request.Constraint.Kind == 0 {
		return fmt.Errorf("has token %d for slot %d", t, e.slot)
	}
	return nil
}

// verified takes back what was planned for drafts that were not sampled.
func (s *Scheduler) verified(e *entry, run []int32) {
	if e.drafts == 0 {
		return
	}
	q, right := e.request, max(0, len(run)-1)
	q.drafts = q.drafts[:0]
	q.drafter.Verified(e.drafts, right)
	s.drafted.Drafts++
	s.drafted.Tokens += uint64(e.drafts)
	s.drafted.Accepted += uint64(right)
	for i := range right {
		s.drafted.Positions[i]++
	}
	if q.running {
		q.computed -= e.drafts - right
		s.cache.Shrink(&q.seq, q.computed)
	}
}
