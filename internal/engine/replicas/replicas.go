// Package replicas puts several engines of one model behind one door (--data-parallel-size): each
// request goes to the engine that will be done with it first, judged by the work it was given and
// by the beginnings of prompts that its prefix cache holds. Every token and log-probability is the
// same whichever engine computes it.
package replicas

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/compute/sample"
	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// Engine has the methods that the router uses; *engine.Engine is the real one.
type Engine interface {
	Info() *open.Info
	Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error)
	Healthy(ctx context.Context) error
	Totals() engine.Totals
	Report() []executor.RankStatus
	Links() []metrics.Link
	Failed() <-chan struct{}
	Stop(ctx context.Context) error
	Cut() int
	AwaitStored(ctx context.Context)
	// Relayout and CatchUp are for engines whose number or layout changes.
	Relayout(ctx context.Context, z open.Sizes) error
	CatchUp(ctx context.Context) error
}

// member is an engine with the router's records of it.
type member struct {
	Engine
	number int // among the engines of this server
	// gone is closed, once by closing, when it was removed.
	gone    chan struct{}
	closing sync.Once

	// The rest belongs to Router.mu. work and held of the candidate are set for each request.
	candidate
	prefixes prefixes
	// idle is closed when a member that drains has no sequences left; nil for others.
	idle chan struct{}
}

// Router shares requests out among engines. It serves as long as one of them does. Its methods are
// safe for concurrent use.
type Router struct {
	info   atomic.Pointer[open.Info]
	events status.Listener
	seed   maphash.Seed
	// capacity is how many tokens of prompts are remembered of each engine.
	capacity int
	// site opens more engines; nil where their number is fixed.
	site site

	mu sync.Mutex
	// members are the engines by number, without gaps. The list is never written: another one takes
	// its place.
	members []*member
	turn    int
	// candidates is what choose is given.
	candidates []candidate
	over       bool // failed is closed

	scaling scaling

	// watchers wait for the engines to fail; life ends with Stop, failed is closed when all have
	// failed.
	watchers sync.WaitGroup
	life     context.Context
	end      context.CancelFunc
	failed   chan struct{}
}

// Open opens the engines of a configuration and a router over them, also over a single one.
func Open(ctx context.Context, opt engine.Options) (*Router, *metrics.Metrics, error) {
	var router atomic.Pointer[Router]
	opt.Events = status.Tee(opt.Events, func(e status.Event) {
		r := router.Load()
		if r == nil {
			return
		}
		switch event, number := status.Source(e); event.(type) {
		case status.GroupRecovered:
			r.clearPrefixes(number)
			r.mu.Lock()
			r.describe()
			r.mu.Unlock()
		case status.CacheReset:
			r.clearPrefixes(number)
		}
	})
	opener, err := engine.NewOpener(ctx, opt)
	if err != nil {
		return nil, nil, err
	}
	engines, err := opener.OpenFirst(ctx)
	if err != nil {
		return nil, nil, err
	}
	r := New(interfaces(engines), opt.Config.Cache.PrefixCaching, opener.Events())
	r.site = site{opener}
	router.Store(r)
	return r, opener.Metrics(), nil
}

func interfaces(opened []*engine.Engine) []Engine {
	engines := make([]Engine, len(opened))
	for i, e := range opened {
		engines[i] = e
	}
	return engines
}

// New makes a router over engines of the same model, at least one. Stop ends them. events is
// notified of what becomes of them as a whole.
func New(engines []Engine, prefixCaching bool, events status.Listener) *Router {
	r := &Router{events: events, seed: maphash.MakeSeed(), failed: make(chan struct{})}
	r.life, r.end = context.WithCancel(context.Background())
	if info := engines[0].Info(); prefixCaching {
		r.capacity = min(info.CacheTokens, maxRemembered)
	}
	members := make([]*member, len(engines))
	for i, e := range engines {
		members[i] = r.newMember(i, e)
	}
	r.replace(members)
	r.watchAll(members)
	return r
}

// newMember makes a member of an engine, which is watched once it is on the list.
func (r *Router) newMember(number int, e Engine) *member {
	return &member{Engine: e, number: number, gone: make(chan struct{}),
		prefixes: newPrefixes(r.capacity)}
}

// watchAll watches members until they end.
func (r *Router) watchAll(list []*member) {
	for _, m := range list {
		r.watchers.Go(func() { r.watch(m) })
	}
}

// watch waits until an engine fails, then stops it, which frees the resources of its dead group.
// The other engines go on.
func (r *Router) watch(m *member) {
	select {
	case <-r.life.Done():
		return
	case <-m.gone:
		return
	case <-m.Failed():
	}
	if r.down(m); r.closeIfAllDown() {
		return
	}
	if err := m.Stop(context.Background()); err != nil {
		r.events.Emit(status.EngineTrouble{Engine: r.Info().First + m.number,
			What: "a failed engine was not ended", Cause: err})
	}
}

// Events is notified of what becomes of the engines as a whole.
func (r *Router) Events() status.Listener { return r.events }

// replace puts another list of members in the place of the one there is, and describes it.
func (r *Router) replace(members []*member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members = members
	r.describe()
}

