package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/eagleray/eagleray/internal/compute"
	"github.com/eagleray/eagleray/internal/engine/schedule"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/rank/builtin"
	"github.com/eagleray/eagleray/internal/rank/model/checkpoint"
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
	// WorkerOutput receives what worker processes of this host print; nil is standard error.
	WorkerOutput launch.Output
}

// ModelError says that the model is not there, or is not one that can be opened as it is asked for: what
// is found before anything starts.
type ModelError struct{ Err error }

func (e *ModelError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *ModelError) Unwrap() error { return e.Err }

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

// NewOpener resolves the model, and lets other nodes come or finds the cluster.
func NewOpener(ctx context.Context, opt Options) (*Opener, error) {
	b := newOpening(ctx, &opt)
	if opt.Log == nil {
		b.opt.Log = slog.New(slog.DiscardHandler)
	}
	b.events = status.Tee(status.LogTo(b.opt.Log), opt.Events)
	for _, f := range []func() error{b.resolve, b.hold, b.readModel, b.isHeld, b.divide, b.readTokenizer,
		b.readGenerationConfig, b.readPooling, b.readClasses, b.plan} {
		if err := f(); err != nil {
			err = errors.Join(err, b.files.leave())
			if ctx.Err() != nil {
				return nil, err
			}
			return nil, &ModelError{err}
		}
	}
	if p := b.info.Pooling; b.files != nil && p != nil && p.Classes != nil {
		b.files.fixed = "the head of a classifier is in the driver"
	}
	b.warnOfCores()
	b.limitHeap()
	if most := b.constraintBytes(); most > 0 && b.info.Grammars != nil {
		b.info.Grammars.Limit(most)
	}
	for _, f := range []func() error{b.haveThreads, b.holdCluster} {
		if err := f(); err != nil {
			return nil, errors.Join(err, b.files.leave())
		}
	}
	m := metrics.New(metrics.Options{ModelName: b.info.Names[0], MaxModelLen: b.info.MaxModelLen,
		Prefixes: b.cfg.Server.MetricsPrefixes, Engines: b.engines()})
	return &Opener{b: b, metrics: m, room: &waitingRoom{bound: b.cfg.Schedule.MaxNumQueuedReqs}}, nil
}

// Check finds what Open would find wrong with the flags and with the model's files, its weights
// aside, without starting anything, and plans the memory of this machine: the plan is there, too, when
// the error is a *memory.Misfit. A model that is no folder of this machine is not looked at, and has no
// plan.
func Check(ctx context.Context, opt Options) (*memory.Plan, error) {
	b := newOpening(ctx, &opt)
	b.opt.Log = slog.New(slog.DiscardHandler)
	b.events = status.LogTo(b.opt.Log)
	for _, path := range []string{b.cfg.Model.Path, b.cfg.Model.Tokenizer} {
		if path != "" && !isFolder(path) {
			return nil, nil
		}
	}
	for _, f := range []func() error{b.resolve, b.readModel, b.divide, b.readTokenizer,
		b.readGenerationConfig, b.readPooling, b.plan} {
		if err := f(); err != nil {
			return b.planned, err
		}
	}
	return b.planned, nil
}

