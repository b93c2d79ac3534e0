package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/handover"
	"github.com/eagleray/eagleray/internal/engine/offload"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/sys/machine"
	"github.com/eagleray/eagleray/internal/sys/memory"
)

// Options configure Open.
type Options struct {
	Config config.Config
	Log    *slog.Logger
	// Events is notified of everything that happens to the engine, beside the log; nil is none.
	Events status.Listener
	// OnStep is called by the step loop with the times of every step; nil is not called.
	OnStep func(StepTimes)
	// Null, unless it is nil, makes ranks that compute nothing.
	Null *open.Null
	// Version is the program's, which must be the same on all nodes of --nnodes.
	Version string
	// Bounds are those of this machine's memory; nil reads them.
	Bounds func() memory.Bounds
	// LeftAlone is how long other files of the model must have been left alone before they are
	// adopted (--on-model-change); 0 is two seconds.
	LeftAlone time.Duration
	// SearchEvery is how often a place is looked for after --on-failure shrink; 0 is ten seconds.
	SearchEvery time.Duration
	// StartBridge starts the bridge to Ray; nil is ray.Start.
	StartBridge func(context.Context, ray.Options) (*ray.Client, error)
	// WorkerOutput receives what worker processes of this host print; nil is standard error.
	WorkerOutput launch.Output
}

// complete fills in what is not given.
func (o *Options) complete() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Bounds == nil {
		o.Bounds = machine.Memory
	}
	o.SearchEvery = cmp.Or(o.SearchEvery, searchEvery)
	if o.WorkerOutput == nil {
		o.WorkerOutput = launch.Print(os.Stderr)
	}
}

// Open resolves the model, starts the ranks of one engine and its step loop. Errors name the flag
// or file at fault.
func Open(ctx context.Context, opt Options) (*Engine, *metrics.Metrics, error) {
	opt.Config.Parallel.SetEngines(1)
	engines, m, err := OpenAll(ctx, opt)
	if err != nil {
		return nil, nil, err
	}
	return engines[0], m, nil
}

// OpenAll resolves the model and opens --data-parallel-size engines of it at the same time, which
// share the bound of waiting requests, one set of metrics and what clients may know of the model.
// When one fails to start the error names it, and none is left running.
func OpenAll(ctx context.Context, opt Options) ([]*Engine, *metrics.Metrics, error) {
	o, err := NewOpener(ctx, opt)
	if err != nil {
		return nil, nil, err
	}
	engines, err := o.OpenFirst(ctx)
	return engines, o.metrics, err
}

// open opens one engine, whose ranks are started as b says.
func (o *Opener) open(b *groups.Launch) (*Engine, error) {
	c, well, m := b.Config, new(health), o.metrics.Engine(b.Number)
	b.Series = func() []metrics.Sample {
		if b.Places() > 0 {
			return o.metrics.Samples(-1) // it is the one engine, the series are of its places
		}
		return o.metrics.Samples(b.Number)
	}
	b.Events = status.Tee(b.Events, well.listen)
	sched, err := newPlaces(b)
	if err != nil {
		return nil, err
	}
	blocks, planned := b.Info.Blocks, b.Info.CacheTokens
	ranks, err := b.Supervisor()
	if err != nil {
		return nil, err
	}
	group, err := ranks.Start(b.Context, nil)
	if err != nil {
		return nil, err
	}
	if b.Info.Blocks != blocks {
		b.Log.Info("the KV cache is smaller than planned: a host has no room for more", "tokens",
			b.Info.CacheTokens, "planned", planned)
		if sched, err = newPlaces(b); err != nil {
			return nil, errors.Join(err, ranks.Stop(context.WithoutCancel(b.Context)))
		}
	}
	if w := groups.MixedISA(group.Ranks()); w != "" {
		b.Log.Warn(w)
	}
	if _, shares := c.Parallel.Layout().Experts(0); c.Parallel.ExpertParallel &&
		shares > b.Model.Experts()+c.Parallel.EPLB.Redundant {
		b.Log.Warn("there are more ranks than experts: some hold none", "ranks", shares,
			"experts", b.Model.Experts())
	}
	m.WatchLinks(ranks.Links)
	m.WatchGPUs(ranks.GPUs)
	e := &Engine{number: b.Rank, info: b.Info, model: b.Model, ranks: ranks,
		events: status.Tee(b.Events, m.Listen), room: o.room, wanted: o.wanted, health: well,
		shares: c.Cache.PrefixCaching, inbox: inbox{wake: make(chan struct{}, 1)},
		experts: expertLoads{asking: make(chan struct{}, 1), counted: b.Model.Experts() > 0},
		done:    make(chan struct{}), failed: make(chan struct{}),
		unbalanced: make(chan struct{}, 1)}
	if e.experts.counted {
		m.WatchExperts(e.expertSeries)
	}
	e.delivery = newDelivery(e)
	e.loop = &Loop{e: e, sched: sched, launching: b, group: group, onStep: o.opt.OnStep,
		slowStep: c.Queue.StallWarning, maxInFlight: c.MaxInFlight(),
		ownThread: ranks.Backend != "uni", requests: map[uint64]*request{},
		restarts: restarts{policy: c.Recovery}, lack: lack{every: o.opt.SearchEvery},
		revision: ranks.Revision,
		placeSeries: placeSeries{remove: o.metrics.Remove, open: func(place int) *metrics.Engine {
			s := o.metrics.Engine(b.Number + place) // only the one engine has several places
			s.SetCacheConfig(metrics.CacheConfig{BlockSize: b.Info.BlockSize,
				Blocks: b.Info.Blocks, PrefixCaching: c.Cache.PrefixCaching, Dtype: b.Info.DType})
			s.SetDrafts(c.Speculative.Tokens)
			return s
		}}}
	e.loop.showPlaces()
	e.exchange, err = handover.New(b, handover.Options{Life: ranks.Life, Scheduler: sched,
		Events: e.events, Post: func(m handover.Message) { e.post(m) }})
	if err == nil {
		e.offload, err = offload.New(b, offload.Options{Life: ranks.Life, Scheduler: sched,
			Events: e.events, Post: func(m offload.Message) { e.post(m) }})
	}
	if err == nil {
		err = e.loop.equip()
	}
	if err != nil {
		return nil, errors.Join(err, ranks.Stop(context.WithoutCancel(b.Context)))
	}
	e.loop.showRanks(b.Ranks)
	e.unwatch = b.Files.Watch(e.inbox.signal)
	go e.loop.run()
	return e, nil
}
