package schedule

import (
	"crypto/sha256"
	"maps"
	"slices"
)

// remote is how far the keys and values of a request are that another engine has.
type remote uint8

const (
	// unfetched is before the request's first turn. One without a Source stays so.
	unfetched remote = iota
	// fetching is from its turn on until they have come, or will not: it waits, with its blocks
	// reserved, and delays no other. (vLLM: WAITING_FOR_REMOTE_KVS.)
	fetching
	// fetched waits for a slot, with its blocks computed.
	fetched
	// local is as any other: they were fetched and it has run, or it computes them itself.
	local
)

// transfers are the requests that fetch keys and values from other engines, and the blocks that are
// pinned for others to fetch.
type transfers struct {
	// fetching are those that wait for a Fetch, in the order of their turns: those that have asked
	// for it, and those that wait for what another one of their Source fetches. An aborted one
	// that has asked stays until Fetched, because its blocks are written to.
	fetching  []*Request
	fetched   []*Request // in the order of Fetched
	fetches   []Fetch
	cancelled []uint64 // keys of fetches that no request waits for any more
	pins      []Pin
	pinned    map[uint64]*Request // that have ended, by key
}

// Fetch asks for keys and values from elsewhere. Fetched answers it, whatever becomes of it.
type Fetch struct {
	// Key and Owner are the request's.
	Key   uint64
	Owner any
	// Place is where the request is, of Places.
	Place int
	// Blocks are where they go, First the number of the first of them in the prompt. There are none
	// when nothing is needed: the other engine can release its blocks, and Fetched is not called.
	Blocks []uint32
	First  int
	// Digests names the prompt up to the end of each of the blocks.
	Digests [][sha256.Size]byte
	// Plan is the last one that may write to the blocks for what was in them before.
	Plan uint64
}

// HandOver is the blocks of a request that another engine can go on from.
type HandOver struct {
	// Place is where they are, of Places.
	Place int
	// Blocks are those that its prompt fills without its last token, which the engine that goes on
	// from them computes, with step.NoBlock for those that it does not read; Digest names their
	// contents.
	Blocks []uint32
	Digest [sha256.Size]byte
	// Plan is the last one that writes to them.
	Plan uint64
}

// Pin is the blocks that will be pinned of a request if it ends with the token that a plan samples.
// Ranks that are told before that plan can hand them out as soon as they have executed it. No
// engine may read them before the Output says that they are pinned.
type Pin struct {
	Key   uint64
	Owner any
	HandOver
}

// waiting is how many requests wait for a fetch, or for a slot after it.
func (t *transfers) waiting() int {
	n := len(t.fetched)
	for _, r := range t.fetching {
		if !r.done {
			n++
		}
	}
	return n
}

