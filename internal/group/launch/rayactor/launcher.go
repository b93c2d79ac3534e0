// Package rayactor starts ranks as children of Ray actors (--distributed-executor-backend ray):
// one actor in one bundle of a placement group per rank. Ray places them and watches them; it
// sees no token and no tensor.
//
// A start goes through phases, each with a deadline, logged once: connect (the bridge joins the
// cluster), place (the group gets its resources), order (which bundle is which rank), spawn
// (actors), identify (what each actor says of its node), share (the nodes' cores, among several
// engines), ship (the binary, to nodes that lack it) and init (the workers). Meeting the driver and
// loading are the executor's.
package rayactor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/layout"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ops/config"
	"github.com/eagleray/eagleray/internal/ray"
)

// Options say where Ray is and how it places the ranks.
type Options struct {
	// Layout is how the ranks divide the model.
	Layout layout.Layout
	// Ray is where the cluster is and how it places the ranks.
	config.Ray
	// Engines is how many engines are placed on the cluster; 0 is 1. Engine is the number of this
	// one, and Census, where there are several, what they know of each other.
	Engines, Engine int
	Census          *Census
	// Again says that a group has run on the cluster before: what no node has now it may have soon.
	Again bool
	// CPUThreads are the cores of a bundle when DeviceKey is CPU.
	CPUThreads int
	// Worker are the arguments that make the program a rank; none are launch.Verb.
	Worker []string
	// Environ is the driver's environment.
	Environ []string
	// Model is what the model is called.
	Model string
	Log   *slog.Logger
	// Start starts the bridge to Ray; nil is ray.Start. Tests give one that leads to a fake
	// cluster.
	Start func(context.Context, ray.Options) (*ray.Client, error)
	// Samples, if it is not nil, are the values that Ray's own export of metrics shows beside
	// Ray's.
	Samples func() []ray.Sample
	// Events is notified of each phase of the start: its beginning as Progress, its end as
	// PhaseEnded.
	Events status.Listener
}

// Launcher runs ranks in actors.
type Launcher struct {
	o       Options
	client  *ray.Client
	cluster ray.Cluster
	indices []int
	env     EnvPlan
	// runtimeEnv is that of the job and of each actor; both are nil when none is asked for: any
	// makes Ray start Python twice per actor.
	runtimeEnv runtimeEnv

	exited chan launch.Exit
	watch  sync.WaitGroup
	done   chan struct{}

	// last is the start whose ranks may be reused, nodes are those that ranks were placed on, and
	// lost are the ids of nodes that no rank is placed on. Only Launch uses them.
	last  *start
	nodes []string
	lost  []string
	// patience is for how long the ranks may lack a place, 0 for as long as the options say.
	patience time.Duration

	mu    sync.Mutex
	group string
	table []row
	// running are the processes of workers by rank, unknownPID while a worker starts; before are
	// their predecessors.
	running, before map[int]int
	stopping        bool
	quiet           chan struct{} // closed when nothing runs any more, while stopping
}

// The deadlines of the phases. That of place is an option.
const (
	connectTimeout  = 2 * time.Minute
	placeTimeout    = 30 * time.Minute
	identifyTimeout = 2 * time.Minute
	shipTimeout     = 2 * time.Minute
	initTimeout     = time.Minute
	// replaceTimeout is that of identify where a lost actor is replaced in its bundle: Ray starts
	// none on a node that is drained, and says nothing. A new group finds its place elsewhere.
	replaceTimeout = 30 * time.Second
	// stopGrace is how long workers may take to end when asked to, closeTimeout how long Ray may
	// take to clean up.
	stopGrace    = time.Second
	closeTimeout = 10 * time.Second
	// showEvery is how often Ray is given samples; it shows what it has every ten seconds.
	showEvery = 5 * time.Second
)

