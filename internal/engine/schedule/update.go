package schedule

import (
	"fmt"
	"math"
	"slices"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Check returns an error unless r is a complete answer to the oldest plan in flight: its number,
// and one token, or what sample has for none, for each request that samples, in the plan's order,
// after the drafts that were right. Update relies on it: a request whose token is missing would
// wait for it for ever.
func (s *Scheduler) Check(r *step.Result) error {
	if s.owed == 0 {
		return fmt.Errorf("schedule: result of plan %d, but no plan is under way", r.Plan)
	}
	f := &s.flights[s.first]
	if r.Plan != f.plan {
		return fmt.Errorf("schedule: result of plan %d, but plan %d is under way", r.Plan, f.plan)
	}
	if len(r.Slot) != len(r.End) {
		return wrong(r, "has %d slots and %d runs", len(r.Slot), len(r.End))
	}
	i := 0
	for _, e := range f.entries {
		if !e.samples {
			continue
		}
		if i == len(r.Slot) || r.Slot[i] != e.slot {
			return wrong(r, "lacks the token of slot %d at index %d", e.slot, i)
		}
		if err := e.checkRun(r.Run(i)); err != nil {
			return wrong(r, "%w", err)
		}
		i++
	}
	if i != len(r.Slot) {
		return wrong(r, "is for %d slots, %d were due", len(r.Slot), i)
	}
	return nil
}

func wrong(r *step.Result, format string, args ...any) error {
	return fmt.Errorf("schedule: result of plan %d "+format, append([]any{r.Plan}, args...)...)
}

// Update applies the result of the oldest plan in flight, which has passed Check: it appends the
// sampled tokens, ends the requests that stop, and appends to out one Output per request that has
// something new, in the order of the plan. The result of any other plan (one from before
// PreemptAll) changes nothing. Requests that have ended since the plan was made have no Output;
// those preempted since have.
func (s *Scheduler) Update(r *step.Result, out []Output) []Output {
	if s.owed == 0 || r.Plan != s.flights[s.first].plan {
		return out
	}
	var runs, logprobs, prompts, pooled, forced, guessed int // how far each list of r is used
	ended := false
	for i := range s.flights[s.first].entries {
		e := &s.flights[s.first].entries[i]
		q, pending := e.request, false
		out = append(out, Output{})
		o := &out[len(out)-1]
		o.Key, o.Owner, o.Place, o.StopToken, o.Cached = q.Key, q.Owner, q.place, -1, q.cached
		if prompts < len(r.PromptLogprobs) && r.PromptLogprobs[prompts].Slot == e.slot {
			o.PromptLogprobs = q.report(&r.PromptLogprobs[prompts])
			prompts++
		}
		if n := e.to - max(e.from, q.prompted); n > 0 {
			s.prompted += uint64(n)
			q.prompted = e.to
		}
		if e.samples {
			q.pending--
			if runs < len(r.Slot) && r.Slot[runs] == e.slot {
				o.Tokens = r.Run(runs)
				runs++
				o.Logprobs = logprobsOf(r.Logprobs[logprobs:], e.slot, len(o.Tokens))
				logprobs += len(o.Logprobs)
				if pooled < len(r.Pooled) && r.Pooled[pooled].Slot == e.slot {
					o.Pooled = r.Pooled[pooled].Vector
					pooled++
				}
				q.forced = q.forced[:0]
				if forced < len(r.Forced) && r.Forced[forced].Slot == e.slot {
					q.forced = append(q.forced, r.Forced[forced].Tokens...)
					forced++
				}
				q.guessed, q.asked = q.guessed[:0], false
				if guessed < len(r.Guessed) && r.Guessed[guessed].Slot == e.slot {
					q.guessed = append(q.guessed, r.Guessed[guessed].Tokens...)
					guessed++
				}
				o.Guessed = e.drafts
				s.verified(e, o.Tokens)
				if n := len(o.Tokens) - 1; n >= 0 && o.Tokens[n] == sample.Pending {
					o.Tokens, o.Logprobs = o.Tokens[:n], o.Logprobs[:min(n, len(o.Logprobs))]
					pending = true
				}
			}
		}
		switch {
		case q.done || len(o.Tokens) == 0 && o.PromptLogprobs == nil:
			out = out[:len(out)-1]
		case len(o.Tokens) > 0:
			ended = s.accept(q, o) || ended
			s.sampled += uint64(len(o.Tokens))
		}
		if pending {
			s.again(q)
		}
	}
	s.applied = r.Plan
	s.land()
	if ended {
		s.removeDone()
	}
	return out
}

// accept gives a request its tokens and returns whether they end one that runs.
func (s *Scheduler) accept(q *Request, o *Output) (ended bool) {
	n, finish, stop := q.accept(o.Tokens, s.config.MaxModelLen)
	s.tokens += n
	if finish == sample.FinishError {
		o.Fault = o.Tokens[n]
	}
	o.Tokens, o.Finish, o.StopToken = o.Tokens[:n], finish, stop
	o.Logprobs = o.Logprobs[:min(n, len(o.Logprobs))]
	if finish != sample.Unfinished {
		ended = q.running
		if q.HandOver && ended && finish != sample.FinishError {
			o.HandOver = s.pin(q)
		}
		if finish == sample.FinishError {
			// Its keys and values may be what is wrong.
			q.invalidated, q.offered = s.invalidated, math.MaxInt
		}
		s.end(q)
		return ended
	}
	if q.running && len(q.tokens)-n == q.prompt {
		s.store(q, q.prompt/s.config.BlockSize)
	}
	if q.running {
		// Plans made so far compute new tokens too, and could not name what those fill.
		s.cache.Plan(s.plans)
		s.cache.Cache(&q.seq, q.tokens, min(q.computed, len(q.tokens)))
	}
	return false
}

// again preempts a request whose token could not be chosen yet. What plans in flight choose after
// it is not chosen either.
func (s *Scheduler) again(q *Request) {
	if !q.running {
		return
	}
	s.deferred++
	i := slices.Index(s.running, q)
	s.running = slices.Delete(s.running, i, i+1)
	s.freed = append(s.freed, q.slot)
	s.requeue(q)
}

// logprobsOf returns the first entries of list that are of slot, at most n, nil for none.
func logprobsOf(list []step.Logprobs, slot uint32, n int) []step.Logprobs {
	i := 0
	for i < min(n, len(list)) && list[i].Slot == slot {
		i++
	}
	if i == 0 {
		return nil
	}
	return list[:i]
}

func (s *Scheduler) removeDone() {
	kept := s.running[:0]
	for _, r := range s.running {
		if !r.done {
			kept = append(kept, r)
		}
	}
	clear(s.running[len(kept):])
	s.running = kept
}

// report cuts from p what has been reported before (a preempted request computes its prompt again)
// and returns the rest, nil if nothing is left.
func (r *Request) report(p *step.PromptLogprobs) *step.PromptLogprobs {
	if r.Params.PromptLogprobs == sample.NoLogprobs {
		return nil
	}
	end := p.Start + uint32(len(p.Entries))
	if end <= r.reported {
		return nil
	}
	if p.Start < r.reported {
		p.Entries = p.Entries[r.reported-p.Start:]
		p.Start = r.reported
	}
	r.reported = end
	return p
}
