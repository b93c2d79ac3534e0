package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/eagleray/eagleray/internal/engine/groups"
	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/engine/steer"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/metrics"
)

// Opener opens engines of one model: the first ones of a server, and later ones beside them. They
// share the bound of waiting requests, one set of metrics and what clients may know of the model.
// Its methods are for one caller at a time.
type Opener struct {
	opt Options
	// b is how the groups of the next engine are started.
	b       *groups.Launch
	metrics *metrics.Metrics
	room    *waitingRoom
	wanted  *steer.Wanted
}

// NewOpener resolves the model, and lets other nodes come or finds the cluster.
func NewOpener(ctx context.Context, opt Options) (*Opener, error) {
	opt.complete()
	wanted := new(steer.Wanted)
	events := status.Tee(status.LogTo(opt.Log), opt.Events)
	spec, err := open.Resolve(ctx, open.Options{Config: &opt.Config, Log: opt.Log, Events: events,
		Null: opt.Null, Bounds: opt.Bounds, LeftAlone: opt.LeftAlone})
	if err != nil {
		return nil, err
	}
	b := &groups.Launch{Spec: spec, Context: ctx, Log: opt.Log, Events: events,
		Version: opt.Version,
		Output:  opt.WorkerOutput, Later: wanted.Replaces, Ledger: groups.NewLedger(),
		StartBridge: opt.StartBridge}
	b.WarnOfCores()
	b.LimitHeap()
	if most := b.ConstraintBytes(); most > 0 && b.Info.Grammars != nil {
		b.Info.Grammars.Limit(most)
	}
	for _, f := range []func() error{b.HaveThreads, b.OpenCluster} {
		if err := f(); err != nil {
			return nil, errors.Join(err, b.Files.Release())
		}
	}
	m := metrics.New(metrics.Options{ModelName: b.Info.Names[0], MaxModelLen: b.Info.MaxModelLen,
		Prefixes: b.Config.Server.MetricsPrefixes, Engines: b.Engines(),
		First: b.Config.Parallel.Balanced.First()})
	return &Opener{opt: opt, b: b, metrics: m, wanted: wanted,
		room: &waitingRoom{bound: b.Config.Schedule.MaxNumQueuedReqs}}, nil
}

// OpenFirst opens as many engines as the configuration asks for. When one fails to start the error
// names it, and none is left running.
func (o *Opener) OpenFirst(ctx context.Context) ([]*Engine, error) {
	numbers := make([]int, o.b.Engines())
	for i := range numbers {
		numbers[i] = i
	}
	engines, err := o.openAll(ctx, numbers)
	return engines, errors.Join(err, o.b.Files.Release())
}

// Events is notified of what happens to the engines: the log and the listener of Options.
func (o *Opener) Events() status.Listener { return o.b.Events }

// Metrics are those of all engines.
func (o *Opener) Metrics() *metrics.Metrics { return o.metrics }

// MaxEngines bounds how many engines a server may be scaled to.
const MaxEngines = 1024

// ErrScaling is why a change of the engines is refused while another one is under way.
var ErrScaling = errors.New("the engines are being changed already")

// ErrBusy is why engines were not removed: they had requests for too long.
var ErrBusy = errors.New("engines that are to be removed still have requests")

// Check refuses engines of the numbers, beside as many that there are, that cannot be.
func (o *Opener) Check(numbers []int, total int) error {
	p := &o.b.Config.Parallel
	switch last := numbers[len(numbers)-1]; {
	case o.b.Backend() == "ray":
		return o.checkRay(last)
	case o.b.Cluster != nil:
		return o.b.CheckNodes(numbers, p.Nodes.Count)
	}
	return o.b.CheckMemory(o.opt.Bounds(), numbers, total)
}

// Fixed is why the number of engines stays as it is, nil where it can be changed.
func (o *Opener) Fixed() error {
	if p := &o.b.Config.Parallel; p.Balanced.Any() {
		return open.Refuse("this server has %d of --data-parallel-size %d engines: how many "+
			"servers there are decides what balances requests over them", p.Engines(),
			p.DataParallelSize)
	}
	return nil
}

