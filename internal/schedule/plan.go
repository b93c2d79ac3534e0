package schedule

import (
	"slices"
	"sort"

	"github.com/eagleray/eagleray/internal/step"
)

// Schedule fills p with the next step and returns true. It returns false when Config.MaxInFlight
// plans await their results, when there is nothing to free and nothing to compute, and when nothing
// can be computed before the next result. It overwrites p and reuses its memory; slices inside
// NewRequest.Params belong to the request and must not be written to.
//
// Requests that run come first, in order, then waiting ones as long as tokens, slots and blocks
// last. When blocks run out, the last running request gives its own up and waits again; in the plan
// where that happens no request starts.
//
// With several stages a request whose token is on its way is planned again at the earliest as many
// plans later, when the first stage can have that token, and a plan takes at most its share of the
// requests that decode: then as many plans as there are stages divide them among themselves. A
// caller that makes plans until it gets false, and only then applies a result, leaves none out for
// longer.
func (s *Scheduler) Schedule(p *step.Plan) bool {
	reset(p)
	if s.owed == len(s.flights) {
		return false
	}
	s.cache.Plan(s.plans + 1)
	f := &s.flights[(s.first+s.owed)%len(s.flights)]
	p.Free = append(p.Free, s.freed...)
	s.slots = append(s.slots, s.freed...)
	s.freed = s.freed[:0]

	budget, preempted := s.advance(p, f)
	if !preempted {
		s.admit(p, f, budget)
	}
	if len(p.Rows) == 0 && !preempted {
		if s.owed > 0 {
			s.keep(p)
		}
		if len(p.Free) == 0 {
			return false
		}
	}
	s.plans++
	p.ID = s.plans
	f.plan = p.ID
	s.owed++
	return true
}

// keep takes the freed slots back out of a plan that would do nothing but free them, while others
// are in flight: they can wait for one that computes.
func (s *Scheduler) keep(p *step.Plan) {
	s.freed = append(s.freed, p.Free...)
	s.slots = s.slots[:len(s.slots)-len(p.Free)]
	p.Free = p.Free[:0]
}

func reset(p *step.Plan) {
	p.ID = 0
	p.Free = p.Free[:0]
	p.New = p.New[:0]
	p.Rows = p.Rows[:0]
	p.Blocks = p.Blocks[:0]
}

// advance plans the running requests and returns the tokens that are left.
func (s *Scheduler) advance(p *step.Plan, f *flight) (budget int, preempted bool) {
	budget = s.config.budget()
	stages := s.config.Stages
	decodes := (len(s.running) + stages - 1) / stages // how many may decode
	for i := 0; i < len(s.running); i++ {
		r := s.running[i]
		if r.planned(s.config.MaxModelLen) || r.onItsWay(s.plans+1, stages) {
			continue
		}
		if r.length()-r.computed == 1 {
			if decodes == 0 {
				continue
			}
			decodes--
		}
		// One token is kept for each request after this one: a long prompt does not stall those
		// that decode. MaxTokens >= MaxSeqs leaves at least one here.
		n := s.limit(r.length()-r.computed, budget-(len(s.running)-1-i))
		held := len(r.seq.Blocks())
		for !s.cache.Grow(&r.seq, r.tokens, r.computed+n) {
			preempted = true
			s.preemptLast(p)
			if len(s.running) == i {
				return budget, true
			}
		}
		s.plan(p, f, r, n, held)
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

// preemptLast puts the last running request back to wait. Its slot may be used again in this very
// plan: see the order in which ranks apply a step.Plan. Tokens of it that plans in flight sample
// are kept when they come.
func (s *Scheduler) preemptLast(p *step.Plan) {
	last := len(s.running) - 1
	r := s.running[last]
	s.running[last] = nil
	s.running = s.running[:last]
	p.Free = append(p.Free, r.slot)
	s.slots = append(s.slots, r.slot)
	s.requeue(r)
}

// admit lets waiting requests run. The first that does not fit keeps those behind it out: a small
// request never overtakes a large one for ever. So does a preempted one until its tokens in flight
// are known: what it is introduced with are all its tokens.
func (s *Scheduler) admit(p *step.Plan, f *flight, budget int) {
	for budget > 0 {
		r := s.waiting.next(len(s.running), s.config.MaxSeqs)
		if r == nil || r.pending > 0 {
			return
		}
		hit := s.cache.Match(&r.seq, r.tokens)
		n := s.limit(len(r.tokens)-hit, budget)
		if !s.config.ChunkedPrefill && n < len(r.tokens)-hit {
			return
		}
		if !s.cache.Start(&r.seq, r.tokens, hit) {
			return
		}
		s.unwait(r)
		s.start(r, hit)
		introduce(p, r)
		// Start has made sure of the blocks of all tokens, these are some of them.
		s.cache.Grow(&r.seq, r.tokens, hit+n)
		s.plan(p, f, r, n, hit/s.config.BlockSize)
		budget -= n
	}
}

// start makes a waiting request a running one with hit tokens computed.
func (s *Scheduler) start(r *Request, hit int) {
	s.turns.now = max(s.turns.now, r.turn)
	if !r.ran {
		r.ran, r.cached = true, hit
		room := min(int(r.Params.MaxTokens), s.config.MaxModelLen-r.prompt, reserveTokens)
		r.tokens = append(make([]int32, 0, r.prompt+room), r.tokens...)
		s.cache.Reserve(&r.seq, s.cache.BlocksFor(r.prompt+room))
	}
	r.computed, r.sent, r.running = hit, len(r.tokens), true
	r.slot = s.slots[len(s.slots)-1]
	s.slots = s.slots[:len(s.slots)-1]
	at := sort.Search(len(s.running), func(i int) bool { return r.outlasts(s.running[i]) })
	s.running = slices.Insert(s.running, at, r)
}

// introduce tells the ranks of a request that starts, with the blocks of its prefix hit.
func introduce(p *step.Plan, r *Request) {
	n := len(p.New)
	if n < cap(p.New) {
		p.New = p.New[:n+1]
	} else {
		p.New = append(p.New, step.NewRequest{})
	}
	q := &p.New[n]
	q.Slot, q.PromptLen, q.Params = r.slot, uint32(r.prompt), r.Params
	q.Constraint, q.Pooling = r.Constraint, r.Pooling
	q.Tokens = append(q.Tokens[:0], r.tokens...)
	q.Blocks = append(q.Blocks[:0], r.seq.Blocks()...)
}

// plan adds the next n tokens of a request, whose first held blocks the ranks know.
func (s *Scheduler) plan(p *step.Plan, f *flight, r *Request, n, held int) {
	blocks := r.seq.Blocks()[held:]
	end := r.computed + n
	// The row is filled in place: a copy of it would wait for its bytes to be written.
	p.Rows = append(p.Rows, step.Row{})
	row := &p.Rows[len(p.Rows)-1]
	row.Slot, row.Start, row.Count = r.slot, uint32(r.computed), uint32(n)
	row.Blocks = uint16(len(blocks)) // see Config.validate
	switch {
	case end > len(r.tokens):
		row.Source = step.FromSampler
	case end > r.sent:
		row.Source, row.Last = step.FromPlan, r.tokens[end-1]
	}
	samples := end == r.length()
	if row.Sample = samples; samples {
		r.pending++
		r.sampler = s.plans + 1
	}
	p.Blocks = append(p.Blocks, blocks...)
	r.computed = end
	f.entries = append(f.entries, entry{request: r, slot: r.slot, samples: samples})
}
