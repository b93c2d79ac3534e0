package schedule

import (
	"crypto/sha256"
	"maps"
	"slices"
)

// remote is how far the keys and values of a request are that come from elsewhere.
type remote uint8

const (
	// unasked is before the request's first turn. One without a Source stays so.
	unasked remote = iota
	// receiving is from its turn on until they have come, or will not: it waits, with its blocks
	// reserved, and delays no other. (vLLM: WAITING_FOR_REMOTE_KVS.)
	receiving
	// received waits for a slot, with its blocks computed.
	received
	// settled is as any other: they were received and it has run, or it computes them itself.
	settled
)

// transfers are the requests that receive keys and values from elsewhere, and what is kept to be
// handed over to others.
type transfers struct {
	// receiving are those that wait for a Fetch, in the order of their turns: those that have asked
	// for it, and those that wait for what another one of their Source receives. An aborted one
	// that has asked stays until Received, because its blocks are written to.
	receiving []*Request
	received  []*Request // in the order of Received
	fetches   []Fetch
	forsaken  []uint64 // keys of fetches that no request waits for any more
	offers    []Offer
	kept      map[uint64]*Request // that have ended, by key
}

// Fetch asks for keys and values from elsewhere. Received answers it, whatever becomes of it.
type Fetch struct {
	// Key and Owner are the request's.
	Key   uint64
	Owner any
	// Blocks are where they go, First the number of the first of them in the prompt. There are none
	// when nothing is needed: what is kept elsewhere can be given up, and Received is not called.
	Blocks []uint32
	First  int
	// Digest names the prompt up to the last of the blocks.
	Digest [sha256.Size]byte
	// Plan is the last one that may write to the blocks for what was in them before.
	Plan uint64
}

// HandOver is what was kept of a request.
type HandOver struct {
	// Blocks are those that its prompt fills without its last token, which the engine that goes on
	// from them computes; Digest names their contents.
	Blocks []uint32
	Digest [sha256.Size]byte
	// Plan is the last one that writes to them.
	Plan uint64
}

// Offer is what will be kept of a request, if it ends with the token that a plan samples: ranks
// that are told before that plan can hand it out as soon as they have executed it. No engine may
// read it before the Output says that it is kept.
type Offer struct {
	Key   uint64
	Owner any
	HandOver
}

// waiting is how many requests wait for what comes from elsewhere, or with it.
func (t *transfers) waiting() int {
	n := len(t.received)
	for _, r := range t.receiving {
		if !r.done {
			n++
		}
	}
	return n
}

// nextReceived is the first request that has received what it waited for, and is in the background
// or is not; nil for none.
func (t *transfers) nextReceived(background bool) *Request {
	for _, r := range t.received {
		if r.Background == background {
			return r
		}
	}
	return nil
}

// Fetches appends those that the plans since the last call have asked for: those of Schedule calls
// that returned false, too.
func (s *Scheduler) Fetches(to []Fetch) []Fetch {
	to = append(to, s.fetches...)
	clear(s.fetches)
	s.fetches = s.fetches[:0]
	return to
}

// Offers appends those of the last plan.
func (s *Scheduler) Offers(to []Offer) []Offer {
	to = append(to, s.offers...)
	clear(s.offers)
	s.offers = s.offers[:0]
	return to
}

// offer notes what will be kept of a request with whose last row the plan at hand completes its
// prompt.
func (s *Scheduler) offer(r *Request) {
	if h := s.handOver(r); h != nil {
		s.offers = append(s.offers, Offer{r.Key, r.Owner, *h})
	}
}

// Forsaken appends the keys of those fetches that no request waits for any more, each once. They
// can be cut short: Received must answer them all the same.
func (s *Scheduler) Forsaken(to []uint64) []uint64 {
	to = append(to, s.forsaken...)
	s.forsaken = s.forsaken[:0]
	return to
}

// forsake notes the fetches of a source when one has ended that waited for it, and no other does.
func (s *Scheduler) forsake(source uint64) {
	for _, r := range s.receiving {
		if r.Source == source && !r.done && len(r.seq.Blocks()) == 0 {
			return // it waits for what another one has asked for
		}
	}
	for _, r := range s.receiving {
		if r.Source == source && r.done && !r.forsaken && len(r.seq.Blocks()) > 0 {
			r.forsaken = true
			s.forsaken = append(s.forsaken, r.Key)
		}
	}
}

