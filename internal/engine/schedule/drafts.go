package schedule

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/draft"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Drafted counts guessed tokens since the beginning.
type Drafted struct {
	// Drafts is how many guesses there were, Tokens of how many tokens, Accepted how many of those
	// were right, Positions how many by their place in the guess.
	Drafts, Tokens, Accepted uint64
	Positions                [step.MaxDrafts]uint64
}

// Since is what was counted since an earlier moment.
func (d Drafted) Since(o *Drafted) Drafted {
	d.Drafts -= o.Drafts
	d.Tokens -= o.Tokens
	d.Accepted -= o.Accepted
	for i := range d.Positions {
		d.Positions[i] -= o.Positions[i]
	}
	return d
}

func (d *Drafted) add(o *Drafted) {
	d.Drafts += o.Drafts
	d.Tokens += o.Tokens
	d.Accepted += o.Accepted
	for i := range d.Positions {
		d.Positions[i] += o.Positions[i]
	}
}

// awaitsDrafts tells whether the newest plan in flight verifies drafts, or has some guessed. No
// other is made before its result: the requests whose drafts those are would miss a turn, for which
// few guesses make up. With stages requests take turns anyway.
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

// left is how many tokens more the output of a request may have.
func (s *Scheduler) left(r *Request) int {
	return min(int(r.Params.MaxTokens)-(r.length()-r.prompt), s.config.MaxModelLen-r.length())
}

// draft guesses tokens of a request that is about to go on from one that it has just got: no more
// than can be of its output.
func (s *Scheduler) draft(t *turn, r *Request) {
	if t.drafts == 0 || r.length() <= r.sent {
		return
	}
	n := min(t.drafts, s.left(r)-1)
	r.drafts = r.drafter.Follow(r.drafts[:0], r.forced[min(r.pending, len(r.forced)):], n)
	switch {
	case len(r.drafts) > 0:
	case s.config.Draft.Model:
		r.drafts = r.drafter.FollowModel(r.drafts, r.guessed, n)
	default:
		r.drafts = r.drafter.Draft(r.drafts, r.tokens, r.pending, n, &s.config.Draft,
			s.historyOf(r))
	}
	t.drafts -= len(r.drafts)
}

// ask has the draft model guess what comes after the tokens that a plan samples of a request, or a
// head see the request's rows. The request goes on when its guess has come.
func (s *Scheduler) ask(t *turn, r *Request, samples bool) {
	if samples {
		r.guessed = r.guessed[:0]
	}
	d, n := &s.config.Draft, 0
	if !d.Model || s.draftable() == 0 || !samples && !d.Head || !r.drafter.Try(&s.trials) {
		return
	}
	if samples {
		n = min(t.guesses, d.Tokens, s.left(r)-1, d.MaxLen-r.length()+1)
	}
	if n > 0 {
		n = r.drafter.Ask(n)
	}
	if n < 1 && !(d.Head && r.drafter.Watches(d.Rows)) {
		return
	}
	n = max(n, 0)
	r.asked = r.asked || n > 0
	t.guesses -= n
	t.flight.drafts += n
	t.plan.Guess = append(t.plan.Guess, step.Guess{Slot: r.slot, Tokens: uint32(n)})
}

// historyOf is the outputs that guesses for a request may be taken from, nil for none: who salts
// the prefix cache wants no other to see by the time of an answer what was answered before.
func (s *Scheduler) historyOf(r *Request) *draft.History {
	if r.Salt != "" {
		return nil
	}
	return s.history
}

// remember keeps the output of a request that ends for guesses about others.
func (s *Scheduler) remember(r *Request) {
	if h := s.historyOf(r); h != nil && len(r.tokens) > r.prompt {
		h.Add(r.tokens[r.prompt:])
	}
}

// checkRun returns an error unless a run is what a row can have sampled: drafts, and then what was
// no draft, or came after them all.
func (e *entry) checkRun(run []int32) error {
	if len(run) < 1 || len(run) > 1+e.drafts {
		return fmt.Errorf("has %d tokens for slot %d, 1 is due and %d more may be", len(run),
			e.slot, e.drafts)
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
	q.drafter.Verified(e.drafts, right, &s.trials)
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
