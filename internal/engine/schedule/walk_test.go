package schedule

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/eagleray/eagleray/internal/compute/grouping"
	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine/draft"
	"github.com/eagleray/eagleray/internal/engine/kvcache"
	"github.com/eagleray/eagleray/internal/link/step"
	"github.com/eagleray/eagleray/internal/text/constrain"
)

// check verifies what must hold between any two actions.
func (s *Scheduler) check() error {
	var seqs []*kvcache.Sequence
	var tokens [][]int32
	pending, before := map[*Request]int{}, uint64(0)
	for i := range s.flights {
		f := &s.flights[(s.first+i)%len(s.flights)]
		due := i < s.owed
		if due != (f.plan != 0) || !due && len(f.entries) > 0 {
			return fmt.Errorf("flight %d of %d: %+v", i, s.owed, f)
		}
		if f.plan > s.plans || due && f.plan <= before {
			return fmt.Errorf("flight %d of %d is plan %d of %d", i, s.owed, f.plan, s.plans)
		}
		before = f.plan
		for _, e := range f.entries {
			if e.samples {
				pending[e.request]++
			}
		}
	}
	slots := map[uint32]bool{}
	for i, r := range s.running {
		if i > 0 && !s.running[i-1].outlasts(r) {
			return fmt.Errorf("running request %d is out of order", r.Key)
		}
		if !r.running || r.done || slots[r.slot] || s.requests[r.Key] != r {
			return fmt.Errorf("running request %d: %+v", r.Key, r)
		}
		if r.computed > r.length()+len(r.drafts) || r.pending != pending[r] || r.pending > 0 &&
			r.computed < len(r.tokens) {
			return fmt.Errorf("request %d has %d of %s tokens computed, %d in flight",
				r.Key, r.computed, r.count(), pending[r])
		}
		held := 0
		for _, b := range r.seq.Blocks() {
			if b != step.NoBlock {
				held++
			}
		}
		parts := len(r.seq.Blocks()) / s.config.Groups.Count()
		if most := s.config.cache().Most(parts * s.config.BlockSize); held > most && !r.HandOver &&
			!s.config.Offload {
			return fmt.Errorf("request %d holds %d blocks, needs %d at most", r.Key, held, most)
		}
		slots[r.slot] = true
		seqs = append(seqs, &r.seq)
		tokens = append(tokens, r.tokens)
	}
	waiting := [2]map[string]int{{}, {}}
	background := 0
	for _, r := range slices.Concat(s.waiting.firsts, s.waiting.rest) {
		waiting[r.class()][r.Client]++
		background += r.class()
		line := *s.waiting.of(r)
		if r.running || r.done || s.requests[r.Key] != r || line[r.heap] != r ||
			r.heap > 0 && r.before(line[(r.heap-1)/2]) {
			return fmt.Errorf("waiting request %d: %+v", r.Key, r)
		}
		if r.pending != pending[r] || r.pending > 0 && !r.ran {
			return fmt.Errorf("waiting request %d has %d tokens in flight, not %d", r.Key,
				pending[r], r.pending)
		}
		if r.computed != 0 || len(r.seq.Blocks()) != 0 {
			return fmt.Errorf("waiting request %d holds %d tokens, blocks %v", r.Key, r.computed,
				r.seq.Blocks())
		}
	}
	if err := s.checkTransfers(func(r *Request, seen []int32) {
		seqs, tokens = append(seqs, &r.seq), append(tokens, seen)
	}); err != nil {
		return err
	}
	for class, waiting := range waiting {
		clients := s.turns[class].clients
		if len(waiting) != len(clients) {
			return fmt.Errorf("%d clients wait, %d are known", len(waiting), len(clients))
		}
		for name, n := range waiting {
			if l := clients[name]; l == nil || l.waiting != n {
				return fmt.Errorf("%d requests of client %q wait: %+v", n, name, l)
			}
		}
	}
	if background != s.waiting.background {
		return fmt.Errorf("%d wait in the background, not %d", background, s.waiting.background)
	}
	for _, id := range slices.Concat(s.slots, s.freed) {
		if slots[id] {
			return fmt.Errorf("slot %d is in two places", id)
		}
		slots[id] = true
	}
	if len(slots) != s.config.MaxSeqs {
		return fmt.Errorf("%d slots of %d", len(slots), s.config.MaxSeqs)
	}
	if n := s.waiting.len() + s.transfers.waiting(); len(s.requests) != len(s.running)+n {
		return fmt.Errorf("%d requests, %d run and %d wait", len(s.requests), len(s.running), n)
	}
	return s.cache.Check(seqs, tokens)
}

