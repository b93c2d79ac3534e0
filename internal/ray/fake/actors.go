package fake

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

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
			return valueError("placement group bundle index %d is invalid. Valid placement group "+
				"indexes: 0-%d", spec.Bundle, len(g.Bundles))
		}
		if !fits(g.Bundles[spec.Bundle].Resources, wants(spec)) {
			return valueError("Cannot schedule Worker with the placement group because the " +
				"resource request cannot fit into any bundles")
		}
	}
	if j.cluster.named(j.namespace, spec.Name) != nil {
		return &frame.Fault{Class: "ActorAlreadyExistsError",
			Message: "an actor has the name " + spec.Name + " already"}
	}
	dead := j.cluster.refuse[spec.Rank]
	if strings.Contains(string(spec.RuntimeEnv), packageScheme) {
		dead = &frame.Fault{Class: "RuntimeEnvSetupError",
			Message: "Failed to download runtime_env file package"}
	}
	j.actors[spec.Rank] = &actor{spec: spec, job: j, dead: dead}
	return nil
}

// packageScheme begins the URI of a package in the cluster's own store; this one has none.
const packageScheme = "gcs://"

// graceTime is how long the other ranks have after one has failed, and rescheduleTime how long an
// actor is waited for whose group has lost its place.
const (
	graceTime      = 2 * time.Second
	rescheduleTime = 5 * time.Second
)

func (j *job) actorsFacts(ctx context.Context, a args) (any, *frame.Fault) {
	c := j.cluster
	out := newRanks()
	var grace, lost <-chan time.Time
	for {
		pending, placed := 0, true
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
				placed = placed && c.groupState(actor.spec.Group) == ray.GroupCreated
			}
		}
		if pending == 0 {
			return out, nil
		}
		if len(out.Errors) > 0 && grace == nil {
			grace = time.After(graceTime)
		}
		switch {
		case placed:
			lost = nil
		case lost == nil:
			lost = time.After(rescheduleTime)
		}
		if !c.await(ctx, grace, lost) {
			break
		}
	}
	for _, rank := range a.Ranks {
		if out.Results[rank] == nil && out.Errors[rank] == nil {
			out.Errors[rank] = j.actors[rank].pending()
		}
	}
	return out, nil
}

// pending says that an actor has not answered in time.
func (a *actor) pending() *frame.Fault {
	var wanted []string
	need := wants(a.spec)
	for _, key := range slices.Sorted(maps.Keys(need)) {
		wanted = append(wanted, fmt.Sprintf("%s: %g", key, need[key]))
	}
	text := cmp.Or(strings.Join(wanted, ", "), "nothing")
	if a.spec.Group != "" {
		text += fmt.Sprintf(" in bundle %d of placement group %s", a.spec.Bundle, a.spec.Group)
	}
	why := "what it wants is taken"
	if state := a.job.cluster.groupState(a.spec.Group); state != ray.GroupCreated {
		why = "the placement group is " + state
	}
	return &frame.Fault{Class: "Pending", Message: "no answer from the actor that wants " + text +
		": " + why}
}

// groupState is the state of an actor's group; CREATED for an actor without one.
func (c *Cluster) groupState(id string) string {
	if id == "" {
		return ray.GroupCreated
	}
	return c.groups[id].State
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
	slices.Sort(f.Differs)
	if r.SHA256 != "" {
		f.HasBinary = c.find(f.NodeID, r.SHA256, r.CacheHint)
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
			out.Errors[rank] = a.pending()
		default:
			result, fault := f(a)
			out.set(rank, result, fault)
		}
	}
	return out
}

func (j *job) actorsKill(_ context.Context, a args) (any, *frame.Fault) {
	for _, rank := range a.Ranks {
		j.kill(rank)
	}
	return empty{}, nil
}
