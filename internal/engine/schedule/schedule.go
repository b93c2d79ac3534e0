// Package schedule decides what each step computes: continuous batching under a token budget with
// chunked prefill, prefix caching, and preemption by recomputation, as vLLM's V1 scheduler does it.
// It is a pure state machine (no clock, goroutine, I/O or randomness): requests and results go in,
// plans and outputs come out, and the same inputs give the same plans.
//
// Every plan is answered by its Result, an empty one if nothing was sampled, in the order of the
// plans. Up to Config.MaxInFlight plans may await their results: then a plan may go on from a token
// that an earlier one samples and that is not known yet (step.FromSampler). Add and Abort may come
// at any time between. What a plan computes counts as computed when the plan is made, and Update
// matches a result against what its plan sampled, not against the state of the moment. With drafts
// a plan may sample several tokens of a request, which goes on after those that were right.
package schedule

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/engine/draft"
	"github.com/eagleray/eagleray/internal/engine/kvcache"
)

// reserveTokens limits the room that is made in advance for a request's output (16 KiB of tokens),
// so that decoding does not allocate. Longer outputs grow by doubling.
const reserveTokens = 4096

// Scheduler holds all unfinished requests. It is not safe for concurrent use.
type Scheduler struct {
	config    Config
	cache     *kvcache.Manager
	requests  map[uint64]*Request // for lookups by key only: never ranged over
	tokens    int                 // of all requests
	waiting   waiting
	suspended []*Request // that wait too, until Suspend lets go of them
	transfers
	offloading
	turns [2]turns // by Request.class
	// running is in the order of outlasts. A plan follows it before it lets new ones in, and
	// preemption takes from its end, so a victim is never one that the plan being made already
	// holds.
	running []*Request
	// adapters is memory of awaitsAdapter.
	adapters []uint32
	slots    []uint32 // free, the next one last
	freed    []uint32 // of ended requests, to be listed in the next plan's Free
	// flights are the plans that await their results: a ring in which the oldest is at first, owed
	// of them.
	flights     []flight
	first, owed int

	arrivals    uint64
	plans       uint64
	applied     uint64 // the last plan whose result was
	preemptions uint64
	prompted    uint64 // tokens of prompts
	sampled     uint64
	deferred    uint64
	drafted     Drafted
	history     *draft.History // nil for none
	trials      draft.Trials
}

// flight is a plan that awaits its result.
type flight struct {
	plan    uint64
	entries []entry
	drafts  int // of all entries, and guesses asked for
}

// entry is one request of a plan. It keeps the slot because the request may have lost it before the
// result is there.
type entry struct {
	request *Request
	slot    uint32
	samples bool
	drafts  int
	// from and to are what is computed of the prompt.
	from, to int
}

// New returns an empty scheduler. Errors name the field of the configuration that is wrong.
func New(c Config) (*Scheduler, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.MaxInFlight, c.Stages = max(1, c.MaxInFlight), max(1, c.Stages)
	cache, err := kvcache.New(*c.cache())
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	s := &Scheduler{
		config: c, cache: cache, requests: make(map[uint64]*Request),
		turns:      [2]turns{{clients: make(map[string]*lots)}, {clients: make(map[string]*lots)}},
		flights:    make([]flight, c.MaxInFlight),
		transfers:  transfers{pinned: make(map[uint64]*Request)},
		offloading: offloading{holds: make(map[uint64]*hold)}, trials: draft.NewTrials(),
	}
	if c.Draft.Requests > 0 {
		s.history = draft.NewHistory(&c.Draft)
	}
	s.resetSlots()
	return s, nil
}

func (s *Scheduler) resetSlots() {
	s.slots, s.freed = s.slots[:0], s.freed[:0]
	for i := s.config.MaxSeqs - 1; i >= 0; i-- {
		s.slots = append(s.slots, uint32(s.config.place*s.config.MaxSeqs+i))
	}
}

// Add lets a request wait for its turn. The caller has validated it (see Request).
func (s *Scheduler) Add(r *Request) {
	s.arrivals++
	r.scheduled = scheduled{
		place: s.config.place, arrival: s.arrivals, tokens: r.Prompt, prompt: len(r.Prompt),
		reported: 1, seq: kvcache.NewSequence(r.CacheSalt(), r.computesAll()),
	}
	if s.config.Priority {
		r.priority = r.Priority
	}
	s.enrol(r)
}

func (s *Scheduler) enrol(r *Request) {
	s.turns[r.class()].assign(r)
	s.requests[r.Key] = r
	s.tokens += len(r.tokens)
	s.wait(r)
}