// newOpening begins with the options, of which the configuration is written to.
func newOpening(ctx context.Context, opt *Options) *opening {
	b := &opening{ctx: ctx, opt: *opt, cfg: &opt.Config, steering: new(Steering), ledger: newLedger()}
	if m := &b.cfg.Model; m.Path == builtin.Name && !isFolder(m.Path) {
		m.Path = "" // also by its name
	}
	return b
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// opening is one call of NewOpener.
type opening struct {
	ctx    context.Context
	opt    Options
	events status.Listener
	cfg    *config.Config
	folder checkpoint.Folder
	dir    string // absolute; "" for the built-in model
	// files are those of the folder that count, the same for all engines; nil for the built-in model.
	files *modelFiles
	// unheld is why they are not held.
	unheld error
	// tokenizerDir is the folder of --tokenizer, absolute; "" for the model's own.
	tokenizerDir string
	model        *checkpoint.Config
	info         Info
	dtype        compute.DType
	ranks        int
	stages       layout.Stages
	// fromHub says that dir is a snapshot of a Hub repo, which other nodes can fetch too.
	fromHub bool
	// cluster is what groups have in common on Ray with several engines, or on several nodes; nil for
	// others.
	cluster *cluster
	// steering is that of all engines.
	steering *Steering
	// series are the metrics of the engine that is opened.
	series *metrics.Engine
	// number is that of the engine that is opened, share how many ranks each of several nodes has.
	number, share int
	// added says that the engine is opened beside others that serve.
	added bool
	// bounds are those of this machine, before anything was loaded. needs is what a rank of each stage
	// takes, modelBytes what the tensors of the model's files do; planned is the plan of this machine.
	bounds     memory.Bounds
	needs      []memory.Rank
	modelBytes int64
	planned    *memory.Plan
	// ledger is what ranks on other machines take.
	ledger *ledger
}

// engines is how many engines are opened.
func (b *opening) engines() int { return max(1, b.cfg.Parallel.DataParallelSize) }

// ranksHere is how many ranks this machine has, if it is not Ray that places them.
func (b *opening) ranksHere() int { return b.ranks * b.engines() / max(1, b.cfg.Parallel.Nodes.Count) }

// warnOfCores warns when the ranks of this machine cannot all compute at the same time.
func (b *opening) warnOfCores() {
	ranks, cores := b.ranksHere(), machine.Cores()
	if b.backend() == "ray" || ranks <= cores {
		return
	}
	shape := b.cfg.Parallel.Layout().String()
	if n := b.engines(); n > 1 {
		shape += fmt.Sprintf(" × DP %d", n)
	}
	b.opt.Log.Warn("there are more ranks than cores: they wait for each other", "ranks", ranks,
		"cores", cores, "layout", shape)
}

// open opens one engine.
func (b *opening) open(m *metrics.Engine, room *waitingRoom) (*Engine, error) {
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
		b.opt.Log.Info("the KV cache is smaller than planned: a host has no room for more", "tokens",
			b.info.Blocks*b.info.BlockSize, "planned", planned*b.info.BlockSize)
		if sched, err = schedule.New(b.scheduling()); err != nil {
			return nil, errors.Join(err, ranks.stop(context.WithoutCancel(b.ctx)))
		}
	}
	if w := mixedISA(group.Ranks()); w != "" {
		b.opt.Log.Warn(w)
	}
	m.SetCacheConfig(metrics.CacheConfig{BlockSize: b.info.BlockSize, Blocks: b.info.Blocks,
		PrefixCaching: c.Cache.PrefixCaching, Dtype: b.info.DType})
	m.WatchLinks(ranks.links)
	e := &Engine{number: b.number, cluster: b.cluster, steering: b.steering, model: b.model,
		info: b.info, ranks: ranks, group: group, metrics: m,
		sched: sched, events: status.Tee(b.events, m.Listen), room: room,
		requests: map[uint64]*request{},
		batches:  make(chan *batch, batches), used: make(chan *batch, batches),
		inbox: inbox{wake: make(chan struct{}, 1)}, done: make(chan struct{}), failed: make(chan struct{})}
	e.opening, e.revision = b, ranks.revision
	e.maxInFlight = c.MaxInFlight()
	e.onStep = b.opt.OnStep
	e.slowStep = c.Queue.StallWarning
	e.health, e.restarts = well, restarts{policy: c.Recovery}
	e.ownThread = ranks.backend != "uni"
	e.shares = c.Cache.PrefixCaching
	if e.transfers, err = b.transfers(); err == nil {
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

// scheduling is what the scheduler is told.
func (b *opening) scheduling() schedule.Config {
	c := b.cfg
	tokens := c.Schedule.MaxNumBatchedTokens
	if !c.Schedule.ChunkedPrefill {
		// A prompt that is not cut must fit a step.
		tokens = max(tokens, b.info.MaxModelLen)
	}
	return schedule.Config{
		MaxSeqs:           c.Schedule.MaxNumSeqs,
		MaxTokens:         tokens,
		MaxModelLen:       b.info.MaxModelLen,
		BlockSize:         b.info.BlockSize,
		Blocks:            b.info.Blocks,
		PrefixCaching:     c.Cache.PrefixCaching,
		ChunkedPrefill:    c.Schedule.ChunkedPrefill,
		LongPrefillTokens: c.Schedule.LongPrefillTokenThreshold,
		Priority:          c.Schedule.Policy == "priority",
		MaxInFlight:       c.MaxInFlight(),
		Stages:            c.Parallel.Layout().PP,
	}
}

func (b *opening) progress(rank int, phase string, done, total int64) {
	b.events.Emit(status.Progress{Rank: rank, Phase: phase, Done: done, Total: total})
}
