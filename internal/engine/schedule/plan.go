package schedule

import (
	"slices"
	"sort"

	"github.com/eagleray/eagleray/internal/link/step"
)

// Schedule fills p with the next step and returns true. It returns false when Config.MaxInFlight
// plans await their results, when there is nothing to free and nothing to compute, and when nothing
// can be computed before the next result. It overwrites p and reuses its memory; slices inside
// NewRequest.Params belong to the request and must not be written to.
//
// Requests that run come first, in order, then waiting ones as long as tokens, slots and blocks
// last. When blocks run out, the last running request gives its own up and waits again; in the plan
// where that happens no request starts. Those in the background come after all others, and give up
// their slots and blocks for them.
//
// With several stages a request whose token is on its way is planned again at the earliest as many
// plans later, when the first stage can have that token, and a plan takes at most its share of the
// requests that decode: then as many plans as there are stages divide them among themselves. A
// caller that makes plans until it gets false, and only then applies a result, leaves none out for
// longer.
func (s *Scheduler) Schedule(p *step.Plan) bool {
	reset(p)
	if s.owed == len(s.flights) || s.awaitsDrafts() {
		return false
	}
	s.cache.Plan(s.plans + 1)
	f := &s.flights[(s.first+s.owed)%len(s.flights)]
	p.Free = append(p.Free, s.freed...)
	s.slots = append(s.slots, s.freed...)
	s.freed = s.freed[:0]

	stages := s.config.Stages
	t := turn{plan: p, flight: f, budget: s.config.Budget(),
		decodes: (len(s.running) + stages - 1) / stages, drafts: s.draftable()}
	t.guesses = t.drafts
	s.regroup(&t)
	s.advance(&t, false)
	if !t.preempted {
		s.admit(&t, false)
	}
	s.advance(&t, true)
	if !t.preempted && s.waiting.len() == s.waiting.background && s.nextFetched(false) == nil {
		s.admit(&t, true)
	}
	if len(p.Rows) == 0 && !t.preempted {
		if s.owed > 0 {
			s.record(p)
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

// record takes the freed slots back out of a plan that would do nothing but free them, while others
// are in flight: they can wait for one that computes.
func (s *Scheduler) record(p *step.Plan) {
	s.freed = append(s.freed, p.Free...)
	s.slots = s.slots[:len(s.slots)-len(p.Free)]
	p.Free = p.Free[:0]
}

func reset(p *step.Plan) {
	p.ID = 0
	p.Free = p.Free[:0]
	p.New = p.New[:0]
	p.Rows = p.Rows[:0]
	p.Blocks, p.Drafts, p.Guess = p.Blocks[:0], p.Drafts[:0], p.Guess[:0]
	p.Restore, p.Save = p.Restore[:0], p.Save[:0]
}

// turn is a plan that is being made.
type turn struct {
	plan   *step.Plan
	flight *flight
	// budget is how many tokens are left, decodes how many requests may still decode.
	budget, decodes int
	// drafts is how many tokens may still be drafted, guesses how many the draft model may still
	// be asked for.
	drafts, guesses int
	// at is how many running requests have been seen to.
	at int
	// preempted says that some gave up their blocks.
	preempted bool
}

// advance plans the running requests that have not been seen to, those in the background only if
// that is asked for.
func (s *Scheduler) advance(t *turn, background bool) {
	for ; t.at < len(s.running); t.at++ {
		r := s.running[t.at]
		if r.Background && !background {
			return
		}
		if r.planned(s.config.MaxModelLen) || r.onItsWay(s.plans+1, s.config.Stages) ||
			len(r.drafts) > 0 || r.asked {
			continue
		}
		if r.length()-r.computed == 1 {
			if t.decodes == 0 {
				continue
			}
			t.decodes--
			s.draft(t, r)
		}
		// One token is kept for each request after this one: a long prompt does not stall those
		// that decode. MaxTokens >= MaxSeqs leaves at least one here.
		n := s.limit(r.length()+len(r.drafts)-r.computed, t.budget-(len(s.running)-1-t.at))
		n = s.toBorder(r.sent, r.computed, n)
		s.slide(r)
		for !s.cache.Grow(&r.seq, r.tokens, r.computed+n) {
			if len(r.drafts) > 0 && n > 1 {
				n = 1 // a guess takes no other's blocks
				continue
			}
			if s.cache.Slide(&r.seq, r.computed) {
				continue // what was held back to hand it over
			}
			t.preempted = true
			s.preemptLast(t.plan)
			if len(s.running) == t.at {
				return
			}
		}
		s.plan(t, r, n)
		t.budget -= n
	}
}

// slide gives up the blocks of a request that no position still to be computed reads, here or where
// its blocks go to: what is stored of it ends with a full block.
func (s *Scheduler) slide(r *Request) {
	pos := r.computed
	if s.config.Offload {
		pos -= pos % s.config.BlockSize
	}
	if r.HandOver {
		pos = min(pos, s.handedOver(r))
	}
	s.cache.Slide(&r.seq, pos)
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
// are known: what it is introduced with are all its tokens. Those that have received what they
// waited for come first: they have their blocks, which no other request can take from them before
// they run.
func (s *Scheduler) admit(t *turn, background bool) {
	for t.budget > len(s.running)-t.at {
		var r *Request
		if !s.gathers() {
			r = s.nextFetched(background)
		}
		if r == nil {
			r = s.waiting.next(t.at, s.config.MaxSeqs, background)
		}
		if r == nil || r.pending > 0 {
			return
		}
		if r.Source != 0 && r.remote == unfetched {
			if !s.fetch(t, r) {
				return
			}
			continue
		}
		if s.gathers() || s.awaitsState(r) || s.awaitsAdapter(r) {
			return
		}
		hit, n := s.fit(t, r)
		if n == 0 {
			return
		}
		s.dequeue(r)
		s.start(r, hit)
		t.at++
		introduce(t.plan, r, s.cache.BlocksFor(hit))
		if state := s.cache.State(&r.seq, hit); state >= 0 {
			t.plan.Restore = append(t.plan.Restore, s.snapshot(r, state))
		}
		// fit has made sure of the blocks of all tokens, these are some of them.
		s.cache.Grow(&r.seq, r.tokens, hit+n)
		s.plan(t, r, n)
		t.budget -= n
	}
}

// awaitsAdapter tells whether a request would run with one adapter more than may be.
func (s *Scheduler) awaitsAdapter(r *Request) bool {
	if r.Adapter == 0 || s.config.MaxAdapters == 0 {
		return false
	}
	s.adapters = s.adapters[:0]
	for _, o := range s.running {
		if o.Adapter == r.Adapter {
			return false
		}
		if o.Adapter != 0 && !slices.Contains(s.adapters, o.Adapter) {
			s.adapters = append(s.adapters, o.Adapter)
		}
	}
	return len(s.adapters) >= s.config.MaxAdapters
}

// fit finds room for a waiting request: in its cache the first hit tokens are known, the next n are
// to be computed in this plan, 0 if it does not fit. Running requests that have not been seen to
// are in the background: they make room, and one token is kept for each of them that stays.
func (s *Scheduler) fit(t *turn, r *Request) (hit, n int) {
	for {
		if hit = r.computed; r.remote != fetched {
			hit = s.cache.Match(&r.seq, r.tokens)
		}
		n = s.limit(len(r.tokens)-hit, t.budget-(len(s.running)-t.at))
		n = s.toBorder(len(r.tokens), hit, n)
		if len(s.running) < s.config.MaxSeqs &&
			(s.config.ChunkedPrefill || n == len(r.tokens)-hit) &&
			(r.remote == fetched || s.cache.Start(&r.seq, r.tokens, hit, hit)) {
			return hit, n
		}
		if !s.makeRoom(t, r) {
			return 0, 0
		}
	}
}

// makeRoom takes the slot or the blocks of one in the background for a request. It returns false
// when none is left that could give any up.
func (s *Scheduler) makeRoom(t *turn, r *Request) bool {
	if len(s.running) > t.at {
		t.preempted = true
		s.preemptLast(t.plan)
		return true
	}
	o := s.nextFetched(true)
	if o == nil || r.Background || len(s.running) == s.config.MaxSeqs {
		return false
	}
	s.unqueue(o)
	s.computeHere(o)
	return true
}

// start makes a waiting request a running one with hit tokens computed.
func (s *Scheduler) start(r *Request, hit int) {
	s.turns[r.class()].now = max(s.turns[r.class()].now, r.turn)
	if !r.ran {
		r.ran, r.cached = true, hit
		s.count(r, hit)
		room := min(int(r.Params.MaxTokens), s.config.MaxModelLen-r.prompt, reserveTokens)
		r.tokens = append(make([]int32, 0, r.prompt+room), r.tokens...)
		s.cache.Reserve(&r.seq, s.cache.BlocksFor(r.prompt+room))
	}
	r.computed, r.sent, r.running = hit, len(r.tokens), true
	r.wrote = s.plans + 1
	r.slot = s.slots[len(s.slots)-1]
	s.slots = s.slots[:len(s.slots)-1]
	at := sort.Search(len(s.running), func(i int) bool { return r.outlasts(s.running[i]) })
	s.running = slices.Insert(s.running, at, r)
}

// introduce tells the ranks of a request that starts, with the blocks that have keys and values.
func introduce(p *step.Plan, r *Request, blocks int) {
	n := len(p.New)
	if n < cap(p.New) {
		p.New = p.New[:n+1]
	} else {
		p.New = append(p.New, step.NewRequest{})
	}
	q := &p.New[n]
	q.Slot, q.PromptLen, q.Params = r.slot, uint32(r.prompt), r.Params
	q.Constraint, q.Pooling, q.Second = r.Constraint, r.Pooling, r.Second
	q.Adapter = r.Adapter
	q.Tokens = append(q.Tokens[:0], r.tokens...)
	q.Blocks = append(q.Blocks[:0], r.seq.Blocks()[:blocks]...)
}

// plan adds the next n tokens of a request. The ranks know the blocks of those before.
func (s *Scheduler) plan(t *turn, r *Request, n int) {
	p, f := t.plan, t.flight
	end := r.computed + n
	r.drafts = r.drafts[:max(0, end-r.length())]
	known := end - len(r.drafts)
	blocks := r.seq.Blocks()[s.cache.BlocksFor(r.computed):s.cache.BlocksFor(end)]
	// The row is filled in place: a copy of it would wait for its bytes to be written.
	p.Rows = append(p.Rows, step.Row{})
	row := &p.Rows[len(p.Rows)-1]
	row.Slot, row.Start, row.Count = r.slot, uint32(r.computed), uint32(n)
	row.Blocks = uint16(len(blocks)) // see Config.validate
	switch {
	case known > len(r.tokens):
		row.Source = step.FromSampler
	case known > r.sent:
		row.Source, row.Last = step.FromPlan, r.tokens[known-1]
	}
	if r.computed < r.prompt {
		r.wrote = s.plans + 1
	}
	samples := known == r.length()
	if samples && r.HandOver && r.computed < r.prompt {
		s.pinAhead(r)
	}
	if row.Sample = samples; samples {
		r.pending++
		r.sampler = s.plans + 1
	}
	s.ask(t, r, samples)
	p.Blocks = append(p.Blocks, blocks...)
	p.Drafts = append(p.Drafts, r.drafts...)
	f.drafts += len(r.drafts)
	if end == s.border(r.sent) {
		if state := s.cache.Snapshot(&r.seq, end); state >= 0 {
			p.Save = append(p.Save, s.snapshot(r, state))
		}
	}
	r.computed = end
	f.entries = append(f.entries, entry{request: r, slot: r.slot, samples: samples,
		from: end - n, to: min(end, r.prompt),
		drafts: len(r.drafts)})
}
