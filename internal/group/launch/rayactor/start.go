package rayactor

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/status"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/sys/figure"
	"github.com/eagleray/eagleray/internal/sys/machine"
)

// digests are what the actors compare their node's environment with: values need not travel for
// that.
func (p EnvPlan) digests() map[string]string {
	d := make(map[string]string, len(p.Send))
	for name, value := range p.Send {
		d[name] = ray.EnvDigest(value)
	}
	return d
}

// start is the state of one call of Launch, which its phases and the next call use.
type start struct {
	*Launcher
	specs []launch.Spec
	// actors are the ranks that get a new actor, fresh those that get a new worker: all, unless
	// some are reused.
	actors, fresh []int
	// instance names the placement group and the actors, turn tells actors of one rank apart: 1 are
	// the first ones in the group.
	instance string
	turn     int

	// By rank.
	bundles []Bundle
	facts   []ray.Facts
	places  []Place
	paths   []string
	workers []launch.Worker
}

// place adopts the group, or makes one and waits until it has its resources.
func (s *start) place(ctx context.Context) ([]any, error) {
	adopted := s.o.PlacementGroup != ""
	if adopted {
		g, err := s.client.AdoptGroup(ctx, s.o.PlacementGroup)
		if err != nil {
			return nil, fmt.Errorf("--ray-placement-group %s: %w", s.o.PlacementGroup, err)
		}
		s.setGroup(g.ID)
	} else if err := s.create(ctx); err != nil {
		return nil, err
	}
	if err := s.await(ctx, adopted); err != nil {
		if !adopted {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			// The bridge may be what failed: then the group goes with it.
			if removal := s.client.RemoveGroup(last, s.group); !errors.Is(removal, ray.ErrGone) {
				err = errors.Join(err, removal)
			}
		}
		return nil, err
	}
	g, err := s.client.Group(ctx, s.group)
	if err != nil {
		return nil, err
	}
	nodes := map[string]bool{}
	for _, b := range g.Bundles {
		s.bundles = append(s.bundles, Bundle{Index: b.Index, NodeID: b.NodeID,
			Resources: b.Resources})
		nodes[b.NodeID] = true
	}
	return []any{"group", s.group, "adopted", adopted, "bundles", len(s.bundles), "nodes",
		len(nodes)}, nil
}

// create makes a group with one bundle per rank. Those that are pinned get a moment to be placed,
// then Ray may choose.
func (s *start) create(ctx context.Context) error {
	bundles := GroupSpec(s.o.Layout.World(), s.o.DeviceKey, s.o.PerWorker, s.o.CPUThreads)
	pinned, patience, err := s.pin(ctx, bundles)
	if err != nil {
		return err
	}
	if pinned != nil {
		ready, err := s.tryGroup(ctx, s.name(), pinned, patience)
		if ready || err != nil {
			return err
		}
		if err := s.client.RemoveGroup(ctx, s.group); err != nil {
			return err
		}
	}
	_, err = s.tryGroup(ctx, s.name()+"_anywhere", bundles, 0)
	return err
}

// pin returns the bundles with which some ask for a node, and how long they are worth waiting for;
// nil is that Ray chooses. When the driver's node seems to have room for one it is asked for: rank
// 0 is then where the driver is, and Ray packs the others beside it. While Ray takes lost nodes for
// good ones every bundle asks for another one, if there is room on others: what the group before
// had there may take a moment to come back. If there is none in the time that SetPatience gives the
// start ends: on a lost node it would wait for longer.
func (s *start) pin(ctx context.Context, bundles []map[string]float64) ([]map[string]float64,
	time.Duration, error) {
	for until := time.Now().Add(max(settle, s.patience)); ; {
		nodes, err := s.client.Nodes(ctx)
		if err != nil {
			return nil, 0, err
		}
		sound, lost := s.sound(nodes)
		if !lost {
			here := slices.DeleteFunc(sound, func(n NodeFree) bool {
				return n.ID != s.cluster.NodeID
			})
			if first := onNodes(bundles[:1], here); first != nil {
				return append(first, bundles[1:]...), settle, nil
			}
			return nil, 0, nil
		}
		if pinned := onNodes(bundles, sound); pinned != nil {
			return pinned, pinnedPatience, nil
		}
		switch late := time.Now().After(until); {
		case late && s.patience > 0:
			return nil, 0, noPlace(bundles, sound, fmt.Errorf("no place after %v beside lost "+
				"nodes:\n%s", s.patience, Shortage(bundles, sound, nil)))
		case late:
			return nil, 0, nil
		}
		if err := wait(ctx, lookEvery/4); err != nil {
			return nil, 0, err
		}
	}
}