// describe shows the engines with the ranks that they have now. r.mu is held.
func (r *Router) describe() {
	info := *r.members[0].Info()
	info.Engines, info.WeightBytes, info.Ranks = len(r.members), 0, nil
	for _, m := range r.members {
		info.WeightBytes += m.Info().WeightBytes
		info.Ranks = append(info.Ranks, m.Info().Ranks...)
	}
	r.info.Store(&info)
}

// list returns the current members.
func (r *Router) list() []*member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members
}

// closeIfAllDown closes failed if all engines have failed, and reports whether they have.
func (r *Router) closeIfAllDown() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	living := 0
	for _, m := range r.members {
		if !m.candidate.down {
			living++
		}
	}
	if living > 0 {
		r.events.Emit(status.EnginesLeft{Engines: living})
		return false
	}
	if !r.over {
		r.over = true
		close(r.failed)
	}
	return true
}

// down notes that an engine has failed.
func (r *Router) down(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.candidate.down = true
}

// clearPrefixes removes the beginnings of an engine that has lost its cache, by its number among
// those of all servers.
func (r *Router) clearPrefixes(number int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := number - r.Info().First; i < len(r.members) {
		r.members[i].prefixes.clear()
	}
}

// Submit gives requests whose outputs belong together to one engine; see engine.Engine.Submit. It
// retries on the next best engine when one fails before it has accepted them.
func (r *Router) Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error) {
	var room [64]beginning
	w := r.weigh(room[:0], list, len(r.list()) > 1)
	for {
		m, load := r.reserve(ctx, &w)
		if m == nil {
			return nil, r.together(r.Health(ctx))
		}
		s, err := m.Submit(ctx, list...)
		if err == nil {
			return &stream{Stream: s, router: r, engine: m, load: load, sequences: w.sequences}, nil
		}
		r.release(m, load, w.sequences, 0)
		if !errors.Is(err, engine.ErrFailed) {
			return nil, err
		}
		r.down(m)
	}
}

// assumedOutput bounds the tokens of output that a sequence counts for: most end long before their
// max_tokens, which is often as much as the context has room for.
const assumedOutput = 128

// weight measures requests that belong together, for any engine.
type weight struct {
	// list are the beginnings of their prompts, one prompt after the other; prompts are the ends of
	// each within list.
	list    []beginning
	prompts []int
	// reads says that cached beginnings are used, adds that their beginnings will be cached
	// afterwards.
	reads, adds bool
	// prompt and output count the tokens of all, sequences is how many there are.
	prompt, output, sequences int
}

// weigh measures requests, outside the lock. Requests with one prompt compute it once. A single
// engine needs no beginnings of prompts.
func (r *Router) weigh(room []beginning, list []*engine.Request, several bool) (w weight) {
	w.list, w.sequences = room, engine.Outputs(list)
	w.adds = several && r.capacity > 0
	w.reads = w.adds && len(list) > 0 && list[0].Params.PromptLogprobs == sample.NoLogprobs
	for _, q := range list {
		w.output += q.Outputs() * min(int(q.Params.MaxTokens), assumedOutput)
		computed := q.Outputs()
		if w.reads {
			computed = 1
		}
		w.prompt += computed * len(q.Prompt)
		if w.adds {
			w.list = beginnings(w.list, r.seed, q.CacheSalt(), q.Prompt,
				r.Info().BlockSize)
			w.prompts = append(w.prompts, len(w.list))
		}
	}
	return w
}

// cached is how many tokens of the prompts an engine is believed to have.
func (w *weight) cached(p *prefixes) (tokens int) {
	if !w.reads {
		return 0
	}
	begin := 0
	for _, end := range w.prompts {
		tokens += p.match(w.list[begin:end])
		begin = end
	}
	return tokens
}

// reserve chooses an engine, nil when all are down, and adds the requests to its load. A single
// engine is always chosen: its own error says why it does not serve.
func (r *Router) reserve(ctx context.Context, w *weight) (chosen *member, load int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.members) == 1 {
		chosen = r.members[0]
		chosen.work = w.prompt + w.output
	} else {
		r.candidates = r.candidates[:0]
		for _, m := range r.members {
			m.work = w.prompt + w.output - w.cached(&m.prefixes)
			m.held = m.Healthy(ctx) != nil
			r.candidates = append(r.candidates, m.candidate)
		}
		i := choose(r.candidates, r.turn)
		if i < 0 {
			return nil, 0
		}
		chosen, r.turn = r.members[i], i+1
	}
	if w.adds {
		chosen.prefixes.add(w.list)
	}
	chosen.load += chosen.work
	chosen.sequences += w.sequences
	return chosen, chosen.work
}

// release removes the load of sequences that have ended. Their outputs are in the cache.
func (r *Router) release(m *member, load, sequences, outputs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.load -= load
	m.sequences -= sequences
	m.prefixes.spend(outputs)
	m.notifyIdle()
}

// notifyIdle closes idle when a draining member has no sequences left. Router.mu is held.
func (m *member) notifyIdle() {
	if m.idle != nil && m.sequences == 0 {
		close(m.idle)
		m.idle = nil
	}
}
