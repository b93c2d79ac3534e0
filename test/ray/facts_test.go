package ray_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eagleray/eagleray/internal/ray"
	"golang.org/x/sys/unix"
)

// fact is something about Ray that the launcher relies on.
type fact struct {
	name string
	// says is the fact in a sentence.
	says  string
	check func(t *testing.T, w *world)
}

// TestFacts checks every fact about Ray that the launcher relies on, on the fake cluster and on
// every Ray that is installed: what the launcher does on the fake (rayactor's own tests,
// TestDeath) it then does on Ray.
func TestFacts(t *testing.T) {
	all := slices.Concat(factsOfConnect, factsOfNodes, factsOfGroups, factsOfActors, factsOfWorkers,
		factsOfEnds,
		factsOfTokens)
	check := func(t *testing.T, c cluster) {
		w := &world{cluster: c}
		for _, f := range all {
			t.Run(f.name, func(t *testing.T) {
				began := time.Now()
				f.check(t, w)
				if t.Failed() {
					t.Logf("does not hold: %s", f.says)
				}
				t.Logf("%.2f s", time.Since(began).Seconds())
			})
		}
		w.close(t)
	}
	t.Run("fake", func(t *testing.T) { check(t, newFakeCluster(t, "")) })
	each(t, func(t *testing.T, s *site) { check(t, &realCluster{site: s}) })
}

// cluster is what facts are checked on: three nodes of one CPU and two GPUs each, the last with
// two NPUs.
type cluster interface {
	version() string
	address() string
	// nodes are the addresses of the nodes, the head's first.
	nodes() []string
	// bridge starts a bridge with additions to the environment of a driver. Its end is the
	// caller's.
	bridge(t *testing.T, env ...string) *ray.Client
	// killBridge ends the latest bridge as a crash would.
	killBridge(t *testing.T)
	// signalActor sends a signal to the process of an actor.
	signalActor(t *testing.T, f ray.Facts, s unix.Signal)
	// rayKill ends an actor by ray.kill from another job.
	rayKill(t *testing.T, namespace, name string)
	// addNode adds a node of one CPU with one of the resource "extra", killNode ends it as a
	// crash would.
	addNode(t *testing.T) (ip string)
	killNode(t *testing.T, ip string)
	// withToken is another cluster of one node that wants a token. Versions without tokens skip
	// the test.
	withToken(t *testing.T, token string) cluster
	// noneLeft waits until no process of the cluster has the text in its arguments.
	noneLeft(t *testing.T, text string)
	// cacheDir is where nodes keep installed files, the home of their user.
	cacheDir() string
}

// world is a cluster with what the facts checked on it have in common.
type world struct {
	cluster
	// joined is a client in the namespace factSpace, at the second node; fresh is one that joins
	// in the course of the facts about connecting.
	joined, fresh *ray.Client
	// pool is the group of the common actors; ranks are those that live.
	pool  string
	ranks map[int]ray.Facts
}

// factSpace is the namespace of the common client.
const factSpace = "facts"

// client is the common client.
func (w *world) client(t *testing.T) *ray.Client {
	t.Helper()
	if w.joined == nil {
		w.joined = w.bridge(t)
		w.connect(t, w.joined, factSpace)
	}
	return w.joined
}

// another is a client of its own, which ends with the test.
func (w *world) another(t *testing.T, namespace string) *ray.Client {
	t.Helper()
	c := w.bridge(t)
	t.Cleanup(func() { closeClient(t, c) })
	w.connect(t, c, namespace)
	return c
}

func (w *world) connect(t *testing.T, c *ray.Client, namespace string) {
	t.Helper()
	o := ray.ConnectOptions{Address: w.address(), NodeIP: w.nodes()[1], Namespace: namespace}
	if _, err := c.Connect(within(t), o); err != nil {
		t.Fatalf("connect: %v", err)
	}
}

func (w *world) close(t *testing.T) {
	t.Helper()
	for _, c := range []*ray.Client{w.joined, w.fresh} {
		if c != nil {
			closeClient(t, c)
		}
	}
}

func closeClient(t *testing.T, c *ray.Client) {
	t.Helper()
	if err := c.Close(within(t)); err != nil {
		t.Errorf("close: %v", err)
	}
}

// poolSize is how many actors the facts have in common, each in a bundle of share CPUs: GPUs are
// for other facts.
const (
	poolSize = 3
	share    = 0.5
)