// pinnedPatience is for a group beside lost nodes: Ray takes longer than that to know of them.
const pinnedPatience = 5 * settle

// sound returns the nodes that ranks may be placed on, the driver's first and then those with the
// most free of the device; lost says that Ray would place them on others too.
func (s *start) sound(nodes []ray.Node) (sound []NodeFree, lost bool) {
	// A raylet that was started again has the address of the one before.
	var ips []string
	for _, n := range nodes {
		if n.Alive && slices.Contains(s.lost, n.ID) {
			ips = append(ips, n.IP)
		}
	}
	for _, n := range nodes {
		if n.Alive && !slices.Contains(ips, n.IP) {
			sound = append(sound, NodeFree{ID: n.ID, IP: n.IP, Alive: true, Free: n.Free})
		}
	}
	slices.SortStableFunc(sound, func(a, b NodeFree) int {
		return cmp.Or(-cmp.Compare(boolInt(a.ID == s.cluster.NodeID),
			boolInt(b.ID == s.cluster.NodeID)),
			-cmp.Compare(a.Free[s.o.DeviceKey], b.Free[s.o.DeviceKey]))
	})
	return sound, len(ips) > 0
}

// setGroup notes the group that the ranks are placed by. Only Launch's own goroutine changes it,
// and may read it without the lock.
func (s *start) setGroup(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.group = id
}

// tryGroup makes a placement group and waits a while for its resources.
func (s *start) tryGroup(ctx context.Context, name string, bundles []map[string]float64,
	wait time.Duration) (ready bool, err error) {
	id, err := s.client.CreateGroup(ctx, ray.GroupSpec{Name: name, Strategy: "PACK",
		Bundles: bundles})
	if err != nil {
		return false, err
	}
	s.setGroup(id)
	if wait == 0 {
		return false, nil
	}
	return s.client.WaitGroup(ctx, s.group, wait)
}

// sha256 is the hash of the binary in hexadecimal.
func (s *start) sha256() string { return hex.EncodeToString(s.specs[0].Binary[:]) }

func (s *start) name() string { return "eagleray_" + s.instance }

// The first wait for a group before its shortage is reported, and the shortest wait of all:
// resources of a group that was just removed take up to a second to come back.
const (
	firstReport = 10 * time.Second
	settle      = 2 * time.Second
)

