package engine

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/inproc"
	"github.com/eagleray/eagleray/internal/group/launch/process"
	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// WorkerVerb is the first argument of the program when it is started as a rank.
const WorkerVerb = process.Verb

// RunWorker serves as a rank until the driver is gone; args are what follows WorkerVerb.
func RunWorker(args []string) error {
	if slices.Contains(args, rayactor.ActorFlag) {
		return rayactor.Main()
	}
	return process.Main()
}

// launching is how the groups of ranks of one engine are started.
type launching struct {
	*Spec
	ctx    context.Context
	log    *slog.Logger
	events status.Listener
	// version is the program's, which must be the same on all nodes.
	version string
	output  launch.Output
	// cluster is what groups have in common on Ray with several engines, or on several nodes; nil for
	// others.
	cluster *cluster
	// later says that ranks load no weights of the model's files when they start.
	later func() bool
	// series are the metrics of the engine.
	series *metrics.Engine
	// number is the engine's; added says that it is opened beside others that serve.
	number int
	added  bool
	// ledger is what ranks on other machines take.
	ledger *ledger
}

// supervisor makes the supervisor of this engine's ranks.
func (b *launching) supervisor() (*supervisor, error) {
	s := &supervisor{events: b.events}
	s.life, s.quit = context.WithCancel(context.Background())
	return s, b.supervise(s)
}

// supervise has a supervisor start groups as this says.
func (b *launching) supervise(s *supervisor) error {
	init, err := b.rankInit()
	if err != nil {
		return err
	}
	s.files = b.settle
	q := &b.cfg.Queue
	s.backend, s.ready = b.backend(), nil
	common := executor.Options{
		Init: init, Log: b.log, LinksOnly: q.Transport == "link",
		PortRange: q.PortRange, QueueMemory: q.MemoryBytes,
		StallWarning: q.StallWarning, StepTimeout: q.StepTimeout, Events: b.events,
		MaxInFlight: b.cfg.MaxInFlight(), Groups: b.engines(), Fits: b.fits,
	}
	switch s.backend {
	case "uni":
		common.Init.Threads = cmp.Or(init.Threads, max(1, machine.Cores()/(b.ranks*b.engines())))
		s.options = func(context.Context, executor.Launcher) (executor.Options, error) {
			o := common
			o.Launcher, o.InProcess = inproc.New(), true
			return o, nil
		}
	case "mp":
		if b.cluster != nil {
			s.options = func(_ context.Context, kept executor.Launcher) (executor.Options, error) {
				o := common
				if o.Keep, o.Launcher = true, kept; kept == nil {
					g := b.group(b.number)
					g.Log, g.Events = b.log, b.events
					l := b.cluster.nodes.Launcher(g)
					o.Launcher, s.ready = l, l.Serving
				}
				o.Address = b.cfg.Parallel.Nodes.Master
				return o, nil
			}
			break
		}
		out := b.output
		s.options = func(_ context.Context, kept executor.Launcher) (executor.Options, error) {
			o := common
			if o.Keep, o.Launcher = true, kept; kept == nil {
				l := process.New(out)
				l.Left = func(rank, pid int) {
					b.events.Emit(status.RankLeft{Rank: rank, Node: launch.ThisHost, PID: pid})
				}
				o.Launcher = l
			}
			if o.LinksOnly {
				o.Address = "127.0.0.1"
			}
			return o, nil
		}
	case "ray":
		s.options = func(ctx context.Context, kept executor.Launcher) (executor.Options, error) {
			o := common
			l, ok := kept.(*rayactor.Launcher)
			if !ok {
				var err error
				if l, err = b.connectRay(ctx, s.newest() > 0, s.other); err != nil {
					return o, err
				}
			}
			o.Keep, o.Launcher, o.Address = true, l, l.Address()
			return o, nil
		}
	default:
		return fmt.Errorf("--distributed-executor-backend %q is not one of uni, mp, ray", s.backend)
	}
	return nil
}

// connectRay joins the cluster that the ranks will be placed on, again after a failure.
// For an engine that is added and for another layout there is little patience: a caller waits for the
// answer, or what was there to go on.
func (b *launching) connectRay(ctx context.Context, again, other bool) (*rayactor.Launcher, error) {
	o := b.rayOptions()
	o.Again = again && !other
	if other || b.added && !again {
		o.Ray.PlacementTimeout = cmp.Or(o.Ray.PlacementTimeout, scalingPatience)
	}
	if b.engines() > 1 {
		o.Ray.Address, _ = b.cluster.at()
		o.Engine, o.Census = b.number, b.cluster.census
	}
	var err error
	if o.Ray.BundleIndices, err = b.ownBundles(o.Ray.BundleIndices); err != nil {
		return nil, err
	}
	l, err := rayactor.Connect(ctx, o)
	if err == nil {
		b.cluster.joined(l)
	}
	return l, err
}

// scalingPatience is how long a change of a running server waits for resources that are in use.
const scalingPatience = time.Minute

func (b *launching) rayOptions() rayactor.Options {
	p := &b.cfg.Parallel
	return rayactor.Options{
		Ray: p.Ray, Layout: p.Layout(), Engines: b.engines(),
		CPUThreads: p.CPUThreads, Environ: os.Environ(), Log: b.log, Events: b.events,
		Samples: b.samples,
	}
}

// samples are the engine's series, as Ray takes them.
func (b *launching) samples() []ray.Sample {
	all := b.series.Samples()
	out := make([]ray.Sample, len(all))
	for i, s := range all {
		out[i] = ray.Sample(s)
	}
	return out
}

// settle chooses the files of the engine's next group.
func (b *launching) settle(init *queue.Init) (revision int64, err error) {
	return b.files.settle(init, b.later())
}
