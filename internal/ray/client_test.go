package ray_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"github.com/eagleray/eagleray/internal/ray/fake"
	"github.com/eagleray/eagleray/internal/ray/frame"
	"github.com/eagleray/eagleray/internal/ray/raytest"
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
		ray.Node{ID: "n1", IP: "10.0.0.1", Hostname: "one",
			Resources: map[string]float64{"CPU": 4, "GPU": 2}},
		ray.Node{ID: "n2", IP: "10.0.0.2", Hostname: "two",
			Resources: map[string]float64{"CPU": 4, "GPU": 2}})
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

func awaitGone(t *testing.T, c *ray.Client) error {
	t.Helper()
	select {
	case <-c.Gone():
	case <-time.After(hang):
		t.Fatal("the bridge is not gone")
	}
	return c.Err()
}

// Exits that are not read must not hold up anything else.
func TestUnreadExits(t *testing.T) {
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
		if e := raytest.NextExit(t, c); e.Rank != i {
			t.Fatalf("exit %d is of rank %d", i, e.Rank)
		}
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
	f.FailNext("nodes", frame.Fault{Class: "ConnectionError", Message: "top",
		Causes: []frame.Fault{{Class: "RuntimeError", Message: "root"}}})
	_, err := c.Nodes(within(t))
	var e *ray.Error
	if !errors.As(err, &e) || !reflect.DeepEqual(*e,
		ray.Error{Op: "nodes", Class: "ConnectionError", Message: "top",
			Causes: []ray.Cause{{Class: "RuntimeError", Message: "root"}}}) {
		t.Errorf("got %#v", err)
	}
	want := "ray nodes: ConnectionError: top; caused by RuntimeError: root"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if errors.Is(err, ray.ErrAuth) {
		t.Error("taken for a refused token")
	}
	f.FailNext("nodes", frame.Fault{Class: "ConnectionError", Message: "top",
		Causes: []frame.Fault{{Class: "RuntimeError",
			Message: "RPC error: InvalidAuthToken: wrong"}}})
	if _, err = c.Nodes(within(t)); !errors.Is(err, ray.ErrAuth) ||
		!strings.Contains(err.Error(), "set RAY_AUTH_TOKEN or") {
		t.Errorf("got %v", err)
	}
}

func TestBridgeDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		synctest.Wait() // the job ends after its connection
		if left := f.Groups(); len(left) != 0 {
			t.Errorf("the job's groups are left: %+v", left)
		}
	})
}

func TestBridgeSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c := dial(t, f)
		f.Silence()
		if err := awaitGone(t, c); !errors.Is(err, ray.ErrGone) ||
			!strings.Contains(err.Error(), "silent for 1") {
			t.Errorf("got %v", err)
		}
	})
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
			id, err := c.CreateGroup(within(t), ray.GroupSpec{Name: fmt.Sprint("g", i),
				Bundles: gpus(1)})
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
	f.ReserveOutside(map[string]float64{"GPU": 3})
	c := dial(t, f)
	if _, err := c.CreateGroup(within(t),
		ray.GroupSpec{Bundles: []map[string]float64{{"CPU": 1}}}); err != nil {
		t.Fatal(err)
	}
	nodes, available, err := c.Resources(within(t))
	if err != nil || len(nodes) != 2 || nodes[0].Free["GPU"] != 1 || nodes[1].Free["GPU"] != 1 {
		t.Errorf("nodes %+v, %v", nodes, err)
	}
	if available["CPU"] != 7 || available["GPU"] != 1 {
		t.Errorf("available %v, want 7 CPUs and 1 GPU", available)
	}
}