// await waits for the group's resources. At 10, 20, 40 … seconds it logs what is wanted and what
// there is. What even idle nodes could not hold is refused at once, unless they did before: then
// nodes may come back.
func (s *start) await(ctx context.Context, adopted bool) error {
	started := time.Now()
	deadline := started.Add(s.placementTimeout())
	report := started.Add(firstReport)
	for next := started.Add(settle); ; next = report {
		if next.After(deadline) {
			next = deadline
		}
		ready, err := s.client.WaitGroup(ctx, s.group, time.Until(next))
		if ready || err != nil {
			return err
		}
		now := time.Now()
		lacks, err := s.shortage(ctx)
		if err != nil {
			return err
		}
		shortage := Shortage(lacks.bundles, lacks.nodes, lacks.available)
		wanted, _, _ := strings.Cut(shortage, "\n")
		s.o.Events.Emit(status.Progress{Rank: -1, Phase: "ray place, " + wanted})
		switch {
		case s.o.PlacementTimeout == 0 && s.patience == 0 && !s.o.Again &&
			Impossible(lacks.bundles, lacks.nodes):
			return fmt.Errorf("the cluster can never hold the group:\n%s; or set "+
				"--ray-placement-timeout to wait for nodes to join", shortage)
		case !now.Before(deadline):
			of := " (--ray-placement-timeout)"
			if s.patience > 0 && s.patience != s.o.PlacementTimeout {
				of = ""
			}
			return noPlace(lacks.bundles, lacks.nodes, fmt.Errorf("no place after %v%s:\n%s",
				s.placementTimeout(), of, shortage))
		case !now.Before(report):
			s.o.Log.Warn("waiting for the placement group", "seconds",
				int(now.Sub(started).Seconds()), "adopted", adopted)
			for line := range strings.Lines(shortage) {
				s.o.Log.Warn(strings.TrimRight(line, "\n"))
			}
			report = started.Add(2 * report.Sub(started))
		}
	}
}

// shortage is what the group wants, and what the nodes and the whole cluster have.
type shortage struct {
	bundles   []map[string]float64
	nodes     []NodeFree
	available map[string]float64
}

func (s *start) shortage(ctx context.Context) (out shortage, err error) {
	g, err := s.client.Group(ctx, s.group)
	if err != nil {
		return out, err
	}
	nodes, available, err := s.client.Resources(ctx)
	for _, b := range g.Bundles {
		out.bundles = append(out.bundles, b.Resources)
	}
	out.nodes, out.available = offers(nodes), available
	return out, err
}

// offers are the nodes with what they have and what of that is free.
func offers(nodes []ray.Node) []NodeFree {
	all := make([]NodeFree, len(nodes))
	for i, n := range nodes {
		all[i] = NodeFree{ID: n.ID, IP: n.IP, Alive: n.Alive, Total: n.Resources, Free: n.Free}
	}
	return all
}

// noPlace is the error of ranks whose bundles found no place on the nodes.
func noPlace(bundles []map[string]float64, nodes []NodeFree, err error) error {
	now := fill(bundles, nodes, freeOf)
	return &launch.NoPlace{Room: now.placed, Missing: kindsText(kindsOf(now.left)), Err: err}
}

// Room tells whether the cluster has free devices for so many more ranks, on nodes that are not
// lost. It may be called while ranks run, and not during Launch.
func (l *Launcher) Room(ctx context.Context, ranks int) (bool, error) {
	nodes, err := l.client.Nodes(ctx)
	if err != nil {
		return false, err
	}
	wanted := GroupSpec(ranks, l.o.DeviceKey, l.o.PerWorker, l.o.CPUThreads)
	free := offers(nodes)
	if len(fill(wanted, free, freeOf).left) > 0 {
		return false, nil
	}
	free = slices.DeleteFunc(free, func(n NodeFree) bool { return !n.Alive })
	ids := make([]string, len(free))
	for i, n := range free {
		ids[i] = n.ID
	}
	lost, err := l.client.LostNodes(ctx, ids)
	if err != nil {
		return false, err
	}
	free = slices.DeleteFunc(free, func(n NodeFree) bool { return slices.Contains(lost, n.ID) })
	return len(fill(wanted, free, freeOf).left) == 0, nil
}

// order decides which bundle is which rank.
func (s *start) order(context.Context) ([]any, error) {
	usable, err := DeviceBundles(s.bundles, s.o.DeviceKey, s.perBundle())
	if err != nil {
		return nil, err
	}
	if s.bundles, err = Order(usable, s.cluster.NodeID, s.indices, s.o.Layout.World(),
		s.o.SkipBundle); err != nil {
		return nil, err
	}
	s.noteNodes()
	if warning := SpansNodes(s.bundles, s.o.Layout.TP); warning != "" {
		s.o.Log.Warn(warning)
	}
	indices := make(figure.Numbers, len(s.bundles))
	for rank, b := range s.bundles {
		indices[rank] = b.Index
		s.set(rank, func(r *row) { r.Bundle, r.Status = b.Index, "placed" })
	}
	return []any{"bundles", indices}, nil
}

