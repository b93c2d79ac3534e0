// Package schedule decides what each step computes: continuous batching under a token budget with chunked
// prefill, prefix caching, and preemption by recomputation, as vLLM's V1 scheduler does it. It is a pure state
// machine (no clock, goroutine, I/O or randomness): requests and results go in, plans and outputs come out,
// and the same inputs give the same plans.
//
// The caller alternates Schedule and Update: every plan is answered by its Result, an empty one if nothing was
// sampled, before the next is made. Add and Abort may come at any time between. What a plan computes counts as
// computed when the plan is made, and Update matches a result against what its plan sampled, not against the
// state of the moment: that is what plans made ahead of results would need.
package schedule

import (
	"fmt"
	"slices"

	"github.com/eagleray/eagleray/internal/kvcache"
	"github.com/eagleray/eagleray/internal/sample"
)

// reserveTokens limits the room that is made in advance for a request's output (16 KiB of tokens), so that
// decoding does not allocate. Longer outputs grow by doubling.
const reserveTokens = 4096

// Scheduler holds all unfinished requests. It is not safe for concurrent use.
type Scheduler struct {
	config   Config
	cache    *kvcache.Manager
	requests map[uint64]*request // for lookups by key only: never ranged over
	waiting  waiting
	// running is in request order. A plan follows it before it lets new ones in, and preemption takes from its
	// end, so a victim is never one that the plan being made already holds.
	running []*request
	slots   []uint32 // free, the next one last
	freed   []uint32 // of ended requests, to be listed in the next plan's Free
	flight  flight

	arrivals    uint64
	plans       uint64
	preemptions uint64
}

// flight is what the caller is owed a result for.
type flight struct {
	plan    uint64 // 0 for none
	entries []flying
}

// flying is one request of a plan under way. It keeps the slot because an abort takes it from the request.
type flying struct {
	request *request
	slot    uint32
	samples bool
}

// New returns an empty scheduler. Errors name the field of the configuration that is wrong.
func New(c Config) (*Scheduler, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	cache, err := kvcache.New(kvcache.Config{Blocks: c.Blocks, BlockSize: c.BlockSize, PrefixCaching: c.PrefixCaching})
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	s := &Scheduler{config: c, cache: cache, requests: make(map[uint64]*request)}
	s.resetSlots()
	return s, nil
}

func (s *Scheduler) resetSlots() {
	s.slots, s.freed = s.slots[:0], s.freed[:0]
	for i := s.config.MaxSeqs - 1; i >= 0; i-- {
		s.slots = append(s.slots, uint32(i))
	}
}

// Add lets a request wait for its turn. The caller has validated it (see Request).
func (s *Scheduler) Add(q Request) {
	s.arrivals++
	r := &request{
		key: q.Key, params: q.Params, arrival: s.arrivals,
		tokens: q.Prompt, prompt: len(q.Prompt), cached: -1, reported: 1,
		seq: kvcache.NewSequence(q.Salt, q.Params.PromptLogprobs != sample.NoLogprobs),
	}
	if s.config.Priority {
		r.priority = q.Priority
	}
	s.requests[r.key] = r
	s.waiting.push(r)
}

// Abort ends a waiting or running request without an Output and returns whether there was one. If a plan that
// holds it is under way, its part of the result is ignored.
func (s *Scheduler) Abort(key uint64) bool {
	r := s.requests[key]
	if r == nil {
		return false
	}
	if r.running {
		i := slices.Index(s.running, r)
		s.running = slices.Delete(s.running, i, i+1)
		s.freed = append(s.freed, r.slot)
	} else {
		s.waiting.remove(r.heap)
	}
	s.end(r)
	return true
}

// end forgets a request that is in neither list any more.
func (s *Scheduler) end(r *request) {
	s.cache.Release(&r.seq)
	r.running, r.done = false, true
	delete(s.requests, r.key)
}

// PreemptAll puts every running request back to wait with its tokens so far, empties the prefix cache, and
// forgets the plan under way, whose result is then ignored. It is for a new group of workers, which know no
// slot and hold no keys and values.
func (s *Scheduler) PreemptAll() {
	for _, r := range s.running {
		s.requeue(r)
	}
	clear(s.running)
	s.running = s.running[:0]
	s.flight.clear()
	s.cache.Reset()
	s.resetSlots()
}

// requeue makes a running request a waiting one that has nothing computed. The caller removes it from running
// and disposes of its slot.
func (s *Scheduler) requeue(r *request) {
	s.cache.Release(&r.seq)
	r.computed, r.running = 0, false
	s.waiting.push(r)
	s.preemptions++
}

func (f *flight) clear() {
	f.plan = 0
	clear(f.entries) // ended requests are garbage
	f.entries = f.entries[:0]
}

// Waiting returns the number of requests that wait, preempted ones included.
func (s *Scheduler) Waiting() int { return len(s.waiting) }

// Running returns the number of requests that run.
func (s *Scheduler) Running() int { return len(s.running) }

// Stats describes a Scheduler at one moment.
type Stats struct {
	// Waiting and Running are numbers of requests; preempted ones wait.
	Waiting, Running int
	// Preemptions counts requests put back to wait since the beginning.
	Preemptions uint64
	// Cache describes the blocks.
	Cache kvcache.Stats
}

// Stats returns the counters.
func (s *Scheduler) Stats() Stats {
	return Stats{
		Waiting: len(s.waiting), Running: len(s.running), Preemptions: s.preemptions, Cache: s.cache.Stats(),
	}
}