// checkTransfers verifies the requests that receive, and what is kept, and tells of each that holds
// blocks, with its tokens.
func (s *Scheduler) checkTransfers(holds func(*Request, []int32)) error {
	asked := map[uint64]bool{}
	for _, r := range s.fetching {
		switch blocks := len(r.seq.Blocks()); {
		case r.running || r.remote != fetching || r.done == (s.requests[r.Key] == r):
			return fmt.Errorf("receiving request %d: %+v", r.Key, r)
		case blocks > 0 && blocks != s.fetchedBlocks(r):
			return fmt.Errorf("receiving request %d holds blocks %v", r.Key, r.seq.Blocks())
		case blocks > 0:
			asked[r.Source] = true
			holds(r, r.tokens)
		case !asked[r.Source]:
			return fmt.Errorf("receiving request %d waits for nobody", r.Key)
		}
	}
	for _, r := range s.fetched {
		if r.running || r.done || r.remote != fetched || s.requests[r.Key] != r ||
			r.computed == 0 || len(r.seq.Blocks()) != s.fetchedBlocks(r) {
			return fmt.Errorf("received request %d: %+v", r.Key, r)
		}
		holds(r, r.tokens)
	}
	for _, r := range s.pinned {
		holds(r, r.tokens)
	}
	held := 0
	for _, h := range s.holds {
		held += len(h.seq.Blocks())
		holds(&Request{scheduled: scheduled{seq: h.seq}}, h.tokens)
	}
	if held != s.held || held == 0 && len(s.stores) > 0 {
		return fmt.Errorf("%d blocks are held, not %d, for %d stores", held, s.held, len(s.stores))
	}
	return nil
}

// fetchedBlocks is how long the block table of a request is that fetches.
func (s *Scheduler) fetchedBlocks(r *Request) int {
	return s.cache.BlocksFor(s.cache.Ahead(s.toFetch(r), len(r.tokens)))
}

// client is what a client of the walk knows of its request.
type client struct {
	request *Request
	output  []int32
	finish  sample.Finish
	stop    int32
	cached  int
	prompts []int32 // tokens of prompt logprobs
	aborted bool
	// asked says that it has asked for blocks from elsewhere.
	asked bool
}

// reference generates the whole output of a request at once, without a scheduler.
func reference(c Config, q *Request, vocab int) (output []int32, finish sample.Finish, stop int32) {
	h := uint64(0)
	for _, t := range q.Prompt {
		h = state(h, t)
	}
	for {
		t := pick(h, vocab)
		h = state(h, t)
		output = append(output, t)
		if t == q.Params.EOS && !q.Params.IgnoreEOS {
			return output, sample.FinishStop, -1
		}
		if slices.Contains(q.Params.StopTokens, t) {
			return output, sample.FinishStop, t
		}
		if len(output) == int(q.Params.MaxTokens) || len(q.Prompt)+len(output) == c.MaxModelLen {
			return output, sample.FinishLength, -1
		}
		if len(output) >= int(q.Params.MinTokens) && repeatsItself(output, q.Repetition) {
			return output, sample.FinishRepetition, -1
		}
	}
}

// TestRandomWalk drives random configurations, with one to four stages and one to five plans in
// flight, with random requests, aborts, losses of all workers and changes of their weights. The
// worker model executes every plan (through the codec), and every output must be what the request
// generates alone.
func TestRandomWalk(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 40
	}
	var seen Stats
	ahead, arrived, handed, pinnedAhead, cancelled, forgot, stale := 0, 0, 0, 0, 0, 0, 0
	restored := 0 // tokens before a state
	external, loadedInPart := uint64(0), 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWalk(t, seed)
			w.run()
			st := w.s.Stats()
			seen.Preemptions += st.Preemptions
			seen.Drafted.add(&st.Drafted)
			seen.Cache.Hits += st.Cache.Hits
			seen.Cache.Evictions += st.Cache.Evictions
			if w.config.Snapshots > 0 {
				restored += int(st.Cache.Hits)
			}
			external += st.ExternalHits
			loadedInPart += w.inPart
			ahead += w.ahead
			arrived, handed = arrived+w.arrived, handed+w.handed
			forgot, stale = forgot+w.forgot, stale+w.lapsed
			pinnedAhead, cancelled = pinnedAhead+w.pinnedAhead, cancelled+len(w.cancelled)
		})
	}
	if seen.Drafted.Accepted == 0 || seen.Drafted.Accepted == seen.Drafted.Tokens ||
		seen.Preemptions == 0 || seen.Cache.Hits == 0 || seen.Cache.Evictions == 0 || ahead == 0 ||
		arrived == 0 || handed == 0 || pinnedAhead == 0 || cancelled == 0 || forgot == 0 ||
		stale == 0 || restored == 0 || external == 0 || loadedInPart == 0 {
		t.Errorf("the walks never met %+v, %d tokens before a state, or %d unknown tokens, %d "+
			"stored ones, %d fetches in part, %d fetches, %d given up, %d handed over, %d as "+
			"offered, %d forgotten, %d fetches lapsed",
			seen, restored, ahead, external, loadedInPart, arrived,
			cancelled, handed, pinnedAhead, forgot, stale)
	}
}