// Connect joins the cluster, or starts a local one when there is none. Stop undoes it.
func Connect(ctx context.Context, o Options) (*Launcher, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Start == nil {
		o.Start = ray.Start
	}
	if o.Worker == nil {
		o.Worker = []string{launch.Verb}
	}
	l := &Launcher{o: o, exited: make(chan launch.Exit, o.Layout.World()+1),
		done:    make(chan struct{}),
		running: map[int]int{}, before: map[int]int{}, quiet: make(chan struct{})}
	if err := l.parse(); err != nil {
		return nil, &config.UsageError{Err: err}
	}
	l.env = Environment(o.Environ, EnvOptions{Allow: o.EnvAllow, Model: o.Model})
	for _, w := range l.env.Warnings {
		o.Log.Warn(w)
	}
	if err := l.phase(ctx, "connect", connectTimeout, l.connect); err != nil {
		return nil, errors.Join(err, l.Stop(context.WithoutCancel(ctx), nil))
	}
	if o.Samples != nil {
		l.watch.Go(l.showMetrics)
	}
	return l, nil
}

// showMetrics sends Ray samples until the bridge is gone.
func (l *Launcher) showMetrics() {
	tick := time.NewTicker(showEvery)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), showEvery)
		err := l.client.ShowMetrics(ctx, l.o.Samples())
		cancel()
		if err != nil {
			l.o.Log.Debug("Ray does not show metrics", "error", err)
		}
		select {
		case <-tick.C:
		case <-l.client.Gone():
			return
		case <-l.done:
			return
		}
	}
}

// parse reads the options that are texts.
func (l *Launcher) parse() error {
	var err error
	if l.indices, err = ParseIndices(l.o.BundleIndices); err != nil {
		return err
	}
	if l.indices != nil {
		if err := checkIndices(l.indices, l.o.Layout.World()); err != nil {
			return err
		}
	}
	env, err := ParseRuntimeEnv(l.o.RuntimeEnv)
	if err != nil {
		return err
	}
	if l.o.Nsight {
		env = WithNsight(env)
	}
	l.runtimeEnv, err = splitRuntimeEnv(env)
	return err
}

func (l *Launcher) connect(ctx context.Context) ([]any, error) {
	var err error
	if l.client, err = l.o.Start(ctx, ray.Options{Python: l.o.Python, Env: l.o.Environ,
		Log: l.o.Log}); err != nil {
		return nil, err
	}
	l.watch.Go(l.watchRanks)
	l.cluster, err = l.client.Connect(ctx, ray.ConnectOptions{Address: l.o.Address,
		Namespace: l.o.Namespace,
		NodeIP:    l.o.NodeIP, RuntimeEnv: l.runtimeEnv.job, LocalResources: l.localResources()})
	if err != nil {
		return nil, err
	}
	v := l.client.Hello()
	return []any{"ray", v.Ray, "python", v.Python, "address", l.cluster.GCSAddress, "node",
		l.cluster.NodeIP,
		"job", l.cluster.JobID, "started", l.cluster.Started}, nil
}

// localResources are what a cluster that is started here offers: what the ranks need, where Ray
// cannot count it.
func (l *Launcher) localResources() (r ray.LocalResources) {
	need := float64(l.o.Layout.World()*max(1, l.o.Engines)) * l.perBundle()
	switch l.o.DeviceKey {
	case GPU:
	case CPU:
		cpus := max(need, float64(runtime.NumCPU()))
		r.NumCPUs = &cpus
	default:
		r.Resources = map[string]float64{l.o.DeviceKey: need}
	}
	return r
}

// perBundle is how much of the device one bundle holds.
func (l *Launcher) perBundle() float64 {
	return perBundle(l.o.DeviceKey, l.o.PerWorker, l.o.CPUThreads)
}

// ClusterAddress is where others join the cluster.
func (l *Launcher) ClusterAddress() string { return l.cluster.GCSAddress }

// StartedCluster says that this launcher has started the cluster, which ends with it.
func (l *Launcher) StartedCluster() bool { return l.cluster.Started }

// Address is the driver's address on the cluster's network.
func (l *Launcher) Address() string { return cmp.Or(l.o.NodeIP, l.cluster.NodeIP) }

// unknownPID is the process of a worker that is being started.
const unknownPID = -1