// CheckLayout refuses sizes of a layout that so many engines cannot have.
func (o *Opener) CheckLayout(z open.Sizes, engines int) error {
	port := o.b.Config.Transfer.Port
	if port == 0 || engines == 1 || z.TP == 0 || z.TP == o.Sizes().TP {
		return nil
	}
	return open.Refuse("kv_port %d of --kv-transfer-config gives each rank of %d engines a port, "+
		"which another number of ranks would take from each other: without kv_port the layout "+
		"can be changed", port, engines)
}

// checkRay refuses what cannot be placed: engines beyond those that bundles were given for, and
// more than one on a Ray that ends with the first.
func (o *Opener) checkRay(last int) error {
	r := &o.b.Config.Parallel.Ray
	switch {
	case r.PlacementGroup != "" && last >= o.b.Engines():
		return open.Refuse("--ray-placement-group %s has bundles for %d engines, which is the "+
			"most there can be: without it each engine has a placement group of its own",
			r.PlacementGroup, o.b.Engines())
	}
	if _, here := o.b.Cluster.At(); here && last > 0 {
		return open.Refuse("Ray was started for one engine, and ends with it: start the server "+
			"at a cluster (--ray-address), or with --data-parallel-size %d", last+1)
	}
	return nil
}

// Open opens engines of the given numbers, none of which is open, at the same time. total is how
// many there will be: cores are divided among as many. When one fails to start the error names it,
// and none of these is left running.
func (o *Opener) Open(ctx context.Context, numbers []int, total int) ([]*Engine, error) {
	b := *o.b
	b.Spec, b.Added = b.WithEngines(max(total, numbers[len(numbers)-1]+1)), true
	if b.Cluster != nil {
		b.Cluster.Engines.Add(int64(len(numbers)))
		for _, number := range numbers {
			b.Cluster.Register(number)
		}
	}
	more := *o
	more.b = &b
	engines, err := more.openAll(ctx, numbers)
	if err != nil {
		for _, number := range numbers {
			o.Close(number)
		}
	}
	return engines, err
}

// Close takes the metrics of an engine that has stopped away.
func (o *Opener) Close(number int) {
	o.metrics.Remove(number)
	o.b.Ledger.Release(number)
	if c := o.b.Cluster; c != nil && c.Census != nil {
		c.Census.Deregister(number)
	}
}

// openAll opens engines at the same time. The first error ends the start of the others.
func (o *Opener) openAll(asked context.Context, numbers []int) ([]*Engine, error) {
	ctx, cancel := context.WithCancel(asked)
	defer cancel()
	engines := make([]*Engine, len(numbers))
	p := &o.b.Config.Parallel
	several := o.b.Engines() > 1 || p.Balanced.Any()
	var starts sync.WaitGroup
	var failing sync.Once
	var failed error
	for i, number := range numbers {
		starts.Go(func() {
			b := *o.b
			b.Context, b.Number, b.Rank = ctx, number, p.Balanced.First()+number
			if blocks := b.Ledger.Decided(); blocks > 0 {
				b.Spec = b.WithBlocks(blocks)
			}
			if several {
				b.Log = o.b.Log.With("engine", b.Rank)
				b.Events = o.b.Events.FromEngine(b.Rank)
			}
			b.Files.Acquire()
			e, err := o.open(&b)
			if err != nil {
				cause := err
				err = errors.Join(err, b.Files.Release())
				if asked.Err() != nil {
					cause = nil // it was asked to end
				}
				err = errors.Join(err, b.Cluster.Release(context.WithoutCancel(ctx), cause))
			}
			if err != nil && several {
				err = fmt.Errorf("engine %d: %w", b.Rank, err)
			}
			if err != nil {
				failing.Do(func() { failed = err })
				cancel()
			}
			engines[i] = e
		})
	}
	starts.Wait()
	if failed == nil {
		return engines, nil
	}
	for _, e := range engines {
		if e != nil {
			failed = errors.Join(failed, e.Stop(context.WithoutCancel(ctx)))
		}
	}
	return nil, failed
}
