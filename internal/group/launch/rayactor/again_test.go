package rayactor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/group/launch"
	"github.com/eagleray/eagleray/internal/link/join"
	"github.com/eagleray/eagleray/internal/link/queue/handshake"
	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/ray/frame"
	"golang.org/x/sys/unix"
)

// fed counts what workers are given after their start, by process.
func (x *trial) fed() map[int]int {
	counts := map[int]int{}
	x.Worker = func(ray.StartSpec, map[string]string) (*fake.Worker, error) {
		end := make(chan unix.Signal, 2)
		w := &fake.Worker{PID: 100 + len(counts)}
		counts[w.PID] = 0
		w.Signal = func(s unix.Signal) {
			select {
			case end <- s:
			default:
			}
		}
		w.Wait = func() ray.Exit { return ray.Exit{Signal: unix.SignalName(<-end)} }
		w.Feed = func([]byte) { counts[w.PID]++ }
		return w, nil
	}
	return counts
}

// succeed starts the next group; the ranks in fresh may not be kept.
func (x *trial) succeed(fresh ...int) ([]launch.Worker, error) {
	specs := make([]launch.Spec, x.world)
	for rank := range specs {
		specs[rank] = launch.Spec{Rank: rank, LocalRank: rank, Fresh: slices.Contains(fresh, rank),
			Invitation: &join.Invitation{Endpoint: handshake.Endpoint{Instance: "next"}, Rank: rank,
				World: x.world}}
	}
	return x.l.Launch(x.t.Context(), specs)
}

// exits waits until so many ends of ranks have been told.
func (x *trial) exits(n int) {
	x.t.Helper()
	for range n {
		select {
		case <-x.l.Exited():
		case <-time.After(time.Minute):
			x.t.Fatal("no exit is told")
		}
	}
}

