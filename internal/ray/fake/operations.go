package fake

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// args are the arguments of all operations together.
type args struct {
	raw json.RawMessage

	ID       string               `json:"id"`
	Group    string               `json:"group"`
	Name     string               `json:"name"`
	Bundles  []map[string]float64 `json:"bundles"`
	Strategy string               `json:"strategy"`
	Timeout  float64              `json:"timeout"`
	Ranks    []int                `json:"ranks"`
	Request  ray.FactsRequest     `json:"request"`
	File     string               `json:"file"`
	SHA256   string               `json:"sha256"`
	Grace    float64              `json:"grace"`
}

type empty struct{}

type operation func(*job, context.Context, args) (any, *frame.Fault)

var operations = map[string]operation{
	"connect": (*job).connect, "nodes": (*job).nodes, "shutdown": (*job).shutdown,
	"group_create": (*job).groupCreate, "group_adopt": (*job).groupAdopt, "group_wait": (*job).groupWait,
	"group_get": (*job).groupGet, "group_remove": (*job).groupRemove,
	"actors_create": (*job).actorsCreate, "actors_facts": (*job).actorsFacts, "actors_install": (*job).actorsInstall,
	"actors_start": (*job).actorsStart, "actors_stop": (*job).actorsStop, "actors_kill": (*job).actorsKill,
}

func valueError(format string, a ...any) *frame.Fault {
	return &frame.Fault{Class: "ValueError", Message: fmt.Sprintf(format, a...)}
}

func (j *job) connect(_ context.Context, a args) (any, *frame.Fault) {
	var o ray.ConnectOptions
	if err := json.Unmarshal(a.raw, &o); err != nil {
		return nil, valueError("%v", err)
	}
	j.connected = true
	n := j.cluster.nodes[0]
	if o.NodeIP != "" {
		i := slices.IndexFunc(j.cluster.nodes, func(n *node) bool { return n.IP == o.NodeIP })
		if i < 0 {
			return nil, valueError("no node has the address %s", o.NodeIP)
		}
		n = j.cluster.nodes[i]
	}
	address := o.Address
	if address == "" {
		address = n.IP + ":6379"
	}
	return ray.Cluster{NodeID: n.ID, NodeIP: n.IP, JobID: j.id, GCSAddress: address, Namespace: o.Namespace, Started: o.Address == ""}, nil
}

func (j *job) nodes(context.Context, args) (any, *frame.Fault) {
	out, available := make([]ray.Node, 0, len(j.cluster.nodes)), map[string]float64{}
	for _, n := range j.cluster.nodes {
		out = append(out, n.Node)
		give(available, n.Free)
	}
	take(available, j.cluster.outside)
	return map[string]any{"nodes": out, "available": available}, nil
}

func (j *job) shutdown(context.Context, args) (any, *frame.Fault) {
	j.clear()
	return empty{}, nil
}

func (j *job) groupCreate(_ context.Context, a args) (any, *frame.Fault) {
	c := j.cluster
	if len(a.Bundles) == 0 {
		return nil, valueError("the placement group has no bundles")
	}
	g := &group{owner: j, Group: ray.Group{ID: c.newID(), Name: a.Name, Strategy: a.Strategy, State: ray.GroupPending}}
	for i, b := range a.Bundles {
		g.Bundles = append(g.Bundles, ray.Bundle{Index: i, Resources: b})
		g.taken = append(g.taken, map[string]float64{})
	}
	c.groups[g.ID] = g
	c.order = append(c.order, g.ID)
	c.place(g)
	return map[string]string{"id": g.ID}, nil
}

var groupID = regexp.MustCompile(`^[0-9a-f]{36}$`)

func (j *job) groupAdopt(_ context.Context, a args) (any, *frame.Fault) {
	for id, g := range j.cluster.groups {
		if groupID.MatchString(a.Group) && id == a.Group || g.Name != "" && g.Name == a.Group && g.State != ray.GroupRemoved {
			if g.owner != j {
				j.adopted[id] = true
			}
			return g.clone(), nil
		}
	}
	if groupID.MatchString(a.Group) {
		return nil, &frame.Fault{Class: "PlacementGroupRemoved", Message: "the cluster has no placement group " + a.Group}
	}
	return nil, valueError("Failed to look up placement group with name: %s", a.Group)
}

