package engine

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
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
	Null *Null
	// Version is the program's, which must be the same on all nodes of --nnodes.
	Version string
	// Bounds are those of this machine's memory; nil reads them.
	Bounds func() memory.Bounds
	// LeftAlone is how long other files of the model must have been left alone before they are adopted
	// (--on-model-change); 0 is two seconds.
	LeftAlone time.Duration
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
	if o.WorkerOutput == nil {
		o.WorkerOutput = launch.Print(os.Stderr)
	}
}

// Open resolves the model, starts the ranks of one engine and its step loop. Errors name the flag
// or file at fault.
func Open(ctx context.Context, opt Options) (*Engine, *metrics.Metrics, error) {
	opt.Config.Parallel.DataParallelSize = 1
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
func (o *Opener) open(b *launching, m *metrics.Engine) (*Engine, error) {
	c, well := b.cfg, new(health)
	b.series = m
	b.events = status.Tee(b.events, well.listen)
	sched, err := schedule.New(b.scheduling())
	if err != nil {
		return nil, err
	}
	planned := b.info.Blocks
	ranks, err := b.supervisor()
	if err != nil {
		return nil, err
	}
	group, err := ranks.start(b.ctx, nil)
	if err != nil {
		return nil, err
	}
	if b.info.Blocks != planned {
		b.log.Info("the KV cache is smaller than planned: a host has no room for more", "tokens",
			b.info.Blocks*b.info.BlockSize, "planned", planned*b.info.BlockSize)
		if sched, err = schedule.New(b.scheduling()); err != nil {
			return nil, errors.Join(err, ranks.stop(context.WithoutCancel(b.ctx)))
		}
	}
	if w := mixedISA(group.Ranks()); w != "" {
		b.log.Warn(w)
	}
	m.SetCacheConfig(metrics.CacheConfig{BlockSize: b.info.BlockSize, Blocks: b.info.Blocks,
		PrefixCaching: c.Cache.PrefixCaching, Dtype: b.info.DType})
	m.WatchLinks(ranks.links)
	e := &Engine{number: b.number, steering: o.steering, model: b.model,
		info: b.info, ranks: ranks, group: group, metrics: m,
		sched: sched, events: status.Tee(b.events, m.Listen), room: o.room,
		requests: map[uint64]*request{},
		batches:  make(chan *batch, batches), used: make(chan *batch, batches),
		inbox: inbox{wake: make(chan struct{}, 1)}, done: make(chan struct{}), failed: make(chan struct{})}
	e.launching, e.revision = b, ranks.revision
	e.maxInFlight = c.MaxInFlight()
	e.onStep = o.opt.OnStep
	e.slowStep = c.Queue.StallWarning
	e.health, e.restarts = well, restarts{policy: c.Recovery}
	e.ownThread = ranks.backend != "uni"
	e.shares = c.Cache.PrefixCaching
	if e.transfers, err = newTransfers(b); err == nil {
		err = e.equip()
	}
	if err != nil {
		return nil, errors.Join(err, ranks.stop(context.WithoutCancel(b.ctx)))
	}
	for range batches {
		e.used <- new(batch)
	}
	b.files.watch(e.inbox.signal)
	go e.loop()
	return e, nil
}
