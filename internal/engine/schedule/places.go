package schedule

import (
	"slices"

	"github.com/eagleray/eagleray/internal/engine/kvcache"
	"github.com/eagleray/eagleray/internal/link/step"
)

// Places divides requests among places, each with slots, blocks and a budget of tokens of its own,
// whose ranks step together: the engines of data parallel attention, which share the experts of
// mixtures. Any other engine is one place. Each has a Scheduler; a plan is what all plan at a time.
// Places that have nothing to do then have no rows, and their ranks take part all the same; when
// none has, there is no plan. Slots tell the places apart: those of place p are MaxSeqs·p and the
// following ones; block and state numbers are a place's own, plan numbers those of the plans of
// all.
//
// A request goes to the place with the fewest tokens: those of its unfinished requests, prompts and
// outputs, and of the new prompt what its prefix cache lacks, or will lack when what is fetched for
// others has come. (vLLM's router counts requests.)
type Places struct {
	of      []*Scheduler
	slots   int      // of each
	parts   []part   // of the plan or the result at hand
	flights []joined // that await their results, a ring as Scheduler.flights
	first   int
	owed    int
	plans   uint64
	applied uint64
	config  Config
	before  Stats // counters of places that are gone
}

// part is one place's share of a plan, and of its result.
type part struct {
	plan   step.Plan
	result step.Result
}

// joined is a plan that awaits its result, and which places have a part in it.
type joined struct {
	plan uint64
	of   []bool
}

// NewPlaces returns empty schedulers of a configuration for so many places.
func NewPlaces(c Config, places int) (*Places, error) {
	p := &Places{config: c, slots: c.MaxSeqs, parts: make([]part, places),
		flights: make([]joined, max(1, c.MaxInFlight))}
	for i := range places {
		c.place = i
		s, err := New(c)
		if err != nil {
			return nil, err
		}
		p.of = append(p.of, s)
	}
	for i := range p.flights {
		p.flights[i].of = make([]bool, places)
	}
	return p, nil
}

// Add lets a request wait for its turn at a place: see Scheduler.Add.
func (p *Places) Add(r *Request) {
	p.place(r, r.Prompt).Add(r)
}

// place is where a request with such tokens goes.
func (p *Places) place(r *Request, tokens []int32) *Scheduler {
	best, least := p.of[0], 0
	if len(p.of) == 1 {
		return best // whose cache need not be searched
	}
	for i, s := range p.of {
		seq := kvcache.NewSequence(r.CacheSalt(), r.computesAll())
		cost := s.tokens + len(tokens) - max(s.cache.Match(&seq, tokens), s.expected(r))
		if i == 0 || cost < least {
			best, least = s, cost
		}
	}
	return best
}

// Place is where an unfinished request is; it is not ok for one that is not known.
func (p *Places) Place(key uint64) (place int, ok bool) {
	for i, s := range p.of {
		if s.requests[key] != nil {
			return i, true
		}
	}
	return 0, false
}

// Abort is Scheduler.Abort.
func (p *Places) Abort(key uint64) bool {
	i, ok := p.Place(key)
	return ok && p.of[i].Abort(key)
}

// Schedule is Scheduler.Schedule for all places.
func (p *Places) Schedule(plan *step.Plan) bool {
	reset(plan)
	if p.owed == len(p.flights) || slices.ContainsFunc(p.of, (*Scheduler).awaitsDrafts) {
		return false
	}
	f, made := &p.flights[(p.first+p.owed)%len(p.flights)], false
	for i, s := range p.of {
		own := &p.parts[i].plan
		s.plans = p.plans
		if f.of[i] = s.Schedule(own); !f.of[i] {
			continue
		}
		made = true
		plan.Free = append(plan.Free, own.Free...)
		plan.New = append(plan.New, own.New...) // whose memory stays the part's until its next plan
		plan.Rows = append(plan.Rows, own.Rows...)
		plan.Blocks = append(plan.Blocks, own.Blocks...)
		plan.Drafts = append(plan.Drafts, own.Drafts...)
		plan.Guess = append(plan.Guess, own.Guess...)
		plan.Restore = append(plan.Restore, own.Restore...)
		plan.Save = append(plan.Save, own.Save...)
	}
	if !made {
		return false
	}
	p.plans++
	plan.ID, f.plan = p.plans, p.plans
	p.owed++
	return true
}

