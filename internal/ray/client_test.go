package ray_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/ray/frame"
)

// hang is a time limit that only a hang exceeds.
const hang = 2 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

// newFake is two nodes of two GPUs each.
func newFake() *fake.Cluster {
	return fake.New(
		ray.Node{ID: "n1", IP: "10.0.0.1", Hostname: "one", Resources: map[string]float64{"CPU": 4, "GPU": 2}},
		ray.Node{ID: "n2", IP: "10.0.0.2", Hostname: "two", Resources: map[string]float64{"CPU": 4, "GPU": 2}})
}

// dial joins a fake cluster; the client is closed, and everything awaited, at the end of the test.
func dial(t *testing.T, f *fake.Cluster) *ray.Client {
	t.Helper()
	c, err := ray.Start(within(t), ray.Options{Conn: f.Dial()})
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(within(t)); err != nil {
			t.Errorf("close: %v", err)
		}
		f.Wait()
	})
	if _, err := c.Connect(within(t), ray.ConnectOptions{Namespace: "ns"}); err != nil {
		t.Fatalf("connect: %v", err)
	}
	return c
}

// gpus is n bundles of one GPU.
func gpus(n int) []map[string]float64 {
	return slices.Repeat([]map[string]float64{{"GPU": 1}}, n)
}

// placed creates a group of n one-GPU bundles and waits for it.
func placed(t *testing.T, c *ray.Client, n int) string {
	t.Helper()
	id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: gpus(n)})
	if err != nil {
		t.Fatalf("create group: %v", err)
	}
	ready, err := c.WaitGroup(within(t), id, hang)
	if err != nil || !ready {
		t.Fatalf("group: ready %v, %v", ready, err)
	}
	return id
}

// spawn creates one actor for each of n bundles of the group and waits for their facts.
func spawn(t *testing.T, c *ray.Client, group string, n int) ([]int, []ray.Facts) {
	t.Helper()
	var specs []ray.ActorSpec
	var ranks []int
	for i := range n {
		specs = append(specs, ray.ActorSpec{Rank: i, Group: group, Bundle: i, GPUs: 1})
		ranks = append(ranks, i)
	}
	if err := c.CreateActors(within(t), specs); err != nil {
		t.Fatalf("create actors: %v", err)
	}
	facts, err := c.Facts(within(t), ranks, ray.FactsRequest{DeviceKey: "GPU"})
	if err != nil {
		t.Fatalf("facts: %v", err)
	}
	return ranks, facts
}

func starts(ranks []int, path string, args ...string) []ray.StartSpec {
	var specs []ray.StartSpec
	for _, r := range ranks {
		specs = append(specs, ray.StartSpec{Rank: r, Path: path, Args: args})
	}
	return specs
}

func nextExit(t *testing.T, c *ray.Client) ray.Exit {
	t.Helper()
	select {
	case e, open := <-c.Exits():
		if !open {
			t.Fatal("exits closed")
		}
		return e
	case <-time.After(hang):
		t.Fatal("no exit")
	}
	panic("unreachable")
}

func awaitGone(t *testing.T, c *ray.Client) error {
	t.Helper()
	select {
	case <-c.Gone():
	case <-time.After(hang):
		t.Fatal("the bridge is not gone")
	}
	return c.Err()
}