type walk struct {
	*testing.T
	rng      *rand.Rand
	config   Config
	s        *Scheduler
	worker   *worker
	vocab    int
	clients  map[uint64]*client
	open     []uint64
	prefixes [][]int32
	// due are the results of the plans in flight, oldest first; plan is reused.
	due   []*step.Result
	plan  step.Plan
	wire  step.Plan
	out   []Output
	ahead int      // rows that went on from an unknown token
	ran   []uint64 // keys of the requests that ran before the newest plan
	// fetches are those that are not answered, kept what is kept of requests.
	fetches []Fetch
	pinned  map[uint64]*HandOver
	// pins are the last ones, offered how many were kept as offered; forsaken are all that were.
	pins            map[uint64]HandOver
	pinnedAhead     int
	cancelled       map[uint64]bool
	arrived, handed int
	// stale are the fetches that bring what other weights have computed, forgot counts the
	// requests that ran when the weights changed.
	stale  map[uint64]bool
	forgot int
	// stores are those that are not answered, stored is what the positions of blocks have by the
	// blocks' names, which are in the order in which they came. inPart counts fetches of it that
	// found some blocks, lapsed those of what is void.
	stores         []Store
	names          [][32]byte
	stored         map[[32]byte][]uint64
	inPart, lapsed int
}

func newWalk(t *testing.T, seed uint64) *walk {
	rng := rand.New(rand.NewPCG(seed, 3))
	c := Config{
		MaxSeqs: 1 + rng.IntN(20), MaxModelLen: 2 + rng.IntN(40), BlockSize: 1 + rng.IntN(5),
		PrefixCaching: rng.IntN(4) > 0, ChunkedPrefill: rng.IntN(4) > 0, Priority: rng.IntN(2) == 0,
	}
	c.Stages = 1 + int(seed%4)
	c.MaxInFlight = c.Stages + rng.IntN(2)
	c.MaxTokens = c.MaxSeqs + rng.IntN(30)
	if !c.ChunkedPrefill {
		c.MaxTokens = max(c.MaxTokens, c.MaxModelLen)
	} else if rng.IntN(3) == 0 {
		c.LongPrefillTokens = 1 + rng.IntN(8)
	}
	if rng.IntN(2) == 0 {
		c.Window = 1 + rng.IntN(24)
		if rng.IntN(2) == 0 {
			c.Groups = grouping.Groups{Whole: 1 + rng.IntN(2), Windowed: 1 + rng.IntN(3)}
		}
	} else if rng.IntN(2) == 0 {
		c.Snapshots = 1 + rng.IntN(5)
	}
	c.Offload = c.PrefixCaching && c.Snapshots == 0 && rng.IntN(2) == 0
	if c.Snapshots == 0 && rng.IntN(3) > 0 {
		c.Draft = draft.Config{Tokens: 1 + rng.IntN(step.MaxDrafts), Min: 1 + rng.IntN(2),
			Max: 2 + rng.IntN(3), Rows: 1 + rng.IntN(60)}
		if d := &c.Draft; rng.IntN(2) == 0 {
			d.Max, d.Votes, d.Requests = 8, 1+rng.IntN(9), rng.IntN(20)
			d.Factor, d.MinProb = 4*rng.Float64(), rng.Float64()
		}
		c.Draft.Model, c.Draft.MaxLen = rng.IntN(3) == 0, 1+rng.IntN(c.MaxModelLen)
		c.Draft.Head = c.Draft.Model && c.MaxModelLen%2 == 0
	}
	c.Blocks = c.Least() + rng.IntN(12*c.Groups.Count())
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	w := &walk{
		T: t, rng: rng, config: c, s: s, worker: newWorker(c), vocab: 2 + rng.IntN(12),
		clients: map[uint64]*client{}, pinned: map[uint64]*HandOver{},
		pins: map[uint64]HandOver{}, cancelled: map[uint64]bool{},
		stale: map[uint64]bool{}, stored: map[[32]byte][]uint64{},
	}
	for range 3 {
		w.prefixes = append(w.prefixes, w.tokens(rng.IntN(c.MaxModelLen)))
	}
	return w
}