// TestAgain starts a group in the place of one that has lost something. What is kept is given its
// invitation, and nothing else happens to it.
func TestAgain(t *testing.T) {
	const world = 3
	for _, c := range []struct {
		name string
		do   func(x *trial)
		// exits are told before the next start; fresh may not be kept.
		exits int
		fresh []int
		// replaced are the workers that are new, actors how many actors are.
		replaced []int
		actors   int
		groups   int // made in all
	}{
		{"nothing", func(*trial) {}, 0, nil, nil, 0, 1},
		{"a worker", func(x *trial) { x.EndWorker(1, ray.Exit{Signal: "SIGKILL"}) }, 1, []int{1},
			[]int{1}, 0, 1},
		{"a worker, while Ray tells nothing of nodes", func(x *trial) {
			x.FailNext("nodes_lost", frame.Fault{Class: "GetTimeoutError", Message: "no GCS"})
			x.EndWorker(1, ray.Exit{Signal: "SIGKILL"})
		}, 1, []int{1}, []int{1}, 0, 1},
		{"a worker that was not blamed", func(x *trial) {
			x.EndWorker(2,
				ray.Exit{Signal: "SIGKILL"})
		}, 1, nil, []int{2}, 0, 1},
		{"a worker that hangs", func(*trial) {}, 0, []int{0}, []int{0}, 0, 1},
		{"an actor", func(x *trial) {
			x.LoseActor(1, frame.Fault{Class: "ActorDiedError", Message: "killed"})
		}, 1, []int{1}, []int{1}, 1, 1},
		{"an actor that Ray does not start again, as on a node that is drained", func(x *trial) {
			x.LoseActor(1, frame.Fault{Class: "ActorDiedError", Message: "killed"})
			x.BlockActor(1, true)
			time.AfterFunc(replaceTimeout+time.Second, func() { x.BlockActor(1, false) })
		}, 1, []int{1}, []int{0, 1, 2}, 3, 2},
		{"all workers", func(x *trial) {
			for rank := range world {
				x.EndWorker(rank, ray.Exit{Signal: "SIGKILL"})
			}
		}, world, []int{0}, []int{0, 1, 2}, 0, 1},
		{"a node, with a spare one", func(x *trial) {
			x.AddNode(ray.Node{ID: "spare", IP: "10.0.0.9",
				Resources: map[string]float64{"CPU": 4, "GPU": 2}})
			x.KillNode("node2")
		}, 1, []int{2}, []int{0, 1, 2}, 3, 2},
		// Only bundles that ask for other nodes are placed while Ray does not know of the crash.
		{"a raylet, with a spare node", func(x *trial) {
			x.AddNode(ray.Node{ID: "spare", IP: "10.0.0.9",
				Resources: map[string]float64{"CPU": 4, "GPU": 2}})
			x.CrashNode("node2")
		}, 1, []int{2}, []int{0, 1, 2}, 3, 2},
		{"the group", func(x *trial) { x.RemoveGroup(x.Groups()[0].ID) }, world, []int{0},
			[]int{0, 1, 2}, 3, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTrial(t, world)
				fed := x.fed()
				before, err := x.start(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				first := slices.Clone(x.Actors())
				group := x.Groups()[0].ID
				c.do(x)
				x.exits(c.exits)
				started := time.Now()
				after, err := x.succeed(c.fresh...)
				if err != nil {
					t.Fatalf("%v\n%s", err, &x.log)
				}
				for rank, w := range after {
					kept := !slices.Contains(c.replaced, rank)
					if w.Reused != kept || (w.PID == before[rank].PID) != kept || kept &&
						fed[w.PID] != 1 {
						t.Errorf("rank %d: %+v, before %+v, fed %d times", rank, w, before[rank],
							fed[w.PID])
					}
				}
				actors := 0
				for rank, a := range x.Actors() {
					if a.Name != first[rank].Name {
						actors++
					}
				}
				if actors != c.actors || (x.Groups()[0].ID != group) != (c.groups > 1) {
					t.Errorf("%d actors are new, wanted %d; groups %+v", actors, c.actors,
						x.Groups())
				}
				for _, w := range after {
					if w.Node == "10.0.0.2" && strings.HasSuffix(c.name, "spare node") {
						t.Errorf("%+v is on the node that crashed", w)
					}
				}
				if took := time.Since(started); took > replaceTimeout+5*time.Second {
					t.Errorf("it took %v", took)
				}
				select {
				case e := <-x.l.Exited():
					t.Errorf("an end of the group before is told: %+v", e)
				default:
				}
				x.end()
			})
		})
	}
}

// TestAgainSmaller starts a group again on a cluster that has lost a node: it waits for another
// one, says for what, and is refused with the numbers when that takes too long.
func TestAgainSmaller(t *testing.T) {
	for name, c := range map[string]struct {
		comes time.Duration // the node
		known time.Duration // that the other one is lost, to Ray
		limit time.Duration // of the wait; 0 is the default one
		want  string        // of the error
	}{
		"it comes":                     {comes: 10 * time.Minute},
		"it comes, to Ray's knowledge": {comes: 10 * time.Minute, known: 13 * time.Second},
		"it comes late": {comes: 10 * time.Minute, limit: 5 * time.Minute,
			want: "no place after 5m0s"},
		"never": {comes: 24 * time.Hour, want: "no place after 30m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTrial(t, 4)
				_, err := x.start(t.Context(), func(o *Options) { o.PlacementTimeout = c.limit })
				if err != nil {
					t.Fatal(err)
				}
				x.phases = nil
				x.CrashNode("node2")
				x.exits(2)
				known := time.AfterFunc(c.known, func() { x.KillNode("node2") })
				defer known.Stop()
				synctest.Wait()
				came := time.AfterFunc(c.comes, func() {
					x.AddNode(ray.Node{ID: "spare", IP: "10.0.0.9",
						Resources: map[string]float64{"CPU": 4, "GPU": 2}})
				})
				defer came.Stop()
				workers, err := x.succeed(2)
				if c.want != "" {
					x.wants(err, c.want,
						"wanted: 4 bundles of {GPU: 1}; 2 of 4 fit into what is free now")
				} else if err != nil || workers[3].Node != "10.0.0.9" {
					t.Errorf("%+v, %v", workers, err)
				}
				const phase = "ray place, wanted: 4 bundles of {GPU: 1}; 2 of 4 fit into what is " +
					"free now"
				if !slices.Contains(x.phases, phase) {
					t.Errorf("phases %q", x.phases)
				}
				x.end()
			})
		})
	}
}

