package fake

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/eagleray/eagleray/internal/ray"
)

// place gives a pending group its nodes if they have room, or says why not.
func (c *Cluster) place(g *group) {
	var alive []*node
	for _, n := range c.nodes {
		if n.Alive {
			alive = append(alive, n)
		}
	}
	free := func(n *node) map[string]float64 {
		room := maps.Clone(n.Free)
		subtract(room, n.outside)
		return room
	}
	if where := fit(g.Group, alive, free); where != nil {
		if slices.ContainsFunc(where, func(n *node) bool { return n.crashed }) {
			g.SchedulingState = "NO_RESOURCES" // for as long as Ray does not know
			return
		}
		for i, n := range where {
			g.Bundles[i].NodeID = n.ID
			subtract(n.Free, g.Bundles[i].Resources)
		}
		g.State, g.SchedulingState = ray.GroupCreated, "FINISHED"
		return
	}
	total := func(n *node) map[string]float64 { return maps.Clone(n.Resources) }
	g.SchedulingState = "NO_RESOURCES"
	if fit(g.Group, alive, total) == nil {
		g.SchedulingState = ray.SchedulingInfeasible
	}
}

// fit finds a node for each bundle by the group's strategy, nil if there is not enough.
func fit(g ray.Group, nodes []*node, capacity func(*node) map[string]float64) []*node {
	room := map[*node]map[string]float64{}
	used := map[*node]int{}
	for _, n := range nodes {
		room[n] = capacity(n)
	}
	where := make([]*node, 0, len(g.Bundles))
	for _, b := range g.Bundles {
		candidates := slices.Clone(nodes)
		// PACK fills a node that is in use first; SPREAD takes the one that is used least.
		slices.SortStableFunc(candidates, func(x, y *node) int {
			if g.Strategy == "SPREAD" || g.Strategy == "STRICT_SPREAD" {
				return cmp.Compare(used[x], used[y])
			}
			return cmp.Compare(used[y], used[x])
		})
		i := slices.IndexFunc(candidates, func(n *node) bool {
			if g.Strategy == "STRICT_SPREAD" && used[n] > 0 {
				return false
			}
			return fits(room[n], b.Resources)
		})
		if i < 0 {
			return nil
		}
		n := candidates[i]
		if g.Strategy == "STRICT_PACK" && len(where) > 0 && where[0] != n {
			return nil
		}
		subtract(room[n], b.Resources)
		used[n]++
		where = append(where, n)
	}
	return where
}

// epsilon forgives what fractions of devices lose in sums.
const epsilon = 1e-9

func fits(room, want map[string]float64) bool {
	for key, amount := range want {
		if room[key] < amount-epsilon {
			return false
		}
	}
	return true
}

func subtract(room, want map[string]float64) {
	for key, amount := range want {
		room[key] -= amount
	}
}

func add(room, back map[string]float64) {
	for key, amount := range back {
		room[key] += amount
	}
}

// wants is what the actor takes of its bundle, by resource.
func wants(s ray.ActorSpec) map[string]float64 {
	all := map[string]float64{"CPU": s.CPUs, "GPU": s.GPUs}
	maps.Copy(all, s.Resources)
	maps.DeleteFunc(all, func(_ string, amount float64) bool { return amount == 0 })
	return all
}

// seat starts an actor if there is room for it, in its bundle or on any node: it gets its devices
// and facts.
func (c *Cluster) seat(a *actor) bool {
	if a.placed || c.hold[a.spec.Rank] {
		return a.placed
	}
	need := wants(a.spec)
	n := c.roomFor(a.spec, need)
	if n == nil || n.crashed {
		return false
	}
	if a.spec.Group != "" {
		add(c.groups[a.spec.Group].taken[a.spec.Bundle], need)
	} else {
		add(n.outside, need)
	}
	a.ids = map[string][]int{}
	for key, amount := range need {
		a.ids[key] = assign(n.devices[key], amount)
	}
	c.pids++
	a.placed = true
	a.facts = ray.Facts{Rank: a.spec.Rank, NodeID: n.ID, NodeIP: n.IP, Hostname: n.Hostname,
		PID: c.pids, CPUs: 1,
		Niceness: 15, ActorID: fmt.Sprintf("%032x", c.pids), Arch: "x86_64", Python: c.Python,
		Ray: c.Ray}
	if c.Dir != "" {
		a.facts.PID = os.Getpid()
	}
	return true
}

// roomFor is a node where an actor can start now, nil if there is none.
func (c *Cluster) roomFor(spec ray.ActorSpec, need map[string]float64) *node {
	if spec.Group != "" {
		g := c.groups[spec.Group]
		if g.State != ray.GroupCreated {
			return nil
		}
		room := maps.Clone(g.Bundles[spec.Bundle].Resources)
		subtract(room, g.taken[spec.Bundle])
		if !fits(room, need) {
			return nil
		}
		return c.node(g.Bundles[spec.Bundle].NodeID)
	}
	for _, n := range c.nodes {
		room := maps.Clone(n.Free)
		subtract(room, n.outside)
		if n.Alive && fits(room, need) {
			return n
		}
	}
	return nil
}

// release gives back what an actor had.
func (c *Cluster) release(a *actor) {
	if !a.placed {
		return
	}
	need := wants(a.spec)
	n := c.node(a.facts.NodeID)
	if g := c.groups[a.spec.Group]; g != nil {
		subtract(g.taken[a.spec.Bundle], need)
	} else {
		subtract(n.outside, need)
	}
	for key, ids := range a.ids {
		for _, id := range ids {
			n.devices[key][id] += math.Min(1, need[key])
		}
	}
}

// assign takes an amount from the devices: whole ones, or a part of one.
func assign(devices []float64, amount float64) []int {
	each := math.Min(1, amount)
	var ids []int
	for id := range devices {
		if amount > epsilon && devices[id] >= each-epsilon {
			devices[id] -= each
			amount -= each
			ids = append(ids, id)
		}
	}
	return ids
}