func (w *walk) tokens(n int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(w.rng.IntN(w.vocab))
	}
	return v
}

func (w *walk) run() {
	for range 400 {
		switch n := w.rng.IntN(100); {
		case n < 18:
			name, background := fmt.Sprint(w.rng.IntN(3)), w.rng.IntN(3) == 0
			lot := uint64(len(w.clients) + 1)
			for i := range 1 + w.rng.IntN(3) {
				w.add(name, i, background, lot)
			}
		case n < 22 && len(w.open) > 0:
			w.abort(w.open[w.rng.IntN(len(w.open))])
		case n < 23:
			w.lose()
		case n < 24:
			w.forget()
		case n < 36:
			w.transfer()
		default:
			w.step()
		}
		w.check()
	}
	for i := 0; len(w.open) > 0; i++ {
		if i > 200*len(w.clients) {
			w.Fatalf("no end in sight:\n%v", w.s)
		}
		if i%20 == 0 && len(w.fetches)+len(w.stores) > 0 {
			w.transfer() // which ends some time, whatever else there is to do
		}
		w.step()
		w.check()
	}
	for len(w.fetches) > 0 || len(w.pinned) > 0 || len(w.stores) > 0 {
		w.transfer()
		w.check()
	}
	for w.step() {
		w.check()
	}
	for len(w.stores) > 0 {
		w.transfer()
		w.check()
	}
	w.computeHere()
}

func (w *walk) check() {
	w.Helper()
	if err := w.s.check(); err != nil {
		w.Fatalf("%v\n%v", err, w.s)
	}
}

// add adds a client's i-th request of a lot, which is the number of the first.
func (w *walk) add(name string, i int, background bool, lot uint64) {
	key := uint64(len(w.clients) + 1)
	prompt := append(slices.Clone(w.prefixes[w.rng.IntN(3)]), w.tokens(w.rng.IntN(5))...)
	prompt = append(prompt, 0)[:min(len(prompt)+1, w.config.MaxModelLen-1)]
	p := sample.Params{
		MaxTokens: int32(1 + w.rng.IntN(20)), EOS: int32(w.rng.IntN(w.vocab+1)) - 1,
		IgnoreEOS: w.rng.IntN(3) == 0,
		Logprobs:  sample.NoLogprobs, PromptLogprobs: sample.NoLogprobs,
	}
	p.MinTokens = int32(w.rng.IntN(int(p.MaxTokens)))
	if w.rng.IntN(3) == 0 {
		p.StopTokens = w.tokens(2)
	}
	if w.rng.IntN(3) == 0 {
		p.Logprobs = 0
	}
	if w.rng.IntN(6) == 0 {
		p.PromptLogprobs = 0
	}
	salt := []string{"", "", "salt"}[w.rng.IntN(3)]
	q := &Request{Key: key, Prompt: prompt, Params: p, Salt: salt, Priority: w.rng.IntN(3),
		Client: name, Index: i, Background: background}
	if w.rng.IntN(4) == 0 {
		q.Constraint = constrain.Spec{Kind: constrain.Regex, Text: fmt.Sprint(key)}
		w.worker.compiling[q.Constraint] = w.rng.IntN(6)
	}
	if w.rng.IntN(3) == 0 {
		q.Repetition = Repetition{MinPattern: w.rng.IntN(3), MaxPattern: 2 + w.rng.IntN(3),
			MinCount: 2}
	}
	q.HandOver = !w.config.Offload && w.config.Snapshots == 0 && w.rng.IntN(4) == 0
	if w.config.Offload {
		w.find(q)
	} else if w.config.Snapshots == 0 && w.rng.IntN(3) == 0 {
		q.Source, q.Remote = key, w.rng.IntN(len(prompt)+1)
		if first := w.clients[lot]; i > 0 && first.request.Source == lot {
			// A choice of the same answer.
			q.Source, q.Remote = lot, first.request.Remote
			q.Prompt, q.Salt = first.request.Prompt, first.request.Salt
		}
	}
	w.clients[key] = &client{request: q, cached: -1}
	w.open = append(w.open, key)
	w.s.Add(q)
}

// find has a request begin with what is stored of its prompt.
func (w *walk) find(q *Request) {
	chain, size := kvcache.NewChain(q.CacheSalt()), w.config.BlockSize
	for n := size; n <= len(q.Prompt); n += size {
		d := chain.Next(q.Prompt[n-size : n])
		if w.stored[d] != nil || w.rng.IntN(8) == 0 {
			q.Source, q.Remote = SourceOf(d), n
		}
	}
}