// nextFetched is the first request whose blocks have been fetched, of those in the background or
// of the others; nil for none.
func (t *transfers) nextFetched(background bool) *Request {
	for _, r := range t.fetched {
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

// Pins appends the blocks that the last plan completes for other engines.
func (s *Scheduler) Pins(to []Pin) []Pin {
	to = append(to, s.pins...)
	clear(s.pins)
	s.pins = s.pins[:0]
	return to
}

// pinAhead notes the blocks to pin of a request whose prompt the plan at hand completes.
func (s *Scheduler) pinAhead(r *Request) {
	if h := s.handOver(r); h != nil {
		s.pins = append(s.pins, Pin{r.Key, r.Owner, *h})
	}
}

// Cancelled appends the keys of those fetches that no request waits for any more, each once. They
// can be cut short: Fetched must answer them all the same.
func (s *Scheduler) Cancelled(to []uint64) []uint64 {
	to = append(to, s.cancelled...)
	s.cancelled = s.cancelled[:0]
	return to
}

// cancelFetches notes the fetches of a source when a request that waited for it has ended, and no
// other one waits.
func (s *Scheduler) cancelFetches(source uint64) {
	for _, r := range s.fetching {
		if r.Source == source && !r.done && len(r.seq.Blocks()) == 0 {
			return // it waits for what another one has asked for
		}
	}
	for _, r := range s.fetching {
		if r.Source == source && r.done && !r.cancelled && len(r.seq.Blocks()) > 0 {
			r.cancelled = true
			s.cancelled = append(s.cancelled, r.Key)
		}
	}
}

// fetch has a waiting request whose turn has come fetch the blocks that another engine has. It
// returns false when there are too few free blocks.
func (s *Scheduler) fetch(t *turn, r *Request) bool {
	follows := func(o *Request) bool { return o.Source == r.Source }
	if s.config.PrefixCaching && slices.ContainsFunc(s.fetching, follows) {
		s.awaitFetch(r)
		return true
	}
	hit := s.cache.Match(&r.seq, r.tokens)
	f := Fetch{Key: r.Key, Owner: r.Owner, Place: s.config.place, Plan: s.plans}
	next := s.toFetch(r)
	blocks := s.cache.BlocksFor(next)
	if f.First = s.cache.Missing(hit, next); r.computesAll() || blocks <= f.First {
		r.remote = local
		s.fetches = append(s.fetches, f)
		return true
	}
	for !s.cache.Start(&r.seq, r.tokens, hit, next) {
		if !s.makeRoom(t, r) {
			return false
		}
		hit = s.cache.Match(&r.seq, r.tokens)
	}
	f.First = s.cache.Missing(hit, next)
	// Start has made sure of the blocks. With those of all its tokens, or of those of its first
	// plan, a request can always run later.
	s.cache.Allocate(&r.seq, s.cache.Ahead(next, len(r.tokens)))
	s.turns[r.class()].now = max(s.turns[r.class()].now, r.turn)
	s.awaitFetch(r)
	r.computed, r.fetchFrom = hit, f.First
	f.Blocks = slices.Clone(r.seq.Blocks()[f.First:blocks])
	f.Digests = s.cache.Digests(&r.seq, r.tokens, f.First, blocks)
	s.fetches = append(s.fetches, f)
	return true
}

// toFetch is how many leading tokens of a request can be fetched: whole blocks, and never the last
// token, which is computed for its logits.
func (s *Scheduler) toFetch(r *Request) int {
	return min(r.Remote, len(r.tokens)-1) / s.config.BlockSize * s.config.BlockSize
}

// expected is how many tokens of a request will have come once what others wait for that have its
// Source has.
func (s *Scheduler) expected(r *Request) int {
	if r.Source != 0 && s.config.PrefixCaching {
		for _, o := range s.requests { // in any order: they are alike
			if o.Source == r.Source && o.remote <= fetching {
				return min(r.Remote, len(r.Prompt)-1)
			}
		}
	}
	return 0
}

// awaitFetch moves a request from those that wait for a turn to those that wait for a fetch.
func (s *Scheduler) awaitFetch(r *Request) {
	s.unwait(r)
	r.remote, r.gathered = fetching, false
	s.fetching = append(s.fetching, r)
}

// Fetched ends the fetch of a request: the first n of its blocks are there for the plans that
// follow; nothing writes to the others any more, and the request computes them itself. With a
// window it does so with all of them unless all are there. The keys of requests that wait for no
// fetch are ignored.
func (s *Scheduler) Fetched(key uint64, n int) {
	i := slices.IndexFunc(s.fetching, func(r *Request) bool {
		return r.Key == key && len(r.seq.Blocks()) > 0
	})
	if i < 0 {
		return
	}
	r := s.fetching[i]
	end := s.toFetch(r)
	all := s.cache.BlocksFor(end) - r.fetchFrom
	came := n > 0 && !r.stale && (n >= all || s.config.Window == 0)
	if came {
		parts := (r.fetchFrom + min(n, all)) / s.config.Groups.Count()
		end = parts * s.config.BlockSize
		// With a window those count, too, that need not come since no later position reads them.
		r.came, r.computed = end-r.computed, end
		s.cache.Plan(s.plans)
		s.cache.Cache(&r.seq, r.tokens, r.computed)
	}
	pending := s.fetching[:0]
	for _, o := range s.fetching {
		switch {
		case o == r && came && !o.done:
			o.remote = fetched
			s.fetched = append(s.fetched, o)
		case o == r || o.Source == r.Source && len(o.seq.Blocks()) == 0:
			s.computeHere(o)
		default:
			pending = append(pending, o)
		}
	}
	clear(s.fetching[len(pending):])
	s.fetching = pending
	if s.config.Offload && !came {
		r.Source, r.Remote = 0, 0 // else it might ask for the same whenever it is preempted
	}
}

// computeHere makes a request that fetches, or has fetched, one that waits as any other does,
// unless it has ended.
func (s *Scheduler) computeHere(r *Request) {
	s.cache.Release(&r.seq)
	r.computed, r.came, r.remote = 0, 0, local
	if !r.done {
		s.wait(r)
	}
}

// dequeue takes a request that starts out of those that wait.
func (s *Scheduler) dequeue(r *Request) {
	s.unqueue(r)
	if r.remote == fetched {
		r.remote = local
	}
}

// pin pins the blocks of a request that ends, until Release. It returns nil when there are none.
func (s *Scheduler) pin(r *Request) *HandOver {
	h := s.handOver(r)
	if h == nil {
		return nil
	}
	k := &Request{scheduled: scheduled{tokens: r.tokens, seq: r.seq, done: true}}
	s.cache.Slide(&k.seq, s.handedOver(r))
	r.seq.Disown()
	s.pinned[r.Key] = k
	return h
}

// handedOver is how many leading tokens of a request another engine can go on from.
func (s *Scheduler) handedOver(r *Request) int {
	return (r.prompt - 1) / s.config.BlockSize * s.config.BlockSize
}

// handOver is the blocks that other engines can use of a request, nil for none.
func (s *Scheduler) handOver(r *Request) *HandOver {
	end := s.handedOver(r)
	n := s.cache.BlocksFor(end)
	if n == s.cache.Missing(0, end) {
		return nil
	}
	blocks := slices.Clone(r.seq.Blocks()[:n])
	if !s.cache.Trim(blocks, end) {
		return nil // some were needed for the request itself
	}
	return &HandOver{Place: s.config.place, Blocks: blocks,
		Digest: s.cache.Digest(&r.seq, r.tokens, end/s.config.BlockSize), Plan: r.wrote}
}

// Release frees the blocks that are pinned of a request, if there are any.
func (s *Scheduler) Release(key uint64) {
	if r := s.pinned[key]; r != nil {
		s.cache.Release(&r.seq)
		delete(s.pinned, key)
	}
}

// dropTransfers ends all fetches and pins: the ranks have ended them.
func (s *Scheduler) dropTransfers() {
	for _, r := range slices.Concat(s.fetching, s.fetched) {
		s.computeHere(r)
		s.retry(r)
	}
	clear(s.fetching)
	clear(s.fetched)
	clear(s.fetches)
	clear(s.pins)
	s.cancelled, s.pins = s.cancelled[:0], s.pins[:0]
	s.fetching, s.fetched, s.fetches = s.fetching[:0], s.fetched[:0], s.fetches[:0]
	s.dropHolds()
	for _, key := range slices.Sorted(maps.Keys(s.pinned)) {
		s.Release(key)
	}
}
