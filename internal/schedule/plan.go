package schedule

import (
	"slices"
	"sort"

	"github.com/eagleray/eagleray/internal/step"
)

// Schedule fills p with the next step and returns true, or returns false when there is nothing to compute and
// nothing to free. It overwrites p and reuses its memory; slices inside NewRequest.Params belong to the request
// and must not be written to.
//
// Requests that run come first, in order, then waiting ones as long as tokens, slots and blocks last. When
// blocks run out, the last running request gives its own up and waits again. While that happens nobody is let
// in.
func (s *Scheduler) Schedule(p *step.Plan) bool {
	reset(p)
	p.Free = append(p.Free, s.freed...)
	s.slots = append(s.slots, s.freed...)
	s.freed = s.freed[:0]

	budget, preempted := s.advance(p)
	if !preempted {
		s.admit(p, budget)
	}
	if len(p.Slot) == 0 && len(p.Free) == 0 {
		return false
	}
	s.plans++
	p.ID = s.plans
	s.flight.plan = p.ID
	return true
}

func reset(p *step.Plan) {
	p.ID = 0
	p.Free = p.Free[:0]
	p.New = p.New[:0]
	p.Slot = p.Slot[:0]
	p.Start = p.Start[:0]
	p.Count = p.Count[:0]
	p.Last = p.Last[:0]
	p.NewBlocks = p.NewBlocks[:0]
	p.Blocks = p.Blocks[:0]
}

// advance plans the running requests and returns the tokens that are left.
func (s *Scheduler) advance(p *step.Plan) (budget int, preempted bool) {
	budget = s.config.MaxTokens
	for i := 0; i < len(s.running); i++ {
		r := s.running[i]
		// One token is kept for each request after this one: a long prompt does not stall those that
		// decode. MaxTokens >= MaxSeqs leaves at least one here.
		n := s.limit(len(r.tokens)-r.computed, budget-(len(s.running)-1-i))
		if n < 1 {
			continue // its next token is not known yet
		}
		held := len(r.seq.Blocks())
		for !s.cache.Grow(&r.seq, r.tokens, r.computed+n) {
			preempted = true
			s.preemptLast(p)
			if len(s.running) == i {
				return budget, true
			}
		}
		s.plan(p, r, n, held)
		budget -= n
	}
	return budget, preempted
}

// limit cuts a number of tokens to compute to what is left and to the limit of long prompts.
func (s *Scheduler) limit(n, left int) int {
	if s.config.LongPrefillTokens > 0 {
		n = min(n, s.config.LongPrefillTokens)
	}
	return min(n, left)
}

// preemptLast puts the last running request back to wait. Its slot may be used again in this very plan,
// because workers obey Free before New.
func (s *Scheduler) preemptLast(p *step.Plan) {
	last := len(s.running) - 1
	r := s.running[last]
	s.running[last] = nil
	s.running = s.running[:last]
	p.Free = append(p.Free, r.slot)
	s.slots = append(s.slots, r.slot)
	s.requeue(r)
}

// admit lets waiting requests run. The first that does not fit keeps those behind it out: a small request
// never overtakes a large one for ever.
func (s *Scheduler) admit(p *step.Plan, budget int) {
	for budget > 0 && len(s.waiting) > 0 && len(s.running) < s.config.MaxSeqs {
		r := s.waiting[0]
		hit := s.cache.Match(&r.seq, r.tokens)
		n := s.limit(len(r.tokens)-hit, budget)
		if !s.config.ChunkedPrefill && n < len(r.tokens)-hit {
			return
		}
		if !s.cache.Start(&r.seq, r.tokens, hit) {
			return
		}
		s.waiting.remove(0)
		s.start(r, hit)
		introduce(p, r)
		// Start has made sure of the blocks of all tokens, these are some of them.
		s.cache.Grow(&r.seq, r.tokens, hit+n)
		s.plan(p, r, n, hit/s.config.BlockSize)
		budget -= n
	}
}

// start makes a waiting request a running one with hit tokens computed.
func (s *Scheduler) start(r *request, hit int) {
	if r.cached < 0 {
		r.cached = hit
		room := min(int(r.params.MaxTokens), s.config.MaxModelLen-r.prompt, reserveTokens)
		r.tokens = append(make([]int32, 0, r.prompt+room), r.tokens...)
		s.cache.Reserve(&r.seq, s.cache.BlocksFor(r.prompt+room))
	}
	r.computed, r.told, r.running = hit, len(r.tokens), true
	r.slot = s.slots[len(s.slots)-1]
	s.slots = s.slots[:len(s.slots)-1]
	at := sort.Search(len(s.running), func(i int) bool { return r.before(s.running[i]) })
	s.running = slices.Insert(s.running, at, r)
}

// introduce tells the workers of a request that starts, with the blocks of its prefix hit.
func introduce(p *step.Plan, r *request) {
	n := len(p.New)
	if n < cap(p.New) {
		p.New = p.New[:n+1]
	} else {
		p.New = append(p.New, step.NewRequest{})
	}
	q := &p.New[n]
	q.Slot, q.PromptLen, q.Params = r.slot, uint32(r.prompt), *r.params
	q.Tokens = append(q.Tokens[:0], r.tokens...)
	q.Blocks = append(q.Blocks[:0], r.seq.Blocks()...)
}

// plan adds the next n tokens of a request, whose first held blocks the workers know.
func (s *Scheduler) plan(p *step.Plan, r *request, n, held int) {
	blocks := r.seq.Blocks()[held:]
	end := r.computed + n
	samples := end == len(r.tokens)
	last := int32(-1)
	if samples && end > r.told {
		last = r.tokens[end-1]
	}
	p.Slot = append(p.Slot, r.slot)
	p.Start = append(p.Start, uint32(r.computed))
	p.Count = append(p.Count, uint32(n))
	p.Last = append(p.Last, last)
	p.NewBlocks = append(p.NewBlocks, uint32(len(blocks)))
	p.Blocks = append(p.Blocks, blocks...)
	r.computed = end
	s.flight.entries = append(s.flight.entries, flying{request: r, slot: r.slot, samples: samples})
}
