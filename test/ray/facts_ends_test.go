package ray_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/raytest"
	"golang.org/x/sys/unix"
)

var factsOfEnds = []fact{
	{"actor killed",
		"the end of an actor is told as one of Ray's exceptions, and takes the worker along",
		func(t *testing.T, w *world) {
			c, f := w.client(t), w.actors(t, 1)[0]
			runScript(t, c, f.Rank, waits)
			w.signalActor(t, f, unix.SIGKILL)
			if e := raytest.NextExit(t, c); e.Rank != f.Rank || e.Code != nil ||
				!isActorError(e.Class) || e.Reason == "" {
				t.Errorf("exit %+v", e)
			}
			w.noneLeft(t, workerMark)
			w.lost(t, f.Rank)
		}},
	{"actor asked to end", "an actor ends on SIGTERM, with its worker",
		func(t *testing.T, w *world) {
			c, f := w.client(t), w.actors(t, 1)[0]
			runScript(t, c, f.Rank, waits)
			w.signalActor(t, f, unix.SIGTERM)
			e := raytest.NextExit(t, c)
			if e.Rank != f.Rank || e.Code != nil && *e.Code != 0 || e.Code == nil &&
				!isActorError(e.Class) {
				t.Errorf("exit %+v", e)
			}
			w.noneLeft(t, workerMark)
			w.lost(t, f.Rank)
		}},
	{"ray.kill", "an actor that another job ends by ray.kill says so, after its worker's end at " +
		"the latest", func(t *testing.T, w *world) {
		c := w.client(t)
		spawned(t, c, []ray.ActorSpec{{Rank: 10, Name: "by_name"}})
		runScript(t, c, 10, waits)
		w.rayKill(t, factSpace, "by_name")
		if e := raytest.NextExit(t, c); e.Rank != 10 || !isActorError(e.Class) ||
			!strings.Contains(e.Reason, "ray.kill") {
			t.Errorf("exit %+v", e)
		}
		killActors(t, c, 10)
	}},
	{"ended on purpose",
		"actors that their own engine ends are no news; the ends of others still are",
		func(t *testing.T, w *world) {
			c, all := w.client(t), w.actors(t, 2)
			for _, f := range all {
				runScript(t, c, f.Rank, waits)
			}
			w.lost(t, 0)
			w.signalActor(t, all[1], unix.SIGKILL)
			if e := raytest.NextExit(t, c); e.Rank != 1 {
				t.Errorf("exit %+v", e)
			}
			w.lost(t, 1)
			if err := c.KillActors(within(t), []int{77}); err != nil {
				t.Errorf("an unknown rank: %v", err)
			}
		}},
	{"group removed",
		"the removal of a group ends its actors, and is told as such or as a signal of the worker",
		func(t *testing.T, w *world) {
			c := w.client(t)
			id := w.placed(t, c, ray.GroupSpec{Bundles: bundles(1)})
			spawned(t, c, []ray.ActorSpec{{Rank: 10, Group: id, GPUs: 1}})
			runScript(t, c, 10, waits)
			removeGroup(t, c, id)
			e := raytest.NextExit(t, c)
			if e.Rank != 10 || e.Signal == "" && (!isActorError(e.Class) ||
				!strings.Contains(e.Reason, "placement group was removed")) {
				t.Errorf("exit %+v", e)
			}
			killActors(t, c, 10)
		}},
	{"job ends", "groups and actors end with their job; in a group of a job that ended also " +
		"those of others do", func(t *testing.T, w *world) {
		owner, c := w.another(t, "owner"), w.client(t)
		id := w.placed(t, owner, ray.GroupSpec{Bundles: bundles(2)})
		if _, err := c.AdoptGroup(within(t), id); err != nil {
			t.Fatal(err)
		}
		spawned(t, owner, []ray.ActorSpec{{Rank: 0, Group: id, Bundle: 0, GPUs: 1}})
		spawned(t, c, []ray.ActorSpec{{Rank: 10, Group: id, Bundle: 1, GPUs: 1}})
		runScript(t, owner, 0, waits)
		runScript(t, c, 10, waits)
		closeClient(t, owner)
		e := raytest.NextExit(t, c)
		if e.Rank != 10 || e.Signal == "" && !strings.Contains(e.Reason,
			"placement group was removed") {
			t.Errorf("exit %+v", e)
		}
		isRemoved(t, c, id)
		w.noneLeft(t, workerMark)
		killActors(t, c, 10)
		// Ray takes an actor for a group that is gone, and never starts it.
		if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 11, Group: id, Bundle: 1,
			GPUs: 1}}); err != nil {
			t.Errorf("an actor in the removed group: %v", err)
		}
		_, err := c.Facts(within(t), []int{11}, ray.FactsRequest{})
		refused(t, "the actor's facts", err.(ray.RankErrors)[11], "Pending",
			"the placement group is REMOVED")
		killActors(t, c, 11)
	}},
	{"bridge killed",
		"the crash of a bridge ends its job: groups, actors and workers go, and calls say why",
		func(t *testing.T, w *world) {
			observer, c := w.client(t), w.another(t, "crash")
			id := w.placed(t, c, ray.GroupSpec{Bundles: bundles(1)})
			spawned(t, c, []ray.ActorSpec{{Rank: 0, Group: id, GPUs: 1}})
			runScript(t, c, 0, waits)
			if _, err := observer.AdoptGroup(within(t), id); err != nil {
				t.Fatal(err)
			}
			w.killBridge(t)
			<-c.Gone()
			if err := c.Err(); !errors.Is(err, ray.ErrGone) {
				t.Errorf("gone: %v", err)
			}
			if _, err := c.Nodes(within(t)); !errors.Is(err, ray.ErrGone) {
				t.Errorf("a later call: %v", err)
			}
			isRemoved(t, observer, id)
			w.noneLeft(t, workerMark)
		}},
	{"node crashes",
		"the crash of a node ends the ranks there, and no others; its raylet accepts no " +
			"connection from then on, and Ray lists it as dead at some time",
		func(t *testing.T, w *world) {
			ip := w.addNode(t)
			c := w.client(t)
			w.actors(t, 1)
			id := w.group(t, c, ray.GroupSpec{Bundles: []map[string]float64{{"extra": 1}}})
			spawned(t, c, []ray.ActorSpec{{Rank: 10, Group: id,
				Resources: map[string]float64{"extra": 1}}})
			defer killActors(t, c, 10)
			runScript(t, c, 10, waits)
			var all []string
			nodes, err := c.Nodes(within(t))
			if err != nil {
				t.Fatal(err)
			}
			crashed := ""
			for _, n := range nodes {
				if n.IP == ip {
					crashed = n.ID
				}
				if n.Alive {
					all = append(all, n.ID)
				}
			}
			if lost, err := c.LostNodes(within(t), []string{crashed}); err != nil ||
				len(lost) > 0 {
				t.Errorf("lost before: %v, %v", lost, err)
			}
			w.killNode(t, ip)
			eventually(t, "the node to be lost, and no other", func() bool {
				lost, err := c.LostNodes(within(t), append(all, "unknown"))
				return err == nil && slices.Equal(lost, []string{crashed, "unknown"})
			})
			// Ray's part of the actor ends its worker first, of which the actor may still tell.
			if e := raytest.NextExit(t, c); e.Rank != 10 || e.Signal != "SIGKILL" &&
				(!isActorError(e.Class) || e.Reason == "") {
				t.Errorf("exit %+v", e)
			}
			if facts, err := c.Facts(within(t), []int{0}, ray.FactsRequest{}); err != nil ||
				len(facts) != 1 {
				t.Errorf("the other rank: %+v, %v", facts, err)
			}
			eventually(t, "the node is dead for Ray", func() bool {
				nodes, err := c.Nodes(within(t))
				return err == nil && slices.ContainsFunc(nodes, func(n ray.Node) bool {
					return n.IP == ip && !n.Alive && len(n.Free) == 0
				})
			})
		}},
}

// isRemoved waits until a group is removed, as another job sees it.
func isRemoved(t *testing.T, c *ray.Client, id string) {
	t.Helper()
	eventually(t, "the group to be removed", func() bool {
		g, err := c.Group(within(t), id)
		return err == nil && g.State == ray.GroupRemoved || class(err) == "PlacementGroupRemoved"
	})
}