// actors are n living ones of the common client's. They come back when a fact has not lost them.
func (w *world) actors(t *testing.T, n int) []ray.Facts {
	t.Helper()
	c := w.client(t)
	if w.pool == "" {
		w.pool = w.placed(t, c,
			ray.GroupSpec{Bundles: slices.Repeat([]map[string]float64{{"CPU": share}}, poolSize)})
		w.ranks = map[int]ray.Facts{}
	}
	var specs []ray.ActorSpec
	var missing []int
	for rank := range n {
		if _, lives := w.ranks[rank]; !lives {
			specs = append(specs, ray.ActorSpec{Rank: rank, Group: w.pool, Bundle: rank,
				CPUs: share})
			missing = append(missing, rank)
		}
	}
	if len(missing) > 0 {
		for _, f := range spawned(t, c, specs) {
			w.ranks[f.Rank] = f
		}
	}
	out := make([]ray.Facts, n)
	for rank := range out {
		out[rank] = w.ranks[rank]
	}
	return out
}

// lost takes actors that have ended out of the common ones.
func (w *world) lost(t *testing.T, ranks ...int) {
	t.Helper()
	if err := w.client(t).KillActors(within(t), ranks); err != nil {
		t.Fatal(err)
	}
	for _, rank := range ranks {
		delete(w.ranks, rank)
	}
}

// placed makes a group and waits for it.
func (w *world) placed(t *testing.T, c *ray.Client, spec ray.GroupSpec) string {
	t.Helper()
	id, err := c.CreateGroup(within(t), spec)
	if err != nil {
		t.Fatalf("create group: %v", err)
	}
	if ready, err := c.WaitGroup(within(t), id, patience); err != nil || !ready {
		t.Fatalf("group: ready %v, %v", ready, err)
	}
	return id
}

// group makes a group that ends with the test, and waits for it.
func (w *world) group(t *testing.T, c *ray.Client, spec ray.GroupSpec) string {
	t.Helper()
	id := w.placed(t, c, spec)
	t.Cleanup(func() { removeGroup(t, c, id) })
	return id
}

func removeGroup(t *testing.T, c *ray.Client, id string) {
	t.Helper()
	if err := c.RemoveGroup(within(t), id); err != nil {
		t.Errorf("remove group: %v", err)
	}
}

// spawned creates actors and waits for their answers.
func spawned(t *testing.T, c *ray.Client, specs []ray.ActorSpec) []ray.Facts {
	t.Helper()
	if err := c.CreateActors(within(t), specs); err != nil {
		t.Fatalf("create actors: %v", err)
	}
	ranks := make([]int, len(specs))
	for i, s := range specs {
		ranks[i] = s.Rank
	}
	facts, err := c.Facts(within(t), ranks, ray.FactsRequest{DeviceKey: "GPU"})
	if err != nil {
		t.Fatalf("facts: %v", err)
	}
	return facts
}

// killActors ends actors with the test.
func killActors(t *testing.T, c *ray.Client, ranks ...int) {
	t.Helper()
	if err := c.KillActors(within(t), ranks); err != nil {
		t.Errorf("kill actors: %v", err)
	}
}

// runScript starts a script of the shell under the actor of a rank.
func runScript(t *testing.T, c *ray.Client, rank int, script string) ray.Started {
	t.Helper()
	started, err := c.StartWorkers(within(t), []ray.StartSpec{shell(rank, script)})
	if err != nil {
		t.Fatal(err)
	}
	return started[0]
}

func shell(rank int, script string) ray.StartSpec {
	return ray.StartSpec{Rank: rank, Path: "/bin/sh", Args: []string{"-c", script}}
}

// workerMark is an argument of workers that end with their standard input, by which they are found.
const (
	workerMark = "eagleray-test-worker"
	waits      = "exec cat - " + workerMark
)

// class is the class of the *ray.Error in err, "" if there is none.
func class(err error) string {
	var e *ray.Error
	if !errors.As(err, &e) {
		return ""
	}
	return e.Class
}

// rankClass is the class of one rank's error.
func rankClass(t *testing.T, err error, rank int) string {
	t.Helper()
	var errs ray.RankErrors
	if !errors.As(err, &errs) {
		t.Fatalf("not the errors of ranks: %v", err)
	}
	return class(errs[rank])
}

// refused wants an error of a class with a text.
func refused(t *testing.T, what string, err error, wantClass, text string) {
	t.Helper()
	if class(err) != wantClass || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v, want %s with %q", what, err, wantClass, text)
	}
}

// isActorError tells whether a class says that an actor is lost.
func isActorError(class string) bool { return strings.HasPrefix(class, "Actor") }

// exists tells whether there is a file.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