// TestAgainAdopted replaces an actor in a group that is not ours, which stays with the other
// actors.
func TestAgainAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTrial(t, 4)
		var bundles []ray.Bundle
		for rank := range x.world {
			bundles = append(bundles, ray.Bundle{NodeID: []string{"node1", "node2"}[rank/2],
				Resources: map[string]float64{"GPU": 1}})
		}
		group := x.AddGroup("", ray.Group{Bundles: bundles})
		before, err := x.start(t.Context(), func(o *Options) { o.PlacementGroup = group })
		if err != nil {
			t.Fatal(err)
		}
		x.LoseActor(2, frame.Fault{Class: "ActorDiedError", Message: "killed"})
		x.exits(1)
		after, err := x.succeed(2)
		if err != nil {
			t.Fatalf("%v\n%s", err, &x.log)
		}
		for rank, w := range after {
			if kept := rank != 2; w.Reused != kept || (w.PID == before[rank].PID) != kept ||
				w.Node != before[rank].Node {
				t.Errorf("rank %d: %+v, before %+v", rank, w, before[rank])
			}
		}
		x.end(group)
	})
}

// TestNoPlace starts a group again on a cluster that has lost a node, with little patience: it is
// told soon for how many ranks there is a place, also when Ray never knows of the loss. A smaller
// group then keeps to nodes that live.
func TestNoPlace(t *testing.T) {
	const patience = 5 * time.Second
	for name, c := range map[string]struct{ known, least, most time.Duration }{
		"at once":      {0, patience, patience + settle + time.Second},
		"soon":         {time.Second, patience, patience + settle + 2*time.Second},
		"after a time": {13 * time.Second, patience, patience + time.Second},
		"never":        {time.Hour, patience, patience + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newTrial(t, 4)
				if _, err := x.start(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
				x.CrashNode("node2")
				x.exits(2)
				known := time.AfterFunc(c.known, func() { x.KillNode("node2") })
				defer known.Stop()
				synctest.Wait()
				x.l.SetPatience(patience)
				began := time.Now()
				_, err := x.succeed(2)
				if took := time.Since(began); took < c.least || took > c.most {
					t.Errorf("known after %v", took)
				}
				x.wants(err, "ray, phase place: no place after 5s")
				var none *launch.NoPlace
				if !errors.As(err, &none) || none.Room != 2 ||
					none.Missing != "2 bundles of {GPU: 1}" {
					t.Errorf("%+v", none)
				}
				x.end()
				// Ray would place a rank on the lost node, which comes before the spare one.
				theirs := x.AddGroup("", ray.Group{Bundles: []ray.Bundle{
					{NodeID: "node1", Resources: map[string]float64{"GPU": 1}}}})
				x.AddNode(ray.Node{ID: "spare", IP: "10.0.0.9",
					Resources: map[string]float64{"CPU": 4, "GPU": 2}})
				x.world = 2
				x.patience = patience
				workers, err := x.start(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, w := range workers {
					if w.Node == "10.0.0.2" {
						t.Errorf("%+v is on the node that crashed", w)
					}
				}
				for ranks, want := range []bool{true, true, false, false, false} {
					if got, err := x.l.Room(t.Context(), ranks); got != want || err != nil {
						t.Errorf("room for %d more ranks: %v, %v", ranks, got, err)
					}
				}
				x.end(theirs)
			})
		})
	}
}
