package fake

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// args are the arguments of all operations together.
type args struct {
	raw json.RawMessage

	ID       string               `json:"id"`
	IDs      []string             `json:"ids"`
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
	"connect": (*job).connect, "nodes": (*job).nodes, "nodes_lost": (*job).nodesLost,
	"shutdown":     (*job).shutdown,
	"group_create": (*job).groupCreate, "group_adopt": (*job).groupAdopt,
	"group_wait": (*job).groupWait,
	"group_get":  (*job).groupGet, "group_remove": (*job).groupRemove,
	"actors_create": (*job).actorsCreate, "actors_facts": (*job).actorsFacts,
	"actors_install": (*job).actorsInstall,
	"actors_start":   (*job).actorsStart, "actors_stop": (*job).actorsStop,
	"metrics":     (*job).metrics,
	"actors_feed": (*job).actorsFeed, "actors_kill": (*job).actorsKill,
}

func valueError(format string, a ...any) *frame.Fault {
	return &frame.Fault{Class: "ValueError", Message: fmt.Sprintf(format, a...)}
}

func (j *job) connect(_ context.Context, a args) (any, *frame.Fault) {
	var o ray.ConnectOptions
	if err := json.Unmarshal(a.raw, &o); err != nil {
		return nil, valueError("%v", err)
	}
	c := j.cluster
	switch {
	case j.connected:
		return nil, &frame.Fault{Class: "RuntimeError",
			Message: "Maybe you called ray.init twice by accident?"}
	case c.HelloError == nil && o.Address != "":
		if fault := c.reach(o.Address); fault != nil {
			return nil, fault
		}
	}
	if c.Token != "" && j.token != c.Token {
		return nil, &frame.Fault{Class: "ConnectionError",
			Message: "Failed to connect to Ray cluster at " + o.Address,
			Causes: []frame.Fault{{Class: "RuntimeError",
				Message: "Failed to connect to GCS: AuthenticationError: " +
					"RPC error: InvalidAuthToken: Authentication token is missing or incorrect."}}}
	}
	n := c.nodes[0]
	if o.NodeIP != "" {
		i := slices.IndexFunc(c.nodes, func(n *node) bool { return n.IP == o.NodeIP && n.Alive })
		if i < 0 {
			return nil, &frame.Fault{Class: "Exception",
				Message: "No node info found matching attributes: " + o.NodeIP}
		}
		n = c.nodes[i]
	}
	j.connected, j.namespace = true, cmp.Or(o.Namespace, "anonymous-"+j.id)
	return ray.Cluster{NodeID: n.ID, NodeIP: n.IP, JobID: j.id, GCSAddress: c.Address(),
		Namespace: j.namespace,
		Started:   o.Address == ""}, nil
}

// reach is why an address does not lead to this cluster.
func (c *Cluster) reach(address string) *frame.Fault {
	host, port, err := net.SplitHostPort(address)
	if _, number := strconv.Atoi(port); err != nil || host == "" || number != nil ||
		strings.Contains(address, "://") {
		return valueError("%s is no GCS address: give host:6379, not the address of Ray Client, "+
			"of the dashboard or of jobs", address)
	}
	if address != c.Address() {
		return &frame.Fault{Class: "Unreachable", Message: "no Ray cluster at " + address +
			": connection refused"}
	}
	return nil
}

// tokenOf is the token that a driver with this environment uses.
func tokenOf(env []string) string {
	values := map[string]string{}
	for _, kv := range env {
		name, value, _ := strings.Cut(kv, "=")
		values[name] = value
	}
	if mode := values["RAY_AUTH_MODE"]; mode != "" && mode != "token" {
		return ""
	}
	// No file is no token.
	file, _ := os.ReadFile(values["RAY_AUTH_TOKEN_PATH"])
	return strings.TrimSpace(cmp.Or(values["RAY_AUTH_TOKEN"], string(file)))
}

// nodes tells of each node what bundles leave of it, and at most what is free on the whole cluster.
func (j *job) nodes(context.Context, args) (any, *frame.Fault) {
	available := map[string]float64{}
	for _, n := range j.cluster.nodes {
		add(available, n.Free)
		subtract(available, n.outside)
	}
	subtract(available, j.cluster.outside)
	out := make([]ray.Node, 0, len(j.cluster.nodes))
	for _, n := range j.cluster.nodes {
		shown := n.Node
		shown.Free = map[string]float64{}
		for key, free := range n.Free {
			shown.Free[key] = max(0, min(free, available[key]))
		}
		out = append(out, shown)
	}
	return map[string]any{"nodes": out, "available": available}, nil
}

func (j *job) nodesLost(_ context.Context, a args) (any, *frame.Fault) {
	lost := slices.DeleteFunc(a.IDs, func(id string) bool {
		n := j.cluster.node(id)
		return n != nil && !n.crashed
	})
	return map[string]any{"lost": lost}, nil
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
	strategy := cmp.Or(a.Strategy, "PACK")
	if !slices.Contains([]string{"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}, strategy) {
		return nil, valueError("Invalid placement group strategy %s", a.Strategy)
	}
	g := &group{owner: j, namespace: j.namespace, Group: ray.Group{ID: c.newID(), Name: a.Name,
		Strategy: strategy,
		State:    ray.GroupPending}}
	for i, b := range a.Bundles {
		g.Bundles = append(g.Bundles, ray.Bundle{Index: i, Resources: b})
		g.taken = append(g.taken, map[string]float64{})
	}
	c.groups[g.ID] = g
	c.order = append(c.order, g.ID)
	j.known[g.ID] = true
	c.place(g)
	return map[string]string{"id": g.ID}, nil
}

var groupID = regexp.MustCompile(`^[0-9a-f]{36}$`)

func (j *job) groupAdopt(_ context.Context, a args) (any, *frame.Fault) {
	byID := groupID.MatchString(a.Group)
	for id, g := range j.cluster.groups {
		byName := g.Name == a.Group && g.namespace == j.namespace && g.State != ray.GroupRemoved
		if byID && id == a.Group || !byID && byName {
			j.known[id] = true
			return g.clone(), nil
		}
	}
	if byID {
		return nil, removed("the cluster has no placement group " + a.Group)
	}
	return nil, valueError("Failed to look up placement group with name: %s", a.Group)
}

func removed(message string) *frame.Fault {
	return &frame.Fault{Class: "PlacementGroupRemoved", Message: message}
}

// group finds a group that this job may use.
func (j *job) group(id string) (*group, *frame.Fault) {
	if !j.known[id] {
		return nil, valueError("unknown placement group %q: neither created nor adopted here", id)
	}
	return j.cluster.groups[id], nil
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
			return nil, removed("placement group " + a.ID + " was removed")
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

func (j *job) metrics(_ context.Context, a args) (any, *frame.Fault) {
	var shown struct {
		Samples []ray.Sample `json:"samples"`
	}
	if err := json.Unmarshal(a.raw, &shown); err != nil {
		return nil, valueError("%v", err)
	}
	j.cluster.samples = shown.Samples
	return empty{}, nil
}

func (j *job) groupRemove(_ context.Context, a args) (any, *frame.Fault) {
	g, fault := j.group(a.ID)
	if fault != nil {
		return nil, fault
	}
	if g.owner != j {
		return nil, valueError("placement group %s was made by another job: it is not ours to "+
			"remove", a.ID)
	}
	j.cluster.remove(a.ID)
	delete(j.known, a.ID)
	return empty{}, nil
}