// Check is Scheduler.Check: what is not of a place that the plan was for is wrong.
func (p *Places) Check(r *step.Result) error {
	if p.owed == 0 || r.Plan != p.flights[p.first].plan {
		due := uint64(0)
		if p.owed > 0 {
			due = p.flights[p.first].plan
		}
		return wrong(r, "came, due is that of plan %d (0 for none)", due)
	}
	if len(r.Slot) != len(r.End) {
		return wrong(r, "has %d slots and %d runs", len(r.Slot), len(r.End))
	}
	f, rest := &p.flights[p.first], p.cut(r)
	if rest > 0 {
		return wrong(r, "has %d slots out of order", rest)
	}
	for i, s := range p.of {
		own := &p.parts[i].result
		if !f.of[i] {
			if len(own.Slot) > 0 {
				return wrong(r, "is for slot %d, whose place had no part in the plan", own.Slot[0])
			}
			continue
		}
		if err := s.Check(own); err != nil {
			return err
		}
	}
	return nil
}

// cut makes the places' results of one, and returns how many of its slots are left over.
func (p *Places) cut(r *step.Result) (rest int) {
	f := &p.flights[p.first]
	var slots, logprobs, prompts, pooled, forced, guessed int // how far each list is cut
	for i := range p.of {
		own := &p.parts[i].result
		own.Reset(f.plan)
		mine := func(slot uint32) bool { return int(slot)/p.slots == i }
		from := slots
		for ; slots < len(r.Slot) && mine(r.Slot[slots]); slots++ {
			own.End = append(own.End, r.End[slots])
		}
		own.Slot = r.Slot[from:slots:slots]
		if from < slots {
			first := uint32(0)
			if from > 0 {
				first = r.End[from-1]
			}
			own.Token = r.Token[first:r.End[slots-1]]
			for j := range own.End {
				own.End[j] -= first
			}
		}
		own.Logprobs, logprobs = run(r.Logprobs, logprobs,
			func(l *step.Logprobs) bool { return mine(l.Slot) })
		own.PromptLogprobs, prompts = run(r.PromptLogprobs, prompts,
			func(l *step.PromptLogprobs) bool { return mine(l.Slot) })
		own.Pooled, pooled = run(r.Pooled, pooled,
			func(l *step.Pooled) bool { return mine(l.Slot) })
		own.Forced, forced = run(r.Forced, forced,
			func(l *step.Drafts) bool { return mine(l.Slot) })
		own.Guessed, guessed = run(r.Guessed, guessed,
			func(l *step.Drafts) bool { return mine(l.Slot) })
	}
	return len(r.Slot) - slots
}

// run is those from one on that are a place's, and where those of the next begin.
func run[E any](list []E, from int, mine func(*E) bool) ([]E, int) {
	to := from
	for to < len(list) && mine(&list[to]) {
		to++
	}
	return list[from:to:to], to
}

// Update is Scheduler.Update: of the result the parts are used that Check has made.
func (p *Places) Update(r *step.Result, out []Output) []Output {
	if p.owed == 0 || r.Plan != p.flights[p.first].plan {
		return out
	}
	f := &p.flights[p.first]
	for i, s := range p.of {
		if f.of[i] {
			out = s.Update(&p.parts[i].result, out)
		}
	}
	p.applied = r.Plan
	p.land()
	return out
}

func (p *Places) land() {
	f := &p.flights[p.first]
	f.plan = 0
	clear(f.of)
	p.first = (p.first + 1) % len(p.flights)
	p.owed--
}