// load copies the leading blocks of a fetch that are stored, and returns how many those are.
func (w *walk) load(f *Fetch) int {
	size := w.config.BlockSize
	for i, d := range f.Digests {
		if f.Blocks[i] != step.NoBlock && w.stored[d] == nil || w.rng.IntN(50) == 0 {
			if i > 0 {
				w.inPart++
			}
			return i
		}
		if f.Blocks[i] != step.NoBlock {
			copy(w.worker.memory[int(f.Blocks[i])*size:][:size], w.stored[d])
		}
	}
	return len(f.Blocks)
}

// answer ends one of the stores; some blocks are lost at once, others as time goes by.
func (w *walk) answer() {
	i, size := w.rng.IntN(len(w.stores)), w.config.BlockSize
	st := w.stores[i]
	w.stores = slices.Delete(w.stores, i, i+1)
	n := w.rng.IntN(len(st.Blocks) + 1)
	for j, b := range st.Blocks[:n] {
		if b != step.NoBlock {
			if w.stored[st.Digests[j]] == nil {
				w.names = append(w.names, st.Digests[j])
			}
			w.stored[st.Digests[j]] = slices.Clone(w.worker.memory[int(b)*size:][:size])
		}
	}
	w.s.Stored(&st, n)
	w.s.Stored(&st, n) // which is ignored
	for len(w.names) > 60 {
		delete(w.stored, w.names[0])
		w.names = w.names[1:]
	}
}

func (w *walk) abort(key uint64) {
	if !w.s.Abort(key) {
		w.Fatalf("request %d is not there to abort", key)
	}
	if w.s.Abort(key) {
		w.Fatalf("request %d was there twice", key)
	}
	w.clients[key].aborted = true
	w.cancelFetches()
	w.open = slices.DeleteFunc(w.open, func(k uint64) bool { return k == key })
}

// lose replaces the workers, or starts them again with what they hold of all plans that were
// answered; a result that was under way comes late and must be ignored.
func (w *walk) lose() {
	remembered := w.rng.IntN(2) == 0
	w.s.PreemptAll(remembered)
	if c := w.s.Stats().Cache; w.s.Running() != 0 || c.Used != 0 || !remembered && c.Entries != 0 {
		w.Fatalf("after PreemptAll:\n%v", w.s)
	}
	w.worker = w.worker.replace(w.config, remembered)
	w.worker.spoil(w.s.Applied())
	clear(w.pinned)
	late := w.fetches
	w.fetches = nil
	for _, f := range late {
		w.s.Fetched(f.Key, w.rng.IntN(2))
	}
	for i := range w.stores {
		w.s.Stored(&w.stores[i], 1)
	}
	w.stores = nil
	for _, r := range w.due {
		if w.s.Check(r) == nil {
			w.Fatal("Check accepts the result of a plan that was lost")
		}
		if out := w.s.Update(r, nil); len(out) != 0 {
			w.Fatalf("a late result gave %v", out)
		}
	}
	w.due = nil
}

// forget has the worker compute with other weights from here on: whatever it has computed or is
// still to get from others is rubbish, and no request may go on from it. What it keeps for others
// stays as it is until they have read it.
func (w *walk) forget() {
	for len(w.due) > 0 {
		w.apply()
		w.check()
	}
	w.forgot += w.s.Running()
	w.s.Invalidate()
	if c := w.s.Stats().Cache; w.s.Running() != 0 || c.Entries != 0 {
		w.Fatalf("after Forget:\n%v", w.s)
	}
	kept := map[int]bool{}
	for _, h := range w.pinned {
		for _, b := range h.Blocks {
			kept[int(b)] = true
		}
	}
	for i := range w.worker.memory {
		if !kept[i/w.config.BlockSize] {
			w.worker.memory[i] = 0xf02
		}
	}
	for _, f := range w.fetches {
		w.stale[f.Key] = true
	}
	clear(w.stored)
	w.names = nil
	for len(w.stores) > 0 {
		w.s.Stored(&w.stores[0], len(w.stores[0].Blocks))
		w.stores = w.stores[1:]
	}
	if st := w.s.Stores(nil); len(st) > 0 {
		w.Fatalf("after Invalidate %+v are to be stored", st)
	}
}