func TestFakeStartToEnd(t *testing.T) {
	f := newFake()
	got := make(chan ray.StartSpec, 4)
	f.Worker = func(ctx context.Context, spec ray.StartSpec) ray.Exit {
		got <- spec
		<-ctx.Done()
		return ray.Exit{}
	}
	f.SetBinary("n1", "abc", "/opt/eagleray")
	f.SetNodeEnv("n2", map[string]string{"A": "there", "B": "same"})
	c := dial(t, f)
	if v := c.Hello(); v != (ray.Versions{Ray: "2.60.0", Python: "3.11.7"}) {
		t.Errorf("hello %+v", v)
	}
	group := placed(t, c, 4)
	g, err := c.Group(within(t), group)
	if err != nil || g.State != ray.GroupCreated || len(g.Bundles) != 4 {
		t.Fatalf("group %+v, %v", g, err)
	}
	ranks, facts := spawn(t, c, group, 4)
	var where []string
	for _, x := range facts {
		where = append(where, x.NodeID+x.DeviceIDs[0])
	}
	if want := []string{"n10", "n11", "n20", "n21"}; !slices.Equal(where, want) {
		t.Errorf("places %v, want %v", where, want)
	}
	facts, err = c.Facts(within(t), ranks, ray.FactsRequest{SHA256: "abc",
		EnvDigests: map[string]string{"A": ray.EnvDigest("here"), "B": ray.EnvDigest("same"), "C": ray.EnvDigest("")}})
	if err != nil {
		t.Fatal(err)
	}
	if facts[0].HasBinary != "/opt/eagleray" || facts[2].HasBinary != "" {
		t.Errorf("binaries %q, %q", facts[0].HasBinary, facts[2].HasBinary)
	}
	if len(facts[0].Differs) != 0 || !slices.Equal(facts[2].Differs, []string{"A"}) {
		t.Errorf("differs %v, %v", facts[0].Differs, facts[2].Differs)
	}
	for _, want := range []bool{false, true} {
		installed, err := c.Install(within(t), []int{2}, "/bin/sh", "abc")
		if err != nil || len(installed) != 1 || installed[0].Cached != want {
			t.Errorf("install: %+v, %v, want cached %v", installed, err, want)
		}
	}
	spec := ray.StartSpec{Rank: 3, Path: "/opt/eagleray", Args: []string{"worker"}, SetEnv: map[string]string{"X": "1"},
		DefaultEnv: map[string]string{"Y": "2"}, UnsetEnv: []string{"Z"}, Stdin: []byte{0, 255, '\n'}}
	started, err := c.StartWorkers(within(t), []ray.StartSpec{spec})
	if err != nil || len(started) != 1 || started[0].Rank != 3 || started[0].PID == 0 {
		t.Fatalf("start: %+v, %v", started, err)
	}
	if back := <-got; !reflect.DeepEqual(back, spec) {
		t.Errorf("the worker got %+v, want %+v", back, spec)
	}
	if err := c.KillActors(within(t), []int{0, 3, 99}); err != nil {
		t.Errorf("kill: %v", err)
	}
	if left := f.Actors(); len(left) != 2 {
		t.Errorf("actors %+v", left)
	}
	if err := c.RemoveGroup(within(t), group); err != nil {
		t.Errorf("remove: %v", err)
	}
	if left := f.Groups(); len(left) != 0 {
		t.Errorf("groups %+v", left)
	}
}

func TestFakeExits(t *testing.T) {
	f := newFake()
	c := dial(t, f)
	ranks, _ := spawn(t, c, placed(t, c, 3), 3)
	if _, err := c.StartWorkers(within(t), starts(ranks, "/bin/x")); err != nil {
		t.Fatal(err)
	}
	seven := 7
	f.EndWorker(1, ray.Exit{Code: &seven, Stderr: []string{"bad", "worse"}})
	if e := nextExit(t, c); e.Rank != 1 || e.Code == nil || *e.Code != 7 || !slices.Equal(e.Stderr, []string{"bad", "worse"}) || e.At.IsZero() {
		t.Errorf("exit %+v", e)
	}
	f.LoseActor(0, frame.Fault{Class: "ActorDiedError", Message: "lost"})
	if e := nextExit(t, c); e.Rank != 0 || e.Code != nil || e.Class != "ActorDiedError" || e.Reason != "lost" {
		t.Errorf("exit %+v", e)
	}
	// One that is killed on purpose is no news: the next news is of the rank after it.
	if err := c.KillActors(within(t), []int{2}); err != nil {
		t.Fatal(err)
	}
	if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 2}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.StartWorkers(within(t), starts([]int{2}, "/bin/x")); err != nil {
		t.Fatal(err)
	}
	f.EndWorker(2, ray.Exit{Signal: "SIGSEGV"})
	if e := nextExit(t, c); e.Rank != 2 || e.Signal != "SIGSEGV" {
		t.Errorf("exit %+v", e)
	}
}

// Exits that nobody reads must not hold up anything else.
func TestExitsNobodyReads(t *testing.T) {
	f := newFake()
	c := dial(t, f)
	for i := range 200 {
		if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: i}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.StartWorkers(within(t), starts([]int{i}, "/bin/x")); err != nil {
			t.Fatal(err)
		}
		f.EndWorker(i, ray.Exit{Signal: "SIGKILL"})
	}
	for i := range 200 {
		if e := nextExit(t, c); e.Rank != i {
			t.Fatalf("exit %d is of rank %d", i, e.Rank)
		}
	}
}