// Resize makes the places so many, after PreemptAll: no request runs. Those that wait are divided
// again, in their order.
func (p *Places) Resize(places int) error {
	if places == len(p.of) {
		return nil
	}
	next, err := NewPlaces(p.config, places)
	if err != nil {
		return err
	}
	next.plans, next.applied, next.before = p.plans, p.applied, p.Stats()
	next.before.Waiting, next.before.Cache = 0, kvcache.Stats{Queries: next.before.Cache.Queries,
		Hits: next.before.Cache.Hits, Evictions: next.before.Cache.Evictions}
	var all []*Request
	for _, s := range p.of {
		s.Suspend(nil)
		all = slices.Concat(all, s.waiting.firsts, s.waiting.rest)
	}
	slices.SortFunc(all, func(a, b *Request) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	for _, r := range all {
		next.place(r, r.tokens).adopt(r)
	}
	*p = *next
	return nil
}

// adopt lets a request of another scheduler, where it waited, wait for its turn.
func (s *Scheduler) adopt(r *Request) {
	s.arrivals++
	r.place, r.arrival = s.config.place, s.arrivals
	s.enrol(r)
}

// PreemptAll is Scheduler.PreemptAll.
func (p *Places) PreemptAll(remembered bool) {
	for p.owed > 0 {
		p.land()
	}
	for _, s := range p.of {
		s.PreemptAll(remembered)
	}
}

// Invalidate is Scheduler.Invalidate.
func (p *Places) Invalidate() {
	for _, s := range p.of {
		s.Invalidate()
	}
}

// Fetches is Scheduler.Fetches, place by place.
func (p *Places) Fetches(to []Fetch) []Fetch {
	for _, s := range p.of {
		to = s.Fetches(to)
	}
	return to
}

// Pins is Scheduler.Pins, place by place.
func (p *Places) Pins(to []Pin) []Pin {
	for _, s := range p.of {
		to = s.Pins(to)
	}
	return to
}

// Release is Scheduler.Release.
func (p *Places) Release(key uint64) {
	for _, s := range p.of {
		s.Release(key)
	}
}

// Made is the last plan that was made, 0 for none.
func (p *Places) Made() uint64 { return p.plans }

// Fetched is Scheduler.Fetched.
func (p *Places) Fetched(key uint64, n int) {
	for _, s := range p.of {
		s.Fetched(key, n)
	}
}

// Cancelled is Scheduler.Cancelled.
func (p *Places) Cancelled(to []uint64) []uint64 {
	for _, s := range p.of {
		to = s.Cancelled(to)
	}
	return to
}

// Stores is Scheduler.Stores, place by place.
func (p *Places) Stores(to []Store) []Store {
	for _, s := range p.of {
		to = s.Stores(to)
	}
	return to
}

// Stored is Scheduler.Stored.
func (p *Places) Stored(st *Store, n int) { p.of[st.Place].Stored(st, n) }

// Suspend is Scheduler.Suspend.
func (p *Places) Suspend(keys []uint64) {
	for _, s := range p.of {
		s.Suspend(keys)
	}
}

// Computed is Scheduler.Computed, place by place.
func (p *Places) Computed(keys []uint64) []uint64 {
	for _, s := range p.of {
		keys = s.Computed(keys)
	}
	return keys
}

// Applied is Scheduler.Applied.
func (p *Places) Applied() uint64 { return p.applied }

// InFlight is Scheduler.InFlight.
func (p *Places) InFlight() int { return p.owed }

// Waiting is Scheduler.Waiting.
func (p *Places) Waiting() int { return p.sum((*Scheduler).Waiting) }

// Queued is Scheduler.Queued.
func (p *Places) Queued() int { return p.sum((*Scheduler).Queued) }

// Running is Scheduler.Running.
func (p *Places) Running() int { return p.sum((*Scheduler).Running) }

func (p *Places) sum(of func(*Scheduler) int) (n int) {
	for _, s := range p.of {
		n += of(s)
	}
	return n
}

// Each appends the counters of each place.
func (p *Places) Each(to []Stats) []Stats {
	for _, s := range p.of {
		to = append(to, s.Stats())
	}
	return to
}

// Stats are the sums of the places' counters.
func (p *Places) Stats() Stats { return p.Sum(p.Each(nil)) }

// Sum is Stats for what Each has of the places: it also counts what those did that are gone.
func (p *Places) Sum(each []Stats) Stats {
	all := p.before
	for i := range each {
		t := &each[i]
		all.Waiting += t.Waiting
		all.Running += t.Running
		all.Preemptions += t.Preemptions
		all.PromptTokens += t.PromptTokens
		all.OutputTokens += t.OutputTokens
		all.Deferred += t.Deferred
		all.Fetching += t.Fetching
		all.Pinned += t.Pinned
		all.ExternalQueries += t.ExternalQueries
		all.ExternalHits += t.ExternalHits
		all.Drafted.add(&t.Drafted)
		c, u := &all.Cache, &t.Cache
		c.Blocks += u.Blocks
		c.Used += u.Used
		c.Free += u.Free
		c.Entries += u.Entries
		c.Queries += u.Queries
		c.Hits += u.Hits
		c.Evictions += u.Evictions
		c.Snapshots += u.Snapshots
	}
	return all
}