// Launch places the ranks and starts a worker for each. After the failure of a group it reuses the
// workers that live, if it can (again.go), else it clears the cluster as before a first start.
func (l *Launcher) Launch(ctx context.Context, specs []launch.Spec) ([]launch.Worker, error) {
	world := l.o.Layout.World()
	if len(specs) != world {
		return nil, fmt.Errorf("ray: %d ranks to start, not %d", len(specs), world)
	}
	// Drop unread exits of earlier groups; the start below checks which ranks live.
	for len(l.exited) > 0 {
		<-l.exited
	}
	l.findLost(ctx)
	if l.last != nil {
		workers, err := l.again(ctx, specs)
		if err == nil || ctx.Err() != nil || l.client.Err() != nil {
			return workers, err
		}
		l.o.Log.Warn("workers that live cannot be kept: all are started anew", "reason", err)
		if err := l.clear(ctx); err != nil {
			return nil, err
		}
	}
	s := &start{Launcher: l, specs: specs, turn: 1,
		instance: string(specs[0].Invitation.Endpoint.Instance), facts: make([]ray.Facts, world),
		paths: make([]string, world), workers: make([]launch.Worker, world)}
	for rank := range specs {
		s.actors, s.fresh = append(s.actors, rank), append(s.fresh, rank)
	}
	l.mu.Lock()
	l.table = make([]row, world)
	l.mu.Unlock()
	if err := l.phases(ctx, s, "place", "order", "spawn", "identify", "share", "ship",
		"init"); err != nil {
		return nil, err
	}
	l.last, l.o.Again = s, true
	return s.workers, nil
}

// phases runs phases of a start, in their order.
func (l *Launcher) phases(ctx context.Context, s *start, names ...string) error {
	identify := identifyTimeout
	if s.turn > 1 && l.o.PlacementGroup == "" {
		identify = replaceTimeout
	}
	for _, p := range []struct {
		name    string
		timeout time.Duration
		run     func(context.Context) ([]any, error)
	}{
		{"place", l.placementTimeout() + placeTimeout/10, s.place},
		{"order", initTimeout, s.order},
		{"replace", l.placementTimeout() + placeTimeout/10, s.placeAgain},
		{"spawn", identifyTimeout, s.spawn},
		{"identify", identify + l.runtimeEnv.setup, s.identify},
		{"share", l.placementTimeout() + placeTimeout/10, s.share},
		{"ship", shipTimeout, s.ship},
		{"init", initTimeout, s.init},
	} {
		if !slices.Contains(names, p.name) || p.name == "share" && l.o.Census == nil {
			continue // without a census it has the nodes' cores for itself
		}
		if err := l.phase(ctx, p.name, p.timeout, p.run); err != nil {
			l.logTable()
			return err
		}
	}
	return nil
}

// SetPatience sets for how long the next ranks may lack a place before Launch gives up with a
// *launch.NoPlace; 0 is --ray-placement-timeout.
func (l *Launcher) SetPatience(d time.Duration) { l.patience = d }

func (l *Launcher) placementTimeout() time.Duration {
	return cmp.Or(l.patience, l.o.PlacementTimeout, placeTimeout)
}

// phase runs one phase of the start within its deadline. What it found, as slog's arguments, goes
// with its end.
func (l *Launcher) phase(ctx context.Context, name string, timeout time.Duration,
	run func(context.Context) ([]any, error)) error {
	l.o.Events.Emit(status.Progress{Rank: -1, Phase: "ray " + name})
	started := time.Now()
	bounded, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("not done after %v", timeout))
	defer cancel()
	found, err := run(bounded)
	took := time.Since(started)
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = fmt.Errorf("%w (%w)", context.Cause(bounded), err)
		}
		return fmt.Errorf("ray, phase %s: %w", name, err)
	}
	l.o.Events.Emit(status.PhaseEnded{Name: "ray " + name, Took: took,
		Found: slog.Group("", found...).Value.Group()})
	return nil
}

