package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/eagleray/eagleray/internal/engine/kvcache"
)

// Store asks for the keys and values of blocks to be stored elsewhere (Config.Offload), from where
// requests can fetch them when the cache has lost them. Stored answers it, until when the blocks
// stay as they are.
type Store struct {
	// ID tells it from the others of its Place, Owner is the request's.
	ID    uint64
	Owner any
	Place int
	// Blocks are a sequence's table from its beginning on, with step.NoBlock for those that it has
	// given up; Digests are their names.
	Blocks  []uint32
	Digests [][sha256.Size]byte
}

// offloading are the blocks that are being stored.
type offloading struct {
	stores []Store // that Stores has not returned yet
	holds  map[uint64]*hold
	last   uint64 // ID
	held   int    // blocks in holds
	// invalidated counts how often what was computed became void.
	invalidated uint64
	// regrouped says that the ranks are new, and were not yet asked to load anything.
	regrouped bool
	// queries and hits count the tokens that new requests did not find in the prefix cache, and
	// those of them that were fetched.
	queries, hits uint64
}

// hold keeps the blocks of a Store.
type hold struct {
	seq     kvcache.Sequence
	tokens  []int32
	request *Request
}

// SourceOf is the Request.Source of what was stored up to a block of a name.
func SourceOf(digest [sha256.Size]byte) uint64 {
	return binary.LittleEndian.Uint64(digest[:]) | 1
}

// store asks for the first n parts of a running request to be stored, if they are full and known,
// unless that was done before, or half the cache is being stored.
func (s *Scheduler) store(r *Request, n int) {
	if !s.config.Offload {
		return
	}
	if r.invalidated != s.invalidated {
		r.invalidated, r.offered = s.invalidated, 0
	}
	n = min(n, r.seq.Entries())
	blocks := n * s.config.Groups.Count()
	if n <= r.offered || s.held > 0 && s.held+blocks > s.config.Blocks/2 {
		return
	}
	r.offered = n
	s.last++
	h := &hold{seq: s.cache.Pin(&r.seq, n), tokens: r.tokens[:n*s.config.BlockSize], request: r}
	s.holds[s.last] = h
	s.held += blocks
	s.stores = append(s.stores, Store{ID: s.last, Owner: r.Owner, Place: s.config.place,
		Blocks:  slices.Clone(h.seq.Blocks()),
		Digests: s.cache.Digests(&h.seq, h.tokens, 0, blocks)})
}

// Stores appends those that plans, and the ends of requests, have asked for since the last call.
// The plans that write to their blocks have been made.
func (s *Scheduler) Stores(to []Store) []Store {
	to = append(to, s.stores...)
	clear(s.stores)
	s.stores = s.stores[:0]
	return to
}

// Stored ends a Store: nothing reads its blocks any more, and the first n of them can be fetched.
// One that is not known is ignored.
func (s *Scheduler) Stored(st *Store, n int) {
	h := s.holds[st.ID]
	if h == nil {
		return
	}
	s.drop(st.ID)
	groups := s.config.Groups.Count()
	parts := n / groups
	if r, size := h.request, s.config.BlockSize; parts > 0 && r.running && parts*size > r.Remote {
		// Once it is preempted.
		r.Source, r.Remote = SourceOf(st.Digests[(parts-1)*groups]), parts*size
	}
}

// drop lets go of the blocks of a Store.
func (s *Scheduler) drop(id uint64) {
	h := s.holds[id]
	s.held -= len(h.seq.Blocks())
	s.cache.Release(&h.seq)
	delete(s.holds, id)
}

// dropStores ends those that Stores has not returned.
func (s *Scheduler) dropStores() {
	for i := range s.stores {
		s.drop(s.stores[i].ID)
	}
	clear(s.stores)
	s.stores = s.stores[:0]
}

// dropHolds ends all: the ranks have ended them.
func (s *Scheduler) dropHolds() {
	s.dropStores()
	for _, id := range slices.Sorted(maps.Keys(s.holds)) {
		s.drop(id)
	}
}

// regroup has new ranks load what was stored of the requests that ran on those before, in the order
// of their turns. Until that has come none starts (gathers): all go on together, as they do where
// they compute it, so that none is without a token for longer than the others, whatever ends the
// new ranks.
func (s *Scheduler) regroup(t *turn) {
	if !s.regrouped {
		return
	}
	s.regrouped = false
	all := slices.Concat(s.waiting.firsts, s.waiting.rest)
	slices.SortFunc(all, func(a, b *Request) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	for _, r := range all {
		if !r.ran || r.Source == 0 || r.remote != unfetched {
			continue
		}
		if !s.fetch(t, r) {
			return
		}
		r.gathered = r.remote == fetching
	}
}

// gathers tells whether no request starts.
func (s *Scheduler) gathers() bool {
	return slices.ContainsFunc(s.fetching, func(r *Request) bool { return r.gathered })
}

// retry lets a request that waits fetch once more what was stored of it, at its turn.
func (s *Scheduler) retry(r *Request) {
	if s.config.Offload && r.Source != 0 {
		r.remote = unfetched
	}
}

// count counts the tokens of a request that starts for the first time, of which hit are there.
func (s *Scheduler) count(r *Request, hit int) {
	if !s.config.Offload || r.computesAll() {
		return
	}
	came := min(r.came, hit)
	s.queries += uint64(len(r.tokens) - (hit - came))
	s.hits += uint64(came)
}