// step takes one part of a turn: it makes and executes a plan, or applies the oldest result, as
// chance has it or as it must.
func (w *walk) step() bool {
	if len(w.due) == w.config.MaxInFlight || len(w.due) > 0 && w.rng.IntN(3) == 0 {
		if w.s.InFlight() == w.config.MaxInFlight && w.s.Schedule(&w.plan) {
			w.Fatalf("plan %d is one too many in flight", w.plan.ID)
		}
		w.apply()
		return true
	}
	before, running := w.s.Stats(), w.s.Running()
	w.ran = w.ran[:0]
	for _, r := range w.s.running {
		w.ran = append(w.ran, r.Key)
	}
	w.stores = w.s.Stores(w.stores)
	made := w.s.Schedule(&w.plan)
	w.fetch()
	w.pinAhead()
	if !made {
		if len(w.due) > 0 {
			w.apply()
			return true
		}
		if len(w.open) > 0 && len(w.fetches)+len(w.pinned)+len(w.stores) > 0 {
			w.transfer() // which makes room
			return true
		}
		if len(w.open) > 0 {
			w.Fatalf("nothing to do for %v:\n%v", w.open, w.s)
		}
		return false
	}
	w.turns(running)
	w.classes(w.s.Stats().Preemptions > before.Preemptions)
	if err := step.DecodePlan(step.AppendPlan(nil, &w.plan), &w.wire); err != nil {
		w.Fatal(err)
	}
	result, err := w.worker.execute(w.config, &w.wire, w.vocab)
	if err != nil {
		w.Fatalf("%v\n%+v\n%v", err, w.wire, w.s)
	}
	for _, row := range w.plan.Rows {
		if row.Source == step.FromSampler {
			w.ahead++
		}
	}
	w.due = append(w.due, result)
	return true
}

// fetch takes note of what requests ask for from elsewhere.
func (w *walk) fetch() {
	for _, f := range w.s.Fetches(nil) {
		c := w.clients[f.Key]
		if c.asked && !w.config.Offload || c.request.Source == 0 || f.Plan > w.s.plans {
			w.Fatalf("fetch %+v of request %+v", f, c.request)
		}
		c.asked = true
		if len(f.Blocks) == 0 {
			continue
		}
		end := (f.First + len(f.Blocks)) / w.worker.groups * w.config.BlockSize
		if end > c.request.Remote || end >= len(c.request.tokens) || c.request.computesAll() {
			w.Fatalf("fetch %+v of request %+v", f, c.request)
		}
		// What was in the blocks is lost from now on.
		for _, b := range f.Blocks {
			for i := range w.config.BlockSize {
				if b != step.NoBlock {
					w.worker.memory[int(b)*w.config.BlockSize+i] = 0xbad
				}
			}
		}
		w.fetches = append(w.fetches, f)
	}
}

// pinAhead wants what a plan offers to be of requests that it computes, and remembers it.
func (w *walk) pinAhead() {
	for _, o := range w.s.Pins(nil) {
		r := w.s.requests[o.Key]
		if r == nil || !r.HandOver || !r.running || o.Plan != w.s.plans || len(o.Blocks) == 0 {
			w.Fatalf("%+v is offered of %+v", o, r)
		}
		w.pins[o.Key] = o.HandOver
	}
}

// cancelFetches wants fetches to be given up that are under way, each once, and only those that no
// request waits for.
func (w *walk) cancelFetches() {
	for _, key := range w.s.Cancelled(nil) {
		source := w.clients[key].request.Source
		waits := slices.ContainsFunc(w.s.fetching, func(r *Request) bool {
			return r.Source == source && !r.done && (len(r.seq.Blocks()) == 0 || r.Key == key)
		})
		asked := slices.ContainsFunc(w.fetches, func(f Fetch) bool { return f.Key == key })
		if waits || !asked || w.cancelled[key] {
			w.Fatalf("fetch %d is given up: waited for %v, under way %v", key, waits, asked)
		}
		w.cancelled[key] = true
	}
	for _, r := range w.s.fetching {
		if len(r.seq.Blocks()) > 0 && r.done && !w.cancelled[r.Key] &&
			!slices.ContainsFunc(w.s.fetching,
				func(o *Request) bool { return o.Source == r.Source && !o.done }) {
			w.Fatalf("fetch %d is for nobody, and goes on", r.Key)
		}
	}
}

