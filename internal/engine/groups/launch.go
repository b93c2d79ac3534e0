package groups

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/eagleray/eagleray/internal/engine/open"
	"github.com/eagleray/eagleray/internal/group/executor"
	"github.com/eagleray/eagleray/internal/group/gpus"
	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/group/launch/inproc"
	"github.com/eagleray/eagleray/internal/group/launch/nodes"
	"github.com/eagleray/eagleray/internal/group/launch/process"
	"github.com/eagleray/eagleray/internal/group/launch/rayactor"
	"github.com/eagleray/eagleray/internal/link/queue"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ops/metrics"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// Launch is how the groups of ranks of one engine are started.
type Launch struct {
	*open.Spec
	Context context.Context
	Log     *slog.Logger
	Events  status.Listener
	// Version is the program's, which must be the same on all nodes.
	Version string
	Output  launch.Output
	// Cluster is shared by the groups of several engines on Ray, or on several nodes; nil for
	// others.
	Cluster *Cluster
	// Later says that ranks load no weights of the model's files when they start.
	Later func() bool
	// Series are the values of the metrics of the engine.
	Series func() []metrics.Sample
	// Number is the engine's among those of this server, Rank that among those of all servers (see
	// config.Balanced); Added says that it is opened beside others that serve.
	Number, Rank int
	Added        bool
	// Ledger reserves memory on other machines.
	Ledger *Ledger
	// StartBridge starts the bridge to Ray; nil is ray.Start.
	StartBridge func(context.Context, ray.Options) (*ray.Client, error)
}

// workerOf are the arguments that make the program a rank.
func workerOf(c *config.Config) []string {
	if c.Parallel.Device == config.CUDA {
		return []string{gpus.Verb, launch.Verb}
	}
	return []string{launch.Verb}
}

// Supervisor makes the supervisor of this engine's ranks.
func (b *Launch) Supervisor() (*Supervisor, error) {
	s := &Supervisor{events: b.Events}
	s.Life, s.quit = context.WithCancel(context.Background())
	return s, b.Supervise(s)
}

// Supervise has a supervisor start groups as this says.
func (b *Launch) Supervise(s *Supervisor) error {
	init, err := b.RankInit()
	if err != nil {
		return err
	}
	s.files = b.resolveFiles
	q := &b.Config.Queue
	s.Backend, s.ready, s.Room = b.Backend(), nil, nil
	common := executor.Options{
		Init: init, Log: b.Log, LinksOnly: q.Transport == "link",
		PortRange: q.PortRange, QueueMemory: q.MemoryBytes,
		StallWarning: q.StallWarning, StepTimeout: q.StepTimeout, Events: b.Events,
		MaxInFlight: b.Config.MaxInFlight(), Group: b.Number, Groups: b.Engines(),
		Fits: b.fits,
	}
	switch s.Backend {
	case "uni":
		s.Options = func(context.Context, executor.Launcher) (executor.Options, error) {
			o := common
			o.Launcher, o.InProcess = inproc.New(machine.Place{Index: b.Number,
				Of: b.Engines()}), true
			return o, nil
		}
	case "mp":
		if b.Cluster != nil {
			s.Options = func(_ context.Context, kept executor.Launcher) (executor.Options, error) {
				l, ok := kept.(*nodes.Launcher)
				if !ok {
					g := b.group(b.Number)
					g.Log, g.Events = b.Log, b.Events
					l = b.Cluster.nodes.Launcher(g)
				}
				l.SetPatience(s.Patience)
				s.Room, s.ready = l.Room, l.Serving
				o := common
				o.Reuse, o.Launcher, o.Address = true, l, b.Config.Parallel.Nodes.Master
				return o, nil
			}
			break
		}
		out := b.Output
		s.Options = func(_ context.Context, kept executor.Launcher) (executor.Options, error) {
			o := common
			if o.Reuse, o.Launcher = true, kept; kept == nil {
				l := process.New(out, workerOf(b.Config)...)
				l.OnAbandon = func(rank, pid int) {
					b.Events.Emit(status.RankAbandoned{Rank: rank, Node: launch.ThisHost, PID: pid})
				}
				o.Launcher = l
			}
			if o.LinksOnly {
				o.Address = "127.0.0.1"
			}
			return o, nil
		}
	case "ray":
		s.Options = func(ctx context.Context, kept executor.Launcher) (executor.Options, error) {
			o := common
			l, ok := kept.(*rayactor.Launcher)
			if !ok {
				var err error
				if l, err = b.connectRay(ctx, s.Newest() > 0); err != nil {
					return o, err
				}
			}
			l.SetPatience(s.Patience)
			s.Room = l.Room
			o.Reuse, o.Launcher, o.Address = true, l, l.Address()
			return o, nil
		}
	default:
		return fmt.Errorf("--distributed-executor-backend %q is not one of uni, mp, ray", s.Backend)
	}
	return nil
}

// connectRay joins the cluster that the ranks will be placed on, again after a failure.
func (b *Launch) connectRay(ctx context.Context, again bool) (*rayactor.Launcher, error) {
	o := b.rayOptions()
	o.Again = again
	if b.Added && !again {
		o.Ray.PlacementTimeout = b.ScalingPatience()
	}
	if b.Engines() > 1 {
		o.Ray.Address, _ = b.Cluster.At()
		o.Engine, o.Census = b.Number, b.Cluster.Census
	}
	var err error
	if o.Ray.BundleIndices, err = b.ownBundles(o.Ray.BundleIndices); err != nil {
		return nil, err
	}
	l, err := rayactor.Connect(ctx, o)
	if err == nil {
		b.Cluster.setAddress(l)
	}
	return l, err
}

// ScalingPatience is how long a change of a running server waits for resources that are in use: a
// caller waits for the answer, or requests wait for the layout that there was.
func (b *Launch) ScalingPatience() time.Duration {
	return cmp.Or(b.Config.Parallel.Ray.PlacementTimeout, time.Minute)
}

func (b *Launch) rayOptions() rayactor.Options {
	p := &b.Config.Parallel
	return rayactor.Options{
		Ray: p.Ray, Layout: p.Layout(), Engines: b.Engines(),
		CPUThreads: p.CPUThreads, Worker: workerOf(b.Config), Environ: os.Environ(),
		Model: b.Config.Model.Path, Log: b.Log, Events: b.Events, Samples: b.samples,
		Start: b.StartBridge,
	}
}

// samples are the engine's series, as Ray takes them.
func (b *Launch) samples() []ray.Sample {
	all := b.Series()
	out := make([]ray.Sample, len(all))
	for i, s := range all {
		out[i] = ray.Sample(s)
	}
	return out
}

// resolveFiles chooses the files of the engine's next group.
func (b *Launch) resolveFiles(init *queue.Init) (revision int64, err error) {
	return b.Files.Resolve(init, b.Later())
}
