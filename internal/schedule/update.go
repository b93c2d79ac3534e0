package schedule

import (
	"fmt"

	"github.com/eagleray/eagleray/internal/sample"
	"github.com/eagleray/eagleray/internal/step"
)

// Check returns an error unless r is a complete answer to the plan under way: its number, and one token, not
// negative, for each request that samples, in the plan's order. Update relies on it: a request whose token is
// missing would wait for it for ever.
func (s *Scheduler) Check(r *step.Result) error {
	if s.flight.plan == 0 {
		return fmt.Errorf("schedule: result of plan %d, but no plan is under way", r.Plan)
	}
	if r.Plan != s.flight.plan {
		return fmt.Errorf("schedule: result of plan %d, but plan %d is under way", r.Plan, s.flight.plan)
	}
	if len(r.Slot) != len(r.Token) {
		return fmt.Errorf("schedule: result of plan %d has %d slots and %d tokens", r.Plan, len(r.Slot), len(r.Token))
	}
	i := 0
	for _, f := range s.flight.entries {
		if !f.samples {
			continue
		}
		if i == len(r.Slot) || r.Slot[i] != f.slot {
			return fmt.Errorf("schedule: result of plan %d lacks the token of slot %d at index %d", r.Plan, f.slot, i)
		}
		if r.Token[i] < 0 {
			return fmt.Errorf("schedule: result of plan %d has token %d for slot %d", r.Plan, r.Token[i], f.slot)
		}
		i++
	}
	if i != len(r.Slot) {
		return fmt.Errorf("schedule: result of plan %d has %d tokens, %d were due", r.Plan, len(r.Slot), i)
	}
	return nil
}

// Update applies the result of the plan under way, which has passed Check: it appends the sampled tokens, ends
// the requests that stop, and appends to out one Output per request that has something new, in the order of the
// plan. The result of any other plan (one from before PreemptAll) changes nothing. Requests aborted since the
// plan was made have no Output.
func (s *Scheduler) Update(r *step.Result, out []Output) []Output {
	if s.flight.plan == 0 || r.Plan != s.flight.plan {
		return out
	}
	var sampled, logprobs, prompts int // how far each list of r is used
	ended := false
	for _, f := range s.flight.entries {
		o := Output{Key: f.request.key, Token: NoToken, StopToken: -1, Cached: f.request.cached}
		if prompts < len(r.PromptLogprobs) && r.PromptLogprobs[prompts].Slot == f.slot {
			o.PromptLogprobs = f.request.report(&r.PromptLogprobs[prompts])
			prompts++
		}
		if f.samples && sampled < len(r.Slot) && r.Slot[sampled] == f.slot {
			o.Token = r.Token[sampled]
			sampled++
			if logprobs < len(r.Logprobs) && r.Logprobs[logprobs].Slot == f.slot {
				o.Logprobs = &r.Logprobs[logprobs]
				logprobs++
			}
		}
		if f.request.done || o.Token == NoToken && o.PromptLogprobs == nil {
			continue
		}
		if o.Token != NoToken {
			f.request.tokens = append(f.request.tokens, o.Token)
			o.Finish, o.StopToken = f.request.stop(s.config.MaxModelLen)
			if o.Finish != sample.Unfinished {
				s.freed = append(s.freed, f.slot)
				s.end(f.request)
				ended = true
			}
		}
		out = append(out, o)
	}
	s.flight.clear()
	if ended {
		s.removeDone()
	}
	return out
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

// report cuts from p what has been reported before (a preempted request computes its prompt again) and returns
// the rest, nil if nothing is left.
func (r *request) report(p *step.PromptLogprobs) *step.PromptLogprobs {
	if r.params.PromptLogprobs == sample.NoLogprobs {
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