// Abort ends a waiting or running request without an Output and returns whether there was one. Its
// parts of results that are due are ignored.
func (s *Scheduler) Abort(key uint64) bool {
	r := s.requests[key]
	if r == nil {
		return false
	}
	if r.running {
		i := slices.Index(s.running, r)
		s.running = slices.Delete(s.running, i, i+1)
	}
	s.end(r)
	return true
}

// end forgets a request. One that runs the caller removes from running.
func (s *Scheduler) end(r *Request) {
	if r.running {
		s.store(r, r.seq.Entries())
		s.freed = append(s.freed, r.slot)
	} else {
		s.unqueue(r)
	}
	if r.remote != fetching {
		s.cache.Release(&r.seq)
	}
	s.remember(r)
	r.running, r.done = false, true
	delete(s.requests, r.Key)
	s.tokens -= len(r.tokens)
	if r.remote == fetching {
		s.cancelFetches(r.Source)
	}
}

// PreemptAll puts every running request back to wait with its tokens so far, and forgets the plans
// in flight: their results are ignored, and the tokens they sample are sampled again. It is for a
// new group of ranks, which know no slot. With remembered they have the keys and values of every
// plan that was applied, and the prefix cache stays but for what plans in flight were to add; else
// it is emptied. Nothing comes from elsewhere any more, and nothing is kept for others.
func (s *Scheduler) PreemptAll(remembered bool) {
	for s.owed > 0 {
		for _, e := range s.flights[s.first].entries {
			e.request.pending, e.request.drafts = 0, e.request.drafts[:0]
			e.request.asked = false
		}
		s.land()
	}
	for _, r := range s.running {
		s.requeue(r)
	}
	clear(s.running)
	s.running = s.running[:0]
	s.dropTransfers()
	s.regrouped = s.config.Offload
	if remembered {
		s.cache.Rewind(s.applied)
	} else {
		s.cache.Reset()
	}
	s.resetSlots()
}

// Applied is the last plan whose result was applied, 0 for none.
func (s *Scheduler) Applied() uint64 { return s.applied }

// land takes the oldest flight off the ring.
func (s *Scheduler) land() {
	f := &s.flights[s.first]
	f.plan = 0
	clear(f.entries) // ended requests are garbage
	f.entries, f.drafts = f.entries[:0], 0
	s.first = (s.first + 1) % len(s.flights)
	s.owed--
}

// requeue makes a running request a waiting one that has nothing computed. The caller removes it
// from running and disposes of its slot.
func (s *Scheduler) requeue(r *Request) {
	s.cache.Release(&r.seq)
	r.computed, r.running = 0, false
	s.retry(r)
	s.turns[r.class()].again(r)
	s.wait(r)
	s.preemptions++
}

// InFlight returns the number of plans that await their results.
func (s *Scheduler) InFlight() int { return s.owed }

// Waiting returns the number of requests that wait, preempted ones included.
func (s *Scheduler) Waiting() int {
	return s.waiting.len() + len(s.suspended) + s.transfers.waiting()
}

// Queued returns the number of requests that wait and are not in the background.
func (s *Scheduler) Queued() int { return s.Waiting() - s.waiting.background }

// Running returns the number of requests that run.
func (s *Scheduler) Running() int { return len(s.running) }

// Stats describes a Scheduler at one moment.
type Stats struct {
	// Waiting and Running are numbers of requests; preempted ones wait.
	Waiting, Running int
	// Preemptions counts requests put back to wait since the beginning.
	Preemptions uint64
	// PromptTokens counts tokens of prompts that were computed, each once however often its request
	// is preempted, OutputTokens those that were sampled.
	PromptTokens, OutputTokens uint64
	// Deferred counts tokens that were due before it was known what their constraint allows.
	Deferred uint64
	// Fetching is how many of those that wait do so for keys and values from elsewhere, Pinned how
	// many that have ended have blocks that are kept.
	Fetching, Pinned int
	// ExternalQueries and ExternalHits count tokens of prompts that were not in the prefix cache,
	// and those of them that were fetched from where blocks are stored.
	ExternalQueries, ExternalHits uint64
	// Drafted counts guessed tokens.
	Drafted Drafted
	// Cache describes the blocks.
	Cache kvcache.Stats
}

// Stats returns the counters.
func (s *Scheduler) Stats() Stats {
	return Stats{
		Waiting: s.Waiting(), Running: len(s.running),
		Preemptions: s.preemptions, PromptTokens: s.prompted, OutputTokens: s.sampled,
		Deferred: s.deferred, Cache: s.cache.Stats(),
		Fetching: len(s.fetching), Pinned: len(s.pinned), Drafted: s.drafted,
		ExternalQueries: s.queries, ExternalHits: s.hits,
	}
}