// transfer answers one of the fetches, or has what is kept of a request read and given up.
func (w *walk) transfer() {
	if len(w.stores) > 0 && w.rng.IntN(2) == 0 {
		w.answer()
		return
	}
	if n := len(w.fetches); n > 0 && (len(w.pinned) == 0 || w.rng.IntN(2) == 0) {
		i := w.rng.IntN(n)
		f := w.fetches[i]
		w.fetches = slices.Delete(w.fetches, i, i+1)
		n := len(f.Blocks)
		switch {
		case w.stale[f.Key]:
			delete(w.stale, f.Key)
			w.lapsed++
		case w.config.Offload:
			n = w.load(&f)
		case w.rng.IntN(4) == 0:
			n = 0
		default:
			w.worker.memorise(f, w.clients[f.Key].request.Prompt)
			w.arrived++
		}
		w.s.Fetched(f.Key, n)
		w.s.Fetched(f.Key, 1) // which is ignored
		return
	}
	for _, key := range slices.Sorted(maps.Keys(w.pinned)) {
		if w.rng.IntN(2) == 0 {
			continue
		}
		k, q := w.pinned[key], w.clients[key].request
		h := uint64(0)
		size, groups := w.config.BlockSize, w.worker.groups
		end := len(k.Blocks) / groups * size
		for i, t := range q.Prompt[:end] {
			h = state(h, t)
			for g := range groups {
				if i < w.worker.from(end, g) {
					continue // no row reads it that goes on from there
				}
				b := int(k.Blocks[i/size*groups+g])
				if w.worker.memory[b*size+i%size] != h+uint64(g) {
					w.Fatalf("position %d of kept request %d, block %d, holds something else", i,
						key, b)
				}
			}
		}
		w.s.Release(key)
		delete(w.pinned, key)
		w.handed++
		return
	}
}

// classes checks that requests in the background start only when no other waits and the plan has
// preempted none; and that a plan lets others in only for those of the background that it preempts.
func (w *walk) classes(preempted bool) {
	started := func(slot uint32) *Request {
		i := slices.IndexFunc(w.s.running, func(r *Request) bool { return r.slot == slot })
		return w.s.running[i]
	}
	foreground := 0
	for _, q := range w.plan.New {
		switch r := started(q.Slot); {
		case !r.Background:
			foreground++
		case preempted || w.s.waiting.len() > w.s.waiting.background ||
			w.s.nextFetched(false) != nil:
			w.Fatalf("request %d has started in the background:\n%v", r.Key, w.s)
		}
	}
	if !preempted || foreground == 0 {
		return
	}
	for _, r := range slices.Concat(w.s.waiting.firsts, w.s.waiting.rest) {
		if !r.Background && slices.Contains(w.ran, r.Key) {
			w.Fatalf("plan %d preempts request %d and lets in", w.plan.ID, r.Key)
		}
	}
}

// turns checks who has a place in the newest plan, before which so many requests were running: with
// stages they take turns.
func (w *walk) turns(running int) {
	newest := &w.s.flights[(w.s.first+w.s.owed-1)%len(w.s.flights)]
	if newest.plan != w.plan.ID {
		w.Fatalf("plan %d is in flight as %d", w.plan.ID, newest.plan)
	}
	planned, young := map[*Request]bool{}, map[*Request]bool{}
	for _, e := range newest.entries {
		planned[e.request] = true
	}
	for i := range w.s.owed - 1 {
		f := &w.s.flights[(w.s.first+i)%len(w.s.flights)]
		if int(newest.plan-f.plan) >= w.config.Stages {
			continue
		}
		for _, e := range f.entries {
			if e.samples {
				young[e.request] = true
			}
			if e.samples && planned[e.request] {
				w.Fatalf("plan %d computes request %d, whose token plan %d of %d stages samples",
					newest.plan, e.request.Key, f.plan, w.config.Stages)
			}
		}
	}
	isNew := map[uint32]bool{}
	for _, q := range w.plan.New {
		isNew[q.Slot] = true
	}
	decodes, most := 0, (running+w.config.Stages-1)/w.config.Stages
	for _, row := range w.plan.Rows {
		if int(row.Count)-row.Drafts() == 1 && row.Sample && !isNew[row.Slot] {
			decodes++
		}
	}
	if decodes > most {
		w.Fatalf("plan %d decodes %d of %d requests, %d stages", newest.plan, decodes, running,
			w.config.Stages)
	}
	for _, r := range w.s.running {
		if !planned[r] && !young[r] && len(r.drafts) == 0 && !r.asked && decodes < most &&
			!r.planned(w.config.MaxModelLen) {
			w.Fatalf("plan %d decodes %d of %d requests, %d stages, and leaves request %d out",
				newest.plan, decodes, running, w.config.Stages, r.Key)
		}
	}
}