// group finds a group that this job may use.
func (j *job) group(id string) (*group, *frame.Fault) {
	g := j.cluster.groups[id]
	if g == nil || g.owner != j && !j.adopted[id] {
		return nil, valueError("unknown placement group %q: neither created nor adopted here", id)
	}
	return g, nil
}

func (j *job) groupWait(ctx context.Context, a args) (any, *frame.Fault) {
	g, fault := j.group(a.ID)
	if fault != nil {
		return nil, fault
	}
	timer := time.NewTimer(time.Duration(a.Timeout * float64(time.Second)))
	defer timer.Stop()
	for {
		if g.State == ray.GroupPending {
			j.cluster.place(g)
		}
		switch g.State {
		case ray.GroupCreated:
			return map[string]bool{"ready": true}, nil
		case ray.GroupRemoved:
			return nil, &frame.Fault{Class: "PlacementGroupRemoved", Message: "placement group " + a.ID + " was removed"}
		}
		if !j.cluster.await(ctx, timer.C) {
			return map[string]bool{"ready": false}, nil
		}
	}
}

func (j *job) groupGet(_ context.Context, a args) (any, *frame.Fault) {
	g, fault := j.group(a.ID)
	if fault != nil {
		return nil, fault
	}
	return g.clone(), nil
}

func (j *job) groupRemove(_ context.Context, a args) (any, *frame.Fault) {
	g, fault := j.group(a.ID)
	if fault != nil {
		return nil, fault
	}
	if g.owner != j {
		return nil, valueError("placement group %s was made by another job: it is not ours to remove", a.ID)
	}
	j.cluster.remove(a.ID)
	return empty{}, nil
}

// ranks is the answer to an operation on several.
type ranks struct {
	Results map[int]any          `json:"results"`
	Errors  map[int]*frame.Fault `json:"errors"`
}

func (r *ranks) set(rank int, result any, fault *frame.Fault) {
	if fault != nil {
		r.Errors[rank] = fault
		return
	}
	r.Results[rank] = result
}

func newRanks() *ranks { return &ranks{Results: map[int]any{}, Errors: map[int]*frame.Fault{}} }

func (j *job) actorsCreate(_ context.Context, a args) (any, *frame.Fault) {
	var list struct {
		Specs []ray.ActorSpec `json:"specs"`
	}
	if err := json.Unmarshal(a.raw, &list); err != nil {
		return nil, valueError("%v", err)
	}
	out := newRanks()
	for _, spec := range list.Specs {
		out.set(spec.Rank, empty{}, j.create(spec))
	}
	return out, nil
}

func (j *job) create(spec ray.ActorSpec) *frame.Fault {
	if j.actors[spec.Rank] != nil {
		return valueError("rank %d has an actor already", spec.Rank)
	}
	if spec.Group != "" {
		g, fault := j.group(spec.Group)
		if fault != nil {
			return fault
		}
		if spec.Bundle < 0 || spec.Bundle >= len(g.Bundles) {
			return valueError("placement group bundle index %d is invalid. Valid placement group indexes: 0-%d", spec.Bundle, len(g.Bundles))
		}
		if !holds(g.Bundles[spec.Bundle].Resources, wants(spec)) {
			return valueError("Cannot schedule Worker with the placement group because the resource request cannot fit into any bundles")
		}
	}
	j.actors[spec.Rank] = &actor{spec: spec, job: j, dead: j.cluster.refuse[spec.Rank]}
	return nil
}

// graceTime is how long the other ranks have after one has failed.
const graceTime = 50 * time.Millisecond

func (j *job) actorsFacts(ctx context.Context, a args) (any, *frame.Fault) {
	out := newRanks()
	var grace <-chan time.Time
	for {
		pending := 0
		for _, rank := range a.Ranks {
			if out.Results[rank] != nil || out.Errors[rank] != nil {
				continue
			}
			actor := j.actors[rank]
			switch {
			case actor == nil:
				out.Errors[rank] = valueError("rank %d has no actor", rank)
			case actor.dead != nil:
				out.Errors[rank] = actor.dead
			case j.cluster.seat(actor):
				out.Results[rank] = j.facts(actor, a.Request)
			default:
				pending++
			}
		}
		if pending == 0 {
			return out, nil
		}
		if len(out.Errors) > 0 && grace == nil {
			grace = time.After(graceTime)
		}
		if !j.cluster.await(ctx, grace) {
			break
		}
	}
	for _, rank := range a.Ranks {
		if out.Results[rank] == nil && out.Errors[rank] == nil {
			out.Errors[rank] = &frame.Fault{Class: "Pending", Message: "no answer from the actor"}
		}
	}
	return out, nil
}

