package engine

import (
	"context"
	"io"
	"log/slog"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/config"
	"github.com/eagleray/eagleray/internal/layout"
	"github.com/eagleray/eagleray/internal/metrics"
	"github.com/eagleray/eagleray/internal/model/checkpoint"
	"github.com/eagleray/eagleray/internal/schedule"
	"github.com/eagleray/eagleray/internal/status"
)

// Options configure Open.
type Options struct {
	Config config.Config
	Log    *slog.Logger
	// Events is notified of everything that happens to the engine, beside the log; nil is none.
	Events status.Listener
	// WorkerOutput receives what worker processes print; nil is standard error.
	WorkerOutput io.Writer
}

// Open resolves the model, starts the ranks and the step loop. Errors name the flag or file at
// fault.
func Open(ctx context.Context, opt Options) (*Engine, *metrics.Metrics, error) {
	b := &opening{ctx: ctx, opt: opt, cfg: &opt.Config}
	if opt.Log == nil {
		b.opt.Log = slog.New(slog.DiscardHandler)
	}
	b.events = status.Tee(status.LogTo(b.opt.Log), opt.Events)
	e, err := b.open()
	if err != nil {
		return nil, nil, err
	}
	return e, e.metrics, nil
}

// opening is one call of Open.
type opening struct {
	ctx    context.Context
	opt    Options
	events status.Listener
	cfg    *config.Config
	folder checkpoint.Folder
	dir    string // absolute; "" for the built-in model
	model  *checkpoint.Config
	info   Info
	dtype  compute.DType
	ranks  int
	stages layout.Stages
	// fromHub says that dir is a snapshot of a Hub repo, which other nodes can fetch too.
	fromHub bool
}

func (b *opening) open() (*Engine, error) {
	for _, f := range []func() error{b.resolve, b.readModel, b.divide, b.readTokenizer,
		b.readGenerationConfig, b.sizeCache} {
		if err := f(); err != nil {
			return nil, err
		}
	}
	c := b.cfg
	if !c.Schedule.ChunkedPrefill {
		// A prompt that is not cut must fit a step.
		c.Schedule.MaxNumBatchedTokens = max(c.Schedule.MaxNumBatchedTokens, b.info.MaxModelLen)
	}
	sched, err := schedule.New(schedule.Config{
		MaxSeqs:           c.Schedule.MaxNumSeqs,
		MaxTokens:         c.Schedule.MaxNumBatchedTokens,
		MaxModelLen:       b.info.MaxModelLen,
		BlockSize:         b.info.BlockSize,
		Blocks:            b.info.Blocks,
		PrefixCaching:     c.Cache.PrefixCaching,
		ChunkedPrefill:    c.Schedule.ChunkedPrefill,
		LongPrefillTokens: c.Schedule.LongPrefillTokenThreshold,
		Priority:          c.Schedule.Policy == "priority",
		MaxInFlight:       c.MaxInFlight(),
		Stages:            c.Parallel.Layout().PP,
	})
	if err != nil {
		return nil, err
	}
	ranks, err := b.supervisor()
	if err != nil {
		return nil, err
	}
	group, err := ranks.start(b.ctx)
	if err != nil {
		return nil, err
	}
	b.info.Ranks = group.Ranks()
	for _, r := range b.info.Ranks {
		b.info.WeightBytes += r.WeightBytes
	}
	m := metrics.New(metrics.Options{ModelName: b.info.Names[0], MaxModelLen: b.info.MaxModelLen,
		Prefixes: c.Server.MetricsPrefixes})
	m.SetCacheConfig(metrics.CacheConfig{BlockSize: b.info.BlockSize, Blocks: b.info.Blocks,
		PrefixCaching: c.Cache.PrefixCaching, Dtype: b.info.DType})
	m.WatchLinks(ranks.links)
	e := &Engine{info: b.info, ranks: ranks, group: group, metrics: m, sched: sched,
		events:   status.Tee(b.events, m.Listen),
		maxQueue: c.Schedule.MaxNumQueuedReqs, requests: map[uint64]*request{},
		wake: make(chan struct{}, 1), done: make(chan struct{}), failed: make(chan struct{})}
	e.maxInFlight = c.MaxInFlight()
	e.slowStep = c.Queue.StallWarning
	e.ownThread = ranks.backend != "uni"
	go e.loop()
	return e, nil
}

func (b *opening) progress(rank int, phase string, done, total int64) {
	b.events.Emit(status.Progress{Rank: rank, Phase: phase, Done: done, Total: total})
}