// noteNodes notes where the ranks are placed: findLost asks for these nodes.
func (s *start) noteNodes() {
	s.nodes = nil
	for _, b := range s.bundles {
		s.nodes = append(s.nodes, b.NodeID)
	}
}

// spawn submits all actors before any is waited for.
func (s *start) spawn(ctx context.Context) ([]any, error) {
	actors := make([]ray.ActorSpec, 0, len(s.actors))
	for _, rank := range s.actors {
		b := s.bundles[rank]
		name, err := ActorName(s.instance, rank, s.o.Layout)
		if err != nil {
			return nil, err
		}
		if s.turn > 1 {
			name += "_" + strconv.Itoa(s.turn)
		}
		a := ray.ActorSpec{Rank: rank, Group: s.group, Bundle: b.Index, Name: name,
			RuntimeEnv: s.runtimeEnv.actor}
		switch s.o.DeviceKey {
		case CPU:
			a.CPUs = s.perBundle()
		case GPU:
			a.GPUs = s.perBundle()
		default:
			a.Resources = map[string]float64{s.o.DeviceKey: s.perBundle()}
		}
		actors = append(actors, a)
		s.set(rank, func(r *row) { r.Status = "actor requested" })
	}
	if err := s.client.CreateActors(ctx, actors); err != nil {
		return nil, s.blame(err)
	}
	return []any{"actors", len(actors), "first", actors[0].Name}, nil
}

// blame writes what went wrong for single ranks into the table.
func (s *start) blame(err error) error {
	var ranks ray.RankErrors
	if errors.As(err, &ranks) {
		for rank, err := range ranks {
			s.set(rank, func(r *row) { r.Status = "failed: " + brief(err.Error(), maxCause) })
		}
	}
	return err
}

// identify asks every actor where it is, which devices it was given and how its environment
// differs, before anything heavy runs.
func (s *start) identify(ctx context.Context) ([]any, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	key := s.o.DeviceKey
	if key == CPU {
		key = ""
	}
	facts, err := s.client.Facts(ctx, s.actors, ray.FactsRequest{EnvDigests: s.env.digests(),
		DeviceKey: key,
		SHA256:    s.sha256(), CacheHint: self})
	if err != nil {
		return nil, s.blame(err)
	}
	environments := make([]NodeEnv, len(facts))
	for i, f := range facts {
		s.facts[f.Rank] = f
		environments[i] = NodeEnv{Node: f.NodeIP, Differs: f.Differs}
		s.set(f.Rank, func(r *row) { r.Node, r.PID, r.Status = f.NodeIP, f.PID, "actor runs" })
	}
	own := make([]Identity, len(s.facts))
	for i, f := range s.facts {
		own[i] = Identity{Rank: f.Rank, NodeID: f.NodeID, NodeIP: f.NodeIP, Devices: f.DeviceIDs,
			CPUs: f.CPUs}
	}
	if s.places, err = Identify(own, s.o.DeviceKey, s.o.PerWorker); err != nil {
		return nil, err
	}
	if s.o.StrictEnv {
		if err := StrictError(environments); err != nil {
			return nil, err
		}
	}
	for line := range strings.Lines(Report(environments, s.env)) {
		s.o.Log.Info("environment: " + strings.TrimRight(line, "\n"))
	}
	where := make([]string, len(s.places))
	for i, p := range s.places {
		where[i] = fmt.Sprintf("%d:%s/%d", p.Rank, s.facts[i].NodeIP, p.LocalRank)
	}
	return []any{"ranks", strings.Join(where, " "), "niceness", s.facts[0].Niceness}, nil
}