func (j *job) facts(a *actor, r ray.FactsRequest) ray.Facts {
	c, f := j.cluster, a.facts
	for _, id := range a.ids[r.DeviceKey] {
		f.DeviceIDs = append(f.DeviceIDs, strconv.Itoa(id))
	}
	for name, value := range c.envs[f.NodeID] {
		if digest, asked := r.EnvDigests[name]; asked && digest != ray.EnvDigest(value) {
			f.Differs = append(f.Differs, name)
		}
	}
	sort.Strings(f.Differs)
	if r.SHA256 != "" {
		f.HasBinary = c.binary[f.NodeID+r.SHA256]
	}
	return f
}

// on performs f for the living actors of ranks.
func (j *job) on(list []int, f func(*actor) (any, *frame.Fault)) *ranks {
	out := newRanks()
	for _, rank := range list {
		a := j.actors[rank]
		switch {
		case a == nil:
			out.Errors[rank] = valueError("rank %d has no actor", rank)
		case a.dead != nil:
			out.Errors[rank] = a.dead
		case !j.cluster.seat(a):
			out.Errors[rank] = &frame.Fault{Class: "Pending", Message: "no answer from the actor"}
		default:
			result, fault := f(a)
			out.set(rank, result, fault)
		}
	}
	return out
}

func (j *job) actorsInstall(_ context.Context, a args) (any, *frame.Fault) {
	return j.on(a.Ranks, func(x *actor) (any, *frame.Fault) {
		key := x.facts.NodeID + a.SHA256
		where, cached := j.cluster.binary[key]
		if !cached {
			where = path.Join("/cache", "eagleray-"+a.SHA256)
			j.cluster.binary[key] = where
		}
		return ray.Installed{Rank: x.spec.Rank, Path: where, Cached: cached}, nil
	}), nil
}

func (j *job) actorsStart(_ context.Context, a args) (any, *frame.Fault) {
	var list struct {
		Specs []ray.StartSpec `json:"specs"`
	}
	if err := json.Unmarshal(a.raw, &list); err != nil {
		return nil, valueError("%v", err)
	}
	out := newRanks()
	for _, spec := range list.Specs {
		part := j.on([]int{spec.Rank}, func(x *actor) (any, *frame.Fault) { return j.start(x, spec) })
		out.set(spec.Rank, part.Results[spec.Rank], part.Errors[spec.Rank])
	}
	return out, nil
}

// start runs the test's worker in the place of a process.
func (j *job) start(a *actor, spec ray.StartSpec) (any, *frame.Fault) {
	if a.cancel != nil {
		return nil, &frame.Fault{Class: "RuntimeError", Message: "this actor's worker is running already"}
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	c := j.cluster
	c.pids++
	a.worker = c.pids
	work := c.Worker
	if work == nil {
		work = func(ctx context.Context, _ ray.StartSpec) ray.Exit {
			<-ctx.Done()
			return ray.Exit{Signal: "SIGKILL"}
		}
	}
	c.running.Go(func() {
		exit := work(ctx, spec)
		c.mu.Lock()
		defer c.mu.Unlock()
		if ctx.Err() == nil {
			a.cancel = nil
			cancel()
			j.tell(a, exit)
		}
	})
	return ray.Started{Rank: spec.Rank, PID: c.pids}, nil
}

func (j *job) actorsStop(_ context.Context, a args) (any, *frame.Fault) {
	return j.on(a.Ranks, func(x *actor) (any, *frame.Fault) {
		if x.cancel != nil {
			x.cancel()
			x.cancel = nil
			j.tell(x, ray.Exit{Signal: "SIGTERM"})
		}
		return empty{}, nil
	}), nil
}

func (j *job) actorsKill(_ context.Context, a args) (any, *frame.Fault) {
	for _, rank := range a.Ranks {
		j.kill(rank)
	}
	return empty{}, nil
}