// ask lets a waiting request whose turn has come receive what it needs from elsewhere. It returns
// false when its blocks are not free.
func (s *Scheduler) ask(t *turn, r *Request) bool {
	follows := func(o *Request) bool { return o.Source == r.Source }
	if s.config.PrefixCaching && slices.ContainsFunc(s.receiving, follows) {
		s.receive(r)
		return true
	}
	hit := s.cache.Match(&r.seq, r.tokens)
	f := Fetch{Key: r.Key, Owner: r.Owner, First: hit / s.config.BlockSize, Plan: s.plans}
	// The last token is computed for its logits.
	blocks := min(r.Remote, len(r.tokens)-1) / s.config.BlockSize
	if r.computesAll() || blocks <= f.First {
		r.remote = settled
		s.fetches = append(s.fetches, f)
		return true
	}
	for !s.cache.Start(&r.seq, r.tokens, hit) {
		if !s.makeRoom(t, r) {
			return false
		}
		hit = s.cache.Match(&r.seq, r.tokens)
		f.First = hit / s.config.BlockSize
	}
	// Start has made sure of them. With the blocks of all its tokens a request can always run
	// later.
	s.cache.Allocate(&r.seq, len(r.tokens))
	s.turns[r.class()].now = max(s.turns[r.class()].now, r.turn)
	s.receive(r)
	r.computed = hit
	f.Blocks = slices.Clone(r.seq.Blocks()[f.First:blocks])
	f.Digest = s.cache.Digest(&r.seq, r.tokens, blocks)
	s.fetches = append(s.fetches, f)
	return true
}

// receive makes a waiting request one that receives.
func (s *Scheduler) receive(r *Request) {
	s.unwait(r)
	r.remote = receiving
	s.receiving = append(s.receiving, r)
}

// Received tells that what a request has asked for has come, and is there for the plans that
// follow; or that nothing writes to its blocks any more and it must compute them itself. Requests
// that have not asked for anything, or no longer wait for it, it ignores.
func (s *Scheduler) Received(key uint64, complete bool) {
	i := slices.IndexFunc(s.receiving, func(r *Request) bool {
		return r.Key == key && len(r.seq.Blocks()) > 0
	})
	if i < 0 {
		return
	}
	r := s.receiving[i]
	if complete = complete && !r.lapsed; complete {
		r.computed = min(r.Remote, len(r.tokens)-1) / s.config.BlockSize * s.config.BlockSize
		s.cache.Plan(s.plans)
		s.cache.Cache(&r.seq, r.tokens, r.computed)
	}
	kept := s.receiving[:0]
	for _, o := range s.receiving {
		switch {
		case o == r && complete && !o.done:
			o.remote = received
			s.received = append(s.received, o)
		case o == r || o.Source == r.Source && len(o.seq.Blocks()) == 0:
			s.settle(o)
		default:
			kept = append(kept, o)
		}
	}
	clear(s.receiving[len(kept):])
	s.receiving = kept
}

// settle makes a request that receives, or has received, one that waits as any other does, unless
// it has ended.
func (s *Scheduler) settle(r *Request) {
	s.cache.Release(&r.seq)
	r.computed, r.remote = 0, settled
	if !r.done {
		s.wait(r)
	}
}

// leave takes a request that starts out of those that wait.
func (s *Scheduler) leave(r *Request) {
	s.unqueue(r)
	if r.remote == received {
		r.remote = settled
	}
}

// keepFor keeps the blocks of a request that ends, until Release. It returns nil when there are
// none to keep.
func (s *Scheduler) keepFor(r *Request) *HandOver {
	h := s.handOver(r)
	if h == nil {
		return nil
	}
	k := &Request{scheduled: scheduled{tokens: r.tokens, seq: r.seq, done: true}}
	r.seq.Disown()
	s.kept[r.Key] = k
	return h
}

// handOver is what there is to keep of a request, nil for nothing.
func (s *Scheduler) handOver(r *Request) *HandOver {
	n := (r.prompt - 1) / s.config.BlockSize
	if n == 0 {
		return nil
	}
	return &HandOver{Blocks: slices.Clone(r.seq.Blocks()[:n]),
		Digest: s.cache.Digest(&r.seq, r.tokens, n), Plan: r.wrote}
}

// Made is the last plan that was made, 0 for none.
func (s *Scheduler) Made() uint64 { return s.plans }

// Release gives the blocks back that were kept of a request, if there are any.
func (s *Scheduler) Release(key uint64) {
	if r := s.kept[key]; r != nil {
		s.cache.Release(&r.seq)
		delete(s.kept, key)
	}
}

// dropTransfers ends whatever is under way to or from elsewhere: the ranks have ended it.
func (s *Scheduler) dropTransfers() {
	for _, r := range slices.Concat(s.receiving, s.received) {
		s.settle(r)
	}
	clear(s.receiving)
	clear(s.received)
	clear(s.fetches)
	clear(s.offers)
	s.forsaken, s.offers = s.forsaken[:0], s.offers[:0]
	s.receiving, s.received, s.fetches = s.receiving[:0], s.received[:0], s.fetches[:0]
	for _, key := range slices.Sorted(maps.Keys(s.kept)) {
		s.Release(key)
	}
}