func TestFakeRankErrors(t *testing.T) {
	f := newFake()
	c := dial(t, f)
	group := placed(t, c, 4)
	err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 0, Group: group, GPUs: 1}, {Rank: 1, Group: group, Bundle: 7},
		{Rank: 2, Group: "nonsense"}})
	var errs ray.RankErrors
	if !errors.As(err, &errs) || !slices.Equal(errs.Ranks(), []int{1, 2}) {
		t.Fatalf("create: %v", err)
	}
	var e *ray.Error
	if !errors.As(errs[1], &e) || e.Class != "ValueError" || !strings.Contains(e.Message, "bundle index 7 is invalid") {
		t.Errorf("rank 1: %#v", errs[1])
	}
	f.RefuseActor(3, frame.Fault{Class: "RuntimeEnvSetupError", Message: "no such package"})
	f.HoldActor(1, true)
	if err := c.CreateActors(within(t), []ray.ActorSpec{{Rank: 1, Group: group, Bundle: 1, GPUs: 1}, {Rank: 3, Group: group, Bundle: 3, GPUs: 1}}); err != nil {
		t.Fatal(err)
	}
	facts, err := c.Facts(within(t), []int{0, 1, 3, 9}, ray.FactsRequest{})
	if len(facts) != 1 || facts[0].Rank != 0 {
		t.Errorf("facts %+v", facts)
	}
	classes := map[int]string{}
	if !errors.As(err, &errs) {
		t.Fatalf("facts: %v", err)
	}
	for rank, err := range errs {
		if !errors.As(err, &e) {
			t.Fatalf("rank %d: %v", rank, err)
		}
		classes[rank] = e.Class
	}
	if want := map[int]string{1: "Pending", 3: "RuntimeEnvSetupError", 9: "ValueError"}; !maps.Equal(classes, want) {
		t.Errorf("classes %v, want %v", classes, want)
	}
	if _, err := c.StartWorkers(within(t), starts([]int{0, 3}, "/bin/x")); !errors.As(err, &errs) || !slices.Equal(errs.Ranks(), []int{3}) {
		t.Errorf("start: %v", err)
	}
	f.HoldActor(1, false)
	if _, err := c.Facts(within(t), []int{1}, ray.FactsRequest{}); err != nil {
		t.Errorf("facts after the release: %v", err)
	}
}

func TestFakeGroups(t *testing.T) {
	f := newFake()
	c := dial(t, f)
	theirs := f.AddGroup(ray.Group{Name: "ext", Bundles: []ray.Bundle{{NodeID: "n1", Resources: map[string]float64{"GPU": 2}}}})
	for _, name := range []string{theirs, "ext"} {
		if g, err := c.AdoptGroup(within(t), name); err != nil || g.ID != theirs || g.Bundles[0].NodeID != "n1" {
			t.Errorf("adopt %s: %+v, %v", name, g, err)
		}
	}
	var e *ray.Error
	if err := c.RemoveGroup(within(t), theirs); !errors.As(err, &e) {
		t.Errorf("an adopted group was removed: %v", err)
	}
	if _, err := c.AdoptGroup(within(t), strings.Repeat("ab", 18)); !errors.As(err, &e) || e.Class != "PlacementGroupRemoved" {
		t.Errorf("adopt an unknown id: %v", err)
	}
	for want, bundles := range map[string][]map[string]float64{ray.SchedulingInfeasible: {{"GPU": 3}}, "NO_RESOURCES": gpus(3)} {
		id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: bundles})
		if err != nil {
			t.Fatal(err)
		}
		if ready, err := c.WaitGroup(within(t), id, time.Millisecond); ready || err != nil {
			t.Errorf("%s group: ready %v, %v", want, ready, err)
		}
		if g, err := c.Group(within(t), id); err != nil || g.State != ray.GroupPending || g.SchedulingState != want {
			t.Errorf("want %s, got %+v, %v", want, g, err)
		}
	}
	waiting, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: gpus(4)})
	if err != nil {
		t.Fatal(err)
	}
	go f.RemoveGroup(theirs)
	if ready, err := c.WaitGroup(within(t), waiting, hang); !ready || err != nil {
		t.Errorf("after the removal of the other: %v, %v", ready, err)
	}
	id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: gpus(1)})
	if err != nil {
		t.Fatal(err)
	}
	go f.RemoveGroup(id)
	if _, err := c.WaitGroup(within(t), id, hang); !errors.As(err, &e) || e.Class != "PlacementGroupRemoved" {
		t.Errorf("wait for a removed group: %v", err)
	}
}

func TestCancelledCall(t *testing.T) {
	f := newFake()
	c := dial(t, f)
	id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: gpus(9)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cause := errors.New("changed my mind")
	go cancel(cause)
	if _, err := c.WaitGroup(ctx, id, hang); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Nodes(within(t)); err != nil {
		t.Errorf("the next call: %v", err)
	}
}

