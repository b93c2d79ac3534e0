package ray_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
)

var factsOfGroups = []fact{
	{"senseless group",
		"a group without bundles or of an unknown strategy is refused at once, as is an unknown id",
		func(t *testing.T, w *world) {
			c := w.client(t)
			_, err := c.CreateGroup(within(t), ray.GroupSpec{})
			refused(t, "no bundles", err, "ValueError", "")
			_, err = c.CreateGroup(within(t), ray.GroupSpec{Bundles: bundles(1), Strategy: "TIGHT"})
			refused(t, "strategy", err, "ValueError", "")
			_, err = c.Group(within(t), "nonsense")
			refused(t, "unknown", err, "ValueError", "unknown placement group")
		}},
	{"pack", "PACK fills a node before it takes the next; bundles are listed by index with their " +
		"nodes", func(t *testing.T, w *world) {
		c := w.client(t)
		id := w.group(t, c, ray.GroupSpec{Bundles: bundles(4), Name: "packed"})
		g, err := c.Group(within(t), id)
		if err != nil || g.State != ray.GroupCreated || g.Strategy != "PACK" ||
			g.Name != "packed" || g.ID != id {
			t.Fatalf("%+v, %v", g, err)
		}
		on := map[string]int{}
		for i, b := range g.Bundles {
			on[b.NodeID]++
			if b.Index != i || b.Resources["GPU"] != 1 {
				t.Errorf("bundle %d: %+v", i, b)
			}
		}
		if got := slices.Collect(maps.Values(on)); !slices.Equal(got, []int{2, 2}) {
			t.Errorf("bundles by node: %v, want two on each of two", on)
		}
	}},
	{"pin", "a bundle that wants a little of a node's own resource is on that node",
		func(t *testing.T, w *world) {
			c := w.client(t)
			last := w.nodes()[2]
			id := w.group(t, c, ray.GroupSpec{Bundles: []map[string]float64{{"GPU": 1,
				"node:" + last: 0.001}, {"GPU": 1}}})
			g, err := c.Group(within(t), id)
			if err != nil {
				t.Fatal(err)
			}
			nodes, err := c.Nodes(within(t))
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes {
				if n.ID == g.Bundles[0].NodeID && n.IP != last {
					t.Errorf("bundle 0 is on %s, want %s", n.IP, last)
				}
			}
		}},
	{"infeasible", "a pending group that no idle cluster could hold is INFEASIBLE, and waited " +
		"for nevertheless", func(t *testing.T, w *world) {
		c := w.client(t)
		for name, spec := range map[string]ray.GroupSpec{
			"a bundle of three":   {Bundles: []map[string]float64{{"GPU": 3}}},
			"seven of six":        {Bundles: bundles(7)},
			"three on one node":   {Bundles: bundles(3), Strategy: "STRICT_PACK"},
			"no node has a TPU":   {Bundles: []map[string]float64{{"GPU": 1}, {"TPU": 1}}},
			"four on three nodes": {Bundles: bundles(4), Strategy: "STRICT_SPREAD"},
		} {
			id, err := c.CreateGroup(within(t), spec)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if ready, err := c.WaitGroup(within(t), id, 100*time.Millisecond); ready ||
				err != nil {
				t.Errorf("%s: %v, %v", name, ready, err)
			}
			if waited := time.Since(began); waited < 100*time.Millisecond {
				t.Errorf("waited only %v", waited)
			}
			eventually(t, name+" is infeasible", func() bool {
				g, err := c.Group(within(t), id)
				if err != nil || g.State != ray.GroupPending || g.Bundles[0].NodeID != "" {
					t.Fatalf("%s: %+v, %v", name, g, err)
				}
				return g.SchedulingState == ray.SchedulingInfeasible
			})
			// On 2.35.0 a pending group that cannot be placed may keep later ones from being
			// placed.
			removeGroup(t, c, id)
		}
	}},
	{"taken", "a group whose resources others hold is not INFEASIBLE, and has its place when " +
		"they are back", func(t *testing.T, w *world) {
		c := w.client(t)
		holder := w.placed(t, c, ray.GroupSpec{Bundles: bundles(5)})
		waiting, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: bundles(2)})
		if err != nil {
			t.Fatal(err)
		}
		defer removeGroup(t, c, waiting)
		if ready, err := c.WaitGroup(within(t), waiting, 100*time.Millisecond); ready ||
			err != nil {
			t.Errorf("two of one: %v, %v", ready, err)
		}
		if g, err := c.Group(within(t), waiting); err != nil ||
			g.SchedulingState == ray.SchedulingInfeasible {
			t.Errorf("two of one: %+v, %v", g, err)
		}
		removeGroup(t, c, holder)
		began := time.Now()
		if ready, err := c.WaitGroup(within(t), waiting, patience); !ready || err != nil {
			t.Errorf("after the removal of the other: %v, %v", ready, err)
		}
		// A second on a quiet machine: the launcher reports no shortage before two.
		t.Logf("resources back after %v", time.Since(began).Round(time.Millisecond))
	}},
	{"wait for a removed group",
		"a wait ends with the removal of its group, and delays no other call",
		func(t *testing.T, w *world) {
			c := w.client(t)
			id, err := c.CreateGroup(within(t),
				ray.GroupSpec{Bundles: []map[string]float64{{"GPU": 3}}})
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 4)
			for range cap(ended) {
				go func() {
					_, err := c.WaitGroup(within(t), id, patience)
					ended <- err
				}()
			}
			// Each would take minutes if it had to wait.
			for range 20 {
				if _, err := c.Nodes(within(t)); err != nil {
					t.Fatal(err)
				}
			}
			removeGroup(t, c, id)
			for range cap(ended) {
				if err := <-ended; class(err) != "PlacementGroupRemoved" &&
					class(err) != "ValueError" {
					t.Errorf("a wait for the removed group: %v", err)
				}
			}
			refused(t, "remove twice", c.RemoveGroup(within(t), id), "ValueError",
				"unknown placement group")
		}},
	{"adopt", "a group is adopted by its id from any namespace, by its name in the namespace of " +
		"its job", func(t *testing.T, w *world) {
		owner := w.client(t)
		id := w.group(t, owner, ray.GroupSpec{Name: "ext", Bundles: bundles(2)})
		same, other := w.another(t, factSpace), w.another(t, "another")
		for _, c := range []struct {
			client *ray.Client
			name   string
		}{{same, id}, {same, "ext"}, {other, id}} {
			g, err := c.client.AdoptGroup(within(t), c.name)
			if err != nil || g.ID != id || g.Name != "ext" || g.State != ray.GroupCreated ||
				len(g.Bundles) != 2 ||
				g.Bundles[1].NodeID == "" || g.Bundles[1].Resources["GPU"] != 1 {
				t.Fatalf("adopt %s: %+v, %v", c.name, g, err)
			}
		}
		_, err := other.AdoptGroup(within(t), "ext")
		refused(t, "by name from another namespace", err, "ValueError",
			"Failed to look up placement group with name: ext")
		_, err = other.AdoptGroup(within(t), strings.Repeat("ab", 18))
		refused(t, "an id of no group", err, "PlacementGroupRemoved",
			"the cluster has no placement group")
		if ready, err := other.WaitGroup(within(t), id, patience); !ready || err != nil {
			t.Errorf("wait: %v, %v", ready, err)
		}
		refused(t, "remove an adopted group", other.RemoveGroup(within(t), id), "ValueError",
			"not ours to remove")
		facts := spawned(t, other, []ray.ActorSpec{{Group: id, Bundle: 1, GPUs: 1}})
		if len(facts[0].DeviceIDs) != 1 {
			t.Errorf("facts in an adopted group: %+v", facts)
		}
		closeClient(t, other)
		if g, err := owner.Group(within(t), id); err != nil || g.State != ray.GroupCreated {
			t.Errorf("after the adopter's end: %+v, %v", g, err)
		}
	}},
}