func (w *walk) apply() {
	for _, r := range w.due[1:] {
		if w.s.Check(r) == nil {
			w.Fatalf("Check accepts the result of plan %d before that of plan %d", r.Plan,
				w.due[0].Plan)
		}
	}
	r := w.due[0]
	w.due = w.due[1:]
	if err := w.s.Check(r); err != nil {
		w.Fatal(err)
	}
	w.out = w.s.Update(r, w.out[:0])
	for _, o := range w.out {
		c := w.clients[o.Key]
		if c.aborted || c.finish != sample.Unfinished {
			w.Fatalf("output %+v after the end", o)
		}
		if c.cached >= 0 && c.cached != o.Cached || o.Cached < 0 ||
			o.Cached >= len(c.request.Prompt) {
			w.Fatalf("output %+v: cached was %d", o, c.cached)
		}
		c.cached = o.Cached
		if o.PromptLogprobs != nil {
			if int(o.PromptLogprobs.Start) != len(c.prompts)+1 {
				w.Fatalf("request %d: prompt logprobs from %d, had %d", o.Key,
					o.PromptLogprobs.Start, len(c.prompts))
			}
			for _, e := range o.PromptLogprobs.Entries {
				c.prompts = append(c.prompts, e.Sampled.Token)
			}
		}
		if o.HandOver != nil {
			w.pinned[o.Key] = o.HandOver
			pinnedAhead := w.pins[o.Key]
			if slices.Equal(pinnedAhead.Blocks, o.HandOver.Blocks) &&
				pinnedAhead.Plan == o.HandOver.Plan {
				w.pinnedAhead++
			} else if len(c.output)+len(o.Tokens) == 1 {
				w.Fatalf("%+v was offered of request %d, %+v is kept", pinnedAhead, o.Key,
					o.HandOver)
			}
			if o.HandOver.Plan > w.s.Applied() {
				w.Fatalf("request %d is handed over before plan %d", o.Key, o.HandOver.Plan)
			}
			if o.Finish == sample.Unfinished || !c.request.HandOver {
				w.Fatalf("request %d hands over %+v", o.Key, o)
			}
		}
		if len(o.Tokens) == 0 {
			continue
		}
		c.output = append(c.output, o.Tokens...)
		c.finish, c.stop = o.Finish, o.StopToken
		wanted := c.request.Params.Logprobs != sample.NoLogprobs
		if wanted != (len(o.Logprobs) > 0) || wanted && len(o.Logprobs) != len(o.Tokens) {
			w.Fatalf("request %d: tokens %v with logprobs %+v", o.Key, o.Tokens, o.Logprobs)
		}
		for i := range o.Logprobs {
			if o.Logprobs[i].Sampled.Token != o.Tokens[i] {
				w.Fatalf("request %d: tokens %v with logprobs %+v", o.Key, o.Tokens, o.Logprobs)
			}
		}
		if o.Finish != sample.Unfinished {
			w.open = slices.DeleteFunc(w.open, func(k uint64) bool { return k == o.Key })
		}
	}
}

// computeHere looks back when all requests have ended.
func (w *walk) computeHere() {
	st := w.s.Stats()
	if st.Waiting != 0 || st.Running != 0 || st.Cache.Used != 0 || len(w.worker.slots) != 0 {
		w.Fatalf("left over: %d slots\n%v", len(w.worker.slots), w.s)
	}
	for key, c := range w.clients {
		output, finish, stop := reference(w.config, c.request, w.vocab)
		if c.aborted {
			if len(c.output) > len(output) || !slices.Equal(c.output, output[:len(c.output)]) {
				w.Errorf("request %d: output %v before abort, want the beginning of %v", key,
					c.output, output)
			}
			continue
		}
		if !slices.Equal(c.output, output) || c.finish != finish || c.stop != stop {
			w.Errorf("request %d: output %v %v %d, want %v %v %d", key, c.output, c.finish, c.stop,
				output, finish, stop)
		}
		if c.request.Params.PromptLogprobs != sample.NoLogprobs && !slices.Equal(c.prompts,
			c.request.Prompt[1:]) {
			w.Errorf("request %d: prompt logprobs for %v, want %v", key, c.prompts,
				c.request.Prompt[1:])
		}
	}
}

// TestDeterministic replays a walk and wants the same plans.
func TestDeterministic(t *testing.T) {
	trace := func(seed uint64) (all []byte) {
		w := newWalk(t, seed)
		for i := range 200 {
			w.add(fmt.Sprint(i%7), 0, false, uint64(len(w.clients)+1))
			for range 3 {
				w.step()
				all = step.AppendPlan(all, &w.plan)
			}
		}
		return all
	}
	for seed := range uint64(10) {
		if a, b := trace(seed), trace(seed); !slices.Equal(a, b) {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}