// Exited delivers the ends of ranks that Stop did not cause; rank -1 is Ray itself.
func (l *Launcher) Exited() <-chan launch.Exit { return l.exited }

// watchRanks turns Ray's events about the ranks into exits until the bridge is gone.
func (l *Launcher) watchRanks() {
	for {
		select {
		case x, ok := <-l.client.Exits():
			if !ok {
				return
			}
			l.ended(x)
		case <-l.client.Gone():
			l.report(launch.Exit{Rank: -1, End: launch.End{How: launch.Lost,
				Reason: "the bridge to Ray ended: " + l.client.Err().Error()}})
			return
		case <-l.done:
			return
		}
	}
}

func (l *Launcher) ended(x ray.Exit) {
	how, detail := end(x)
	if how.How == launch.Signalled && l.groupRemoved() {
		how = launch.End{How: launch.Lost, Reason: "its placement group was removed"}
	}
	l.mu.Lock()
	pid, ran := l.running[x.Rank]
	// The event may be a late one about a worker that was replaced, or is being replaced.
	if l.before[x.Rank] == x.PID || ran && pid != x.PID && pid != unknownPID {
		l.mu.Unlock()
		return
	}
	delete(l.running, x.Rank)
	l.before[x.Rank] = x.PID
	var node string
	if x.Rank < len(l.table) {
		r := &l.table[x.Rank]
		node, r.Status = r.Node, how.String()
	}
	if l.stopping && ran && len(l.running) == 0 {
		close(l.quiet)
	}
	l.mu.Unlock()
	l.report(launch.Exit{Rank: x.Rank, Node: node, PID: x.PID, End: how, Detail: detail,
		Stderr: x.Stderr})
}

// groupRemoved tells whether the group is gone: Ray then ends the workers, by SIGTERM or SIGKILL,
// before it says so.
func (l *Launcher) groupRemoved() bool {
	l.mu.Lock()
	group := l.group
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	g, err := l.client.Group(ctx, group)
	return err == nil && g.State == ray.GroupRemoved
}

func (l *Launcher) report(x launch.Exit) {
	l.mu.Lock()
	stopping := l.stopping
	l.mu.Unlock()
	if stopping {
		return
	}
	select {
	case l.exited <- x:
	default:
		// As many ends as ranks are waiting already: the group is dead, and one exit is enough.
	}
}

// end is how a rank ended; detail is Ray's whole reason when one line has no room for it.
func end(x ray.Exit) (e launch.End, detail string) {
	switch {
	case x.Signal != "":
		return launch.End{How: launch.Signalled, Signal: x.Signal}, ""
	case x.Code != nil:
		return launch.End{How: launch.Exited, Code: *x.Code}, ""
	}
	reason := ray.OneLine(x.Reason)
	e = launch.End{How: launch.ActorLost, Class: x.Class,
		Reason: brief(reason, maxCause-len(x.Class)-len(": "))}
	if e.Reason != reason {
		detail = x.Reason
	}
	return e, detail
}

// maxCause is the longest cause, in bytes: Ray says four thousand about a node that is low on
// memory, the reason first.
const maxCause = 400

// brief cuts a text that is longer than limit bytes, between words.
func brief(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	s = strings.ToValidUTF8(s[:limit], "")
	if i := strings.LastIndexByte(s, ' '); i > 0 {
		s = s[:i]
	}
	return s + " …"
}

// Stop waits a moment for the workers, which the executor has asked to end, then ends the actors,
// removes the group unless it was adopted, and leaves the cluster. Stopping twice is harmless.
func (l *Launcher) Stop(ctx context.Context, _ error) error {
	l.mu.Lock()
	if l.stopping {
		l.mu.Unlock()
		return nil
	}
	l.stopping = true
	if len(l.running) == 0 {
		close(l.quiet)
	}
	l.mu.Unlock()
	var err error
	if l.client != nil {
		select {
		case <-l.quiet:
		case <-time.After(stopGrace):
		case <-l.client.Gone():
		case <-ctx.Done():
		}
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = l.client.Close(bounded)
	}
	close(l.done)
	l.watch.Wait()
	return err
}
