// Package router puts several engines of one model behind one door (--data-parallel-size): each
// request goes to the engine that will be done with it first, judged by the work it was given and
// by the beginnings of prompts that its prefix cache holds. Every token and log-probability is the
// same whichever engine computes it.
package router

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/eagleray/eagleray/internal/engine"
	"github.com/eagleray/eagleray/internal/executor"
	"github.com/eagleray/eagleray/internal/metrics"
	"github.com/eagleray/eagleray/internal/sample"
	"github.com/eagleray/eagleray/internal/status"
)

// Engine is what the router needs of one; *engine.Engine is the real one.
type Engine interface {
	Info() *engine.Info
	Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error)
	Healthy(ctx context.Context) error
	Totals() engine.Totals
	Report() []executor.RankStatus
	Links() []metrics.Link
	Failed() <-chan struct{}
	Stop(ctx context.Context) error
	Cut() int
}

// Router shares requests out among engines. It serves as long as one of them does. Its methods are
// safe for concurrent use.
type Router struct {
	info    engine.Info
	engines []Engine
	log     *slog.Logger
	seed    maphash.Seed

	mu sync.Mutex
	// candidates and prefixes are those of the engines; work and held of a candidate are set for
	// each request.
	candidates []candidate
	prefixes   []prefixes
	turn       int

	// watchers wait for the engines to fail; ended is closed by Stop, failed when all have failed.
	watchers      sync.WaitGroup
	stop          sync.Once
	ended, failed chan struct{}
}

// Open opens the engines of a configuration and a router over them, also over a single one.
func Open(ctx context.Context, opt engine.Options) (*Router, *metrics.Metrics, error) {
	var opening atomic.Pointer[Router]
	opt.Events = status.Tee(opt.Events, func(e status.Event) {
		event, i := status.Source(e)
		switch event.(type) {
		case status.GroupRecovered, status.CacheReset:
		default:
			return
		}
		if r := opening.Load(); r != nil {
			r.forget(i)
		}
	})
	opened, m, err := engine.OpenAll(ctx, opt)
	if err != nil {
		return nil, nil, err
	}
	engines := make([]Engine, len(opened))
	for i, e := range opened {
		engines[i] = e
	}
	r := New(engines, opt.Config.Cache.PrefixCaching, opt.Log)
	opening.Store(r)
	return r, m, nil
}

// New makes a router over engines of the same model, at least one. Stop ends them. A nil log is
// silence.
func New(engines []Engine, prefixCaching bool, log *slog.Logger) *Router {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := &Router{info: *engines[0].Info(), engines: engines, log: log, seed: maphash.MakeSeed(),
		candidates: make([]candidate, len(engines)), prefixes: make([]prefixes, len(engines)),
		ended: make(chan struct{}), failed: make(chan struct{})}
	r.info.Engines = len(engines)
	for _, e := range engines[1:] {
		r.info.WeightBytes += e.Info().WeightBytes
		r.info.Ranks = append(r.info.Ranks[:len(r.info.Ranks):len(r.info.Ranks)], e.Info().Ranks...)
	}
	capacity := 0
	if prefixCaching {
		capacity = min(r.info.Blocks*r.info.BlockSize, maxRemembered)
	}
	living := len(engines)
	for i, e := range engines {
		r.prefixes[i] = newPrefixes(capacity)
		r.watchers.Go(func() {
			select {
			case <-r.ended:
				return
			case <-e.Failed():
			}
			if r.down(i); r.leave(&living) {
				return
			}
			// What the dead group still holds is given back; those that live go on.
			if err := e.Stop(context.Background()); err != nil {
				log.Error("a failed engine was not ended", "engine", i, "cause", err)
			}
		})
	}
	return r
}

// leave counts an engine out. It returns true for the last one, after which nothing is served.
func (r *Router) leave(living *int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	*living--
	if *living > 0 {
		r.log.Warn("the other engines go on", "engines", *living)
		return false
	}
	close(r.failed)
	return true
}

// down notes that an engine has failed.
func (r *Router) down(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.candidates[i].down = true
}

// forget notes that an engine has lost its cache.
func (r *Router) forget(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prefixes[i].forget()
}

// Submit gives requests whose outputs belong together to one engine; see engine.Engine.Submit. One
// that fails before it has taken them is left out, and the next best is asked.
func (r *Router) Submit(ctx context.Context, list ...*engine.Request) (engine.Stream, error) {
	if len(r.engines) == 1 {
		return r.engines[0].Submit(ctx, list...)
	}
	var room [64]beginning
	w := r.weigh(room[:0], list)
	for {
		i, load := r.take(ctx, &w)
		if i < 0 {
			return nil, together(r.Health(ctx))
		}
		s, err := r.engines[i].Submit(ctx, list...)
		if err == nil {
			return &stream{Stream: s, router: r, engine: i, load: load, sequences: len(list)}, nil
		}
		r.giveBack(i, load, len(list), 0)
		if !errors.Is(err, engine.ErrFailed) {
			return nil, err
		}
		r.down(i)
	}
}

// assumedOutput bounds the tokens of output that a sequence counts for: most end long before their
// max_tokens, which is often as much as the context has room for.
const assumedOutput = 128

// weight is what requests that belong together need, wherever they are computed.
type weight struct {
	// list are the beginnings of their prompts, one prompt after the other; prompts are the ends of
	// each within list.
	list    []beginning
	prompts []int
	// reads says that cached beginnings are used, adds that they will be there afterwards.
	reads, adds bool
	// prompt and output count the tokens of all, sequences is how many there are.
	prompt, output, sequences int
}

// weigh measures requests, outside the lock. Requests with one prompt compute it once.
func (r *Router) weigh(room []beginning, list []*engine.Request) (w weight) {
	w.list, w.sequences = room, len(list)
	w.adds = r.prefixes[0].capacity > 0
	w.reads = w.adds && len(list) > 0 && list[0].Params.PromptLogprobs == sample.NoLogprobs
	for i, q := range list {
		w.output += min(int(q.Params.MaxTokens), assumedOutput)
		same := i > 0 && len(q.Prompt) == len(list[i-1].Prompt) && len(q.Prompt) > 0 &&
			&q.Prompt[0] == &list[i-1].Prompt[0]
		if same && w.reads {
			continue
		}
		w.prompt += len(q.Prompt)
		if w.adds {
			w.list = beginnings(w.list, r.seed, q.Salt, q.Prompt, r.info.BlockSize)
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

// take chooses an engine, -1 when all are down, and counts the requests as its load.
func (r *Router) take(ctx context.Context, w *weight) (i, load int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.candidates {
		c := &r.candidates[i]
		c.work = w.prompt + w.output - w.cached(&r.prefixes[i])
		c.held = r.engines[i].Healthy(ctx) != nil
	}
	i = choose(r.candidates, r.turn)
	if i < 0 {
		return i, 0
	}
	r.turn = i + 1
	if w.adds {
		r.prefixes[i].add(w.list)
	}
	load = r.candidates[i].work
	r.candidates[i].load += load
	r.candidates[i].sequences += w.sequences
	return i, load
}

// giveBack ends the load of sequences that are over. Their outputs are in the cache.
func (r *Router) giveBack(i, load, sequences, outputs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.candidates[i].load -= load
	r.candidates[i].sequences -= sequences
	r.prefixes[i].spend(outputs)
}