func TestFailedOperation(t *testing.T) {
	f := newFake()
	c := dial(t, f)
	f.FailNext("nodes", frame.Fault{Class: "ConnectionError", Message: "top", Causes: []frame.Fault{{Class: "RuntimeError", Message: "root"}}})
	_, err := c.Nodes(within(t))
	var e *ray.Error
	if !errors.As(err, &e) || !reflect.DeepEqual(*e, ray.Error{Op: "nodes", Class: "ConnectionError", Message: "top",
		Causes: []ray.Cause{{Class: "RuntimeError", Message: "root"}}}) {
		t.Errorf("got %#v", err)
	}
	if want := "ray nodes: ConnectionError: top; caused by RuntimeError: root"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if errors.Is(err, ray.ErrAuth) {
		t.Error("taken for a refused token")
	}
	f.FailNext("nodes", frame.Fault{Class: "ConnectionError", Message: "top",
		Causes: []frame.Fault{{Class: "RuntimeError", Message: "RPC error: InvalidAuthToken: wrong"}}})
	if _, err = c.Nodes(within(t)); !errors.Is(err, ray.ErrAuth) || !strings.Contains(err.Error(), "set RAY_AUTH_TOKEN or") {
		t.Errorf("got %v", err)
	}
}

func TestBridgeDropped(t *testing.T) {
	f := newFake()
	c := dial(t, f)
	id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: gpus(9)})
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if _, err := c.WaitGroup(within(t), id, hang); !errors.Is(err, ray.ErrGone) {
				t.Errorf("a call in flight: %v", err)
			}
		})
	}
	if c.Err() != nil {
		t.Errorf("gone before: %v", c.Err())
	}
	f.Drop()
	if err := awaitGone(t, c); !errors.Is(err, ray.ErrGone) {
		t.Errorf("got %v", err)
	}
	calls.Wait()
	if _, err := c.Nodes(within(t)); !errors.Is(err, ray.ErrGone) {
		t.Errorf("a later call: %v", err)
	}
	if left := f.Groups(); len(left) != 0 {
		t.Errorf("the job's groups are left: %+v", left)
	}
}

func TestBridgeSilent(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	t.Parallel()
	f := newFake()
	c := dial(t, f)
	f.Silence()
	if err := awaitGone(t, c); !errors.Is(err, ray.ErrGone) || !strings.Contains(err.Error(), "silent") {
		t.Errorf("got %v", err)
	}
}

func TestCloseWithCallsInFlight(t *testing.T) {
	f := newFake()
	c := dial(t, f)
	id, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: gpus(9)})
	if err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for {
				if _, err := c.WaitGroup(within(t), id, time.Millisecond); err != nil {
					return
				}
			}
		})
	}
	for range 3 {
		calls.Go(func() {
			if err := c.Close(within(t)); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
	calls.Wait()
	if err := awaitGone(t, c); !errors.Is(err, ray.ErrGone) {
		t.Errorf("after close: %v", err)
	}
	if _, open := <-c.Exits(); open {
		t.Error("an exit after close")
	}
}

func TestManyCallsAtOnce(t *testing.T) {
	c := dial(t, newFake())
	var calls sync.WaitGroup
	for i := range 50 {
		calls.Go(func() {
			id, err := c.CreateGroup(within(t), ray.GroupSpec{Name: fmt.Sprint("g", i), Bundles: gpus(1)})
			if err != nil {
				t.Errorf("create %d: %v", i, err)
				return
			}
			if g, err := c.Group(within(t), id); err != nil || g.Name != fmt.Sprint("g", i) {
				t.Errorf("group %d: %+v, %v", i, g, err)
			}
		})
	}
	calls.Wait()
}

// What others hold outside groups is missing on the whole cluster, but on no node.
func TestResources(t *testing.T) {
	f := newFake()
	f.HoldOutside(map[string]float64{"GPU": 3})
	c := dial(t, f)
	if _, err := c.CreateGroup(within(t), ray.GroupSpec{Bundles: []map[string]float64{{"CPU": 1}}}); err != nil {
		t.Fatal(err)
	}
	nodes, available, err := c.Resources(within(t))
	if err != nil || len(nodes) != 2 || nodes[0].Free["GPU"] != 2 || nodes[1].Free["GPU"] != 2 {
		t.Errorf("nodes %+v, %v", nodes, err)
	}
	if want := map[string]float64{"CPU": 7, "GPU": 1}; !maps.Equal(available, want) {
		t.Errorf("available %v, want %v", available, want)
	}
}