// ship brings the binary to the nodes that lack it, one rank for each node.
func (s *start) ship(ctx context.Context) ([]any, error) {
	byNode := map[string]string{}
	for rank, path := range s.paths {
		if path != "" && !slices.Contains(s.actors, rank) {
			byNode[s.facts[rank].NodeID] = path
		}
	}
	var lacking []int
	for _, rank := range s.actors {
		f := s.facts[rank]
		if _, asked := byNode[f.NodeID]; !asked {
			byNode[f.NodeID] = f.HasBinary
			if f.HasBinary == "" {
				lacking = append(lacking, f.Rank)
			}
		}
	}
	if len(lacking) > 0 {
		// The bridge reads it: its own /proc/self is Python.
		installed, err := s.client.Install(ctx, lacking, fmt.Sprintf("/proc/%d/exe", os.Getpid()),
			s.sha256())
		if err != nil {
			return nil, s.blame(err)
		}
		for _, i := range installed {
			byNode[s.facts[i.Rank].NodeID] = i.Path
		}
	}
	for _, rank := range s.actors {
		s.paths[rank] = byNode[s.facts[rank].NodeID]
	}
	return []any{"nodes", len(byNode), "shipped", len(lacking)}, nil
}

// threads is how many cores a rank computes on: its part of the node's, but in a bundle of CPUs
// that the user chose no more than these.
func (s *start) threads(rank int) int {
	of := s.places[rank].Threads
	if s.o.DeviceKey == CPU && (s.o.PlacementGroup != "" || s.o.CPUThreads > 0) {
		return min(of, max(1, int(s.bundles[rank].Resources[CPU])))
	}
	return of
}

// init starts workers, and sends reused workers their invitation. It goes through standard input,
// because arguments and environment can be read by others.
func (s *start) init(ctx context.Context) ([]any, error) {
	var specs []ray.StartSpec
	var again []ray.Input
	for rank := range s.specs {
		p := s.places[rank]
		inv := *s.specs[rank].Invitation
		inv.Threads, inv.Ordinal, inv.Measure = s.threads(rank), max(0, p.Ordinal), true
		inv.Place = machine.Place{} // Ray counts CPUs, and does not name them
		text, err := json.Marshal(inv)
		if err != nil {
			return nil, err
		}
		text = append(text, '\n')
		if !slices.Contains(s.fresh, rank) {
			again = append(again, ray.Input{Rank: rank, Stdin: text})
			continue
		}
		specs = append(specs, ray.StartSpec{Rank: rank, Path: s.paths[rank],
			Args: append(slices.Clone(s.o.Worker), launch.ActorFlag, "--rank",
				strconv.Itoa(rank)),
			DefaultEnv: s.env.Send, SetEnv: p.Env, Stdin: text})
		s.set(rank, func(r *row) { r.Status = "worker requested" })
	}
	// From here on a rank can be lost: Ray's events before StartWorkers returns count too.
	s.mu.Lock()
	for _, rank := range s.fresh {
		s.running[rank] = unknownPID
	}
	s.mu.Unlock()
	if len(again) > 0 {
		if err := s.client.FeedWorkers(ctx, again); err != nil {
			return nil, s.blame(err)
		}
	}
	started, err := s.client.StartWorkers(ctx, specs)
	if err != nil {
		return nil, s.blame(err)
	}
	for rank := range s.workers {
		s.workers[rank].Reused = !slices.Contains(s.fresh, rank)
	}
	for _, w := range started {
		s.workers[w.Rank] = launch.Worker{Rank: w.Rank, LocalRank: s.places[w.Rank].LocalRank,
			Node: s.facts[w.Rank].NodeIP, PID: w.PID}
		s.mu.Lock()
		if s.running[w.Rank] == unknownPID {
			s.running[w.Rank] = w.PID
		}
		s.mu.Unlock()
		s.set(w.Rank, func(r *row) { r.PID, r.Status = w.PID, "worker runs" })
	}
	pids := make(figure.Numbers, len(s.workers))
	for rank, w := range s.workers {
		pids[rank] = w.PID
	}
	return []any{"pids", pids, "kept", len(again)}, nil
}
